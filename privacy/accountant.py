"""What Gaussian noise costs: the exact privacy curve, its bounds by Rényi orders, and zCDP.

T releases of sensitivity S under Gaussian noise of standard deviation z S are, to whoever sees all
of them, one Gaussian release with ``mu^2 = T / z^2``. Its curve is known exactly (Balle and Wang,
ICML 2018), so composition loses nothing. Pure functions; no files.
"""

from __future__ import annotations

import math
import warnings

from scipy.special import erfcx, log_ndtr

from configs.errors import ConfigError

__all__ = [
    "epsilon_of_rho",
    "gaussian_delta",
    "gaussian_epsilon",
    "noise_multiplier",
    "rdp_epsilon",
]

#: A smaller mu counts as this one, which can only overstate the cost: below it the difference of
#: two nearly equal tails has too few digits left.
_LEAST_MU = 1e-5
#: Less than this is refused, so that `_LEAST_MU` never binds in a calibration.
_LEAST_EPSILON = 1e-3
#: A smaller rho counts as this one.
_LEAST_RHO = 1e-20
#: Up to here the Rényi orders of `rdp_epsilon` go.
_LAST_ORDER = 1024


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the smallest delta of a Gaussian release, exactly.

    ``delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)`` (Balle and Wang 2018,
    Theorem 8).

    Parameters
    ----------
    epsilon : float
        0 or more.
    mu : float
        Sensitivity divided by the noise's standard deviation, above 0.

    Returns
    -------
    float
        In [0, 1], correct to 9 digits down to 1e-300.
    """
    return math.exp(_log_delta(epsilon, mu))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Return the smallest epsilon of a Gaussian release, exactly and never rounded down.

    Parameters
    ----------
    delta : float
        Above 0, below 1.
    mu : float
        Sensitivity divided by the noise's standard deviation, above 0.

    Returns
    -------
    float
        0 or more, at most 1e-9 (relative) above the exact value.
    """
    from scipy.optimize import brentq

    _check_delta(delta)
    target = math.log(delta)
    if _log_delta(0.0, mu) <= target:
        return 0.0
    enough = mu**2 / 2 + mu * math.sqrt(-2 * target) + 1e-9  # what zCDP gives, closed form
    epsilon = float(brentq(lambda e: _log_delta(e, mu) - target, 0.0, enough, xtol=1e-15))
    while _log_delta(epsilon, mu) > target:
        epsilon += 1e-10 * (epsilon + 1e-6)
    return epsilon


def noise_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Return the noise multiplier z with which some releases keep within (epsilon, delta).

    Parameters
    ----------
    epsilon : float
        0.001 or more.
    delta : float
        Above 0, below 1.
    releases : int
        T, 1 or more.

    Returns
    -------
    float
        Standard deviation of the noise divided by the sensitivity of one release, rounded up to two
        decimals, or to three significant digits where that is finer.

    Raises
    ------
    ConfigError
        If an argument is out of its range.
    """
    from scipy.optimize import brentq

    _check_delta(delta)
    if not (_LEAST_EPSILON <= epsilon < math.inf) or releases < 1:
        raise ConfigError(
            f"privacy.epsilon is {epsilon:g} for {releases} noisy releases: give a number from "
            f"{_LEAST_EPSILON:g} up and at least one release"
        )
    target = math.log(delta)
    # mu = epsilon / (sqrt(2 log(1/delta)) + sqrt(2 epsilon)) is safe by zCDP, so the exact one is
    # larger; beyond twice sqrt(2 epsilon) + 9 delta is 1 to all digits.
    low = epsilon / (math.sqrt(-2 * target) + math.sqrt(2 * epsilon)) / 2
    high = 2 * math.sqrt(2 * epsilon) + 20
    mu = float(brentq(lambda m: _log_delta(epsilon, m) - target, low, high, xtol=1e-15))
    exact = math.sqrt(releases) / mu
    unit = 10.0 ** max(2, 2 - math.floor(math.log10(exact)))
    steps = math.ceil(exact * unit)
    while _log_delta(epsilon, math.sqrt(releases) * unit / steps) > target:
        steps += 1
    return steps / unit


def rdp_epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Return opacus' bound on epsilon, by Rényi differential privacy: a check from above.

    Parameters
    ----------
    noise_multiplier : float
        z, above 0.
    releases : int
        T, each over all records (sample rate 1).
    delta : float
        Above 0, below 1.

    Returns
    -------
    float
        Never below :func:`gaussian_epsilon`.
    """
    from opacus.accountants import RDPAccountant  # 3 s to import, and loads torch

    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier, 1.0, releases)]
    orders = [*RDPAccountant.DEFAULT_ALPHAS, *range(64, _LAST_ORDER + 1)]
    with warnings.catch_warnings():
        # "optimal order is the largest": then the bound is loose, yet a bound
        warnings.simplefilter("ignore", UserWarning)
        return max(0.0, float(accountant.get_epsilon(delta, alphas=orders)))


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Convert zero-concentrated differential privacy to (epsilon, delta), tightly.

    ``epsilon = min over alpha > 1 of alpha rho + log(1 / (alpha delta)) / (alpha - 1)
    + log(1 - 1/alpha)`` (Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12). The derivative
    is ``rho - log(1 / (alpha delta)) / (alpha - 1)^2``, which changes sign once.

    Parameters
    ----------
    rho : float
        0 or more. Costs of several runs add up before they are converted: a Gaussian release has
        ``mu^2 / 2``, a pure epsilon has ``epsilon^2 / 2``.
    delta : float
        Above 0, below 1.

    Returns
    -------
    float
        0 or more; never falls when rho grows.
    """
    from scipy.optimize import brentq

    _check_delta(delta)
    if rho <= 0:
        return 0.0
    rho = max(rho, _LEAST_RHO)
    log_inverse = -math.log(delta)

    def slope(above_one: float) -> float:
        return rho * above_one**2 - log_inverse + math.log1p(above_one)

    largest = math.sqrt(log_inverse / rho)
    a = float(brentq(slope, 0.0, largest, xtol=1e-12 * largest))
    epsilon = (a + 1) * rho + (log_inverse - math.log1p(a)) / a + math.log(a / (a + 1))
    return max(0.0, epsilon)


def _log_delta(epsilon: float, mu: float) -> float:
    """Logarithm of the exact curve.

    With a = epsilon/mu - mu/2 and b = epsilon/mu + mu/2 the factor e^epsilon cancels against the
    normal densities at a and b, and ``delta = Phi(-a) (1 - R(b) / R(a))`` is left, R(x) =
    Phi(-x) / phi(x) being Mills' ratio: no large numbers are subtracted in either tail.
    """
    mu = max(mu, _LEAST_MU)
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    ratio = float(erfcx(b / math.sqrt(2)) / erfcx(a / math.sqrt(2)))  # 0 where R(a) overflows
    return float(log_ndtr(-a)) + math.log1p(-ratio)


def _check_delta(delta: float) -> None:
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"privacy.delta is {delta:g}: give a number above 0 and below 1")
