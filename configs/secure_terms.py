"""The numbers of a secure sum: who takes part, who may be lost, and how many must answer."""

from __future__ import annotations

from dataclasses import dataclass

from configs.errors import ConfigError

__all__ = ["LEAST_SITES", "SecureTerms", "check_terms", "default_dropouts"]

#: Honest sites that every opened sum must hold at least.
_LEAST_HONEST = 2
#: Fewest sites of a secure sum: one may collude with the server.
LEAST_SITES = _LEAST_HONEST + 1


@dataclass(frozen=True)
class SecureTerms:
    """What the plan fixes of a secure sum.

    Attributes
    ----------
    participants : tuple of str
        The exact list of sites, in name order.
    colluders : int
        c, sites that may share what they know with the server.
    tolerated_dropouts : int
        d, sites that may be missing from a sum.
    threshold : int
        t, answers that open a sum.
    exchanges : int
        E, masked exchanges that the run may use, spares included.
    max_rows : int
        No site has more records than this.
    """

    participants: tuple[str, ...]
    colluders: int
    tolerated_dropouts: int
    threshold: int
    exchanges: int
    max_rows: int

    @property
    def n_sites(self) -> int:
        """Number n of participants."""
        return len(self.participants)

    @property
    def least_contributors(self) -> int:
        """Fewest sites that an opened sum holds, n - d."""
        return self.n_sites - self.tolerated_dropouts


def default_dropouts(n_sites: int, colluders: int) -> int:
    """Return the largest d with d(d+1) < n - c, so that t = n - d is safe (0 where none is)."""
    d = 0
    while (d + 1) * (d + 2) < n_sites - colluders:
        d += 1
    return d


def check_terms(n_sites: int, colluders: int, dropouts: int, threshold: int) -> None:
    """Refuse terms under which a lying server could open a sum of too few honest sites.

    With t <= n - d the sites that are left can open a sum. With 2t > n + c and
    (n - c)d < (d + 1)(t - c), answers that leave out at most d sites each cannot together leave out
    more than d, nor open both secrets of one site, even where the server names different sets to
    different sites (Bonawitz et al., CCS 2017, without a consistency exchange).

    Raises
    ------
    ConfigError
        One sentence with the numbers and the way out.
    """
    n, c, d, t = n_sites, colluders, dropouts, threshold
    if c < 1:
        raise ConfigError(
            f"privacy.colluders is {c}: give at least 1, since every site is curious about the "
            "others and knows its own data"
        )
    honest = n - d - c
    if honest < _LEAST_HONEST:
        raise ConfigError(
            f"privacy.participants lists {n} sites of which {d} may be lost and {c} may collude "
            f"with the server, so a sum may hold {honest} honest sites and needs "
            f"{_LEAST_HONEST}: add sites, or lower privacy.tolerated_dropouts"
        )
    if t > n - d:
        raise ConfigError(
            f"privacy.threshold is {t} but with {d} of {n} sites lost {n - d} can answer: give "
            f"{n - d}"
        )
    if 2 * t <= n + c or (n - c) * d >= (d + 1) * (t - c):
        raise ConfigError(
            f"privacy.threshold {t} with privacy.tolerated_dropouts {d} lets a server that names "
            f"different sets to the {n} sites open a sum of too few: use at most "
            f"{default_dropouts(n, c)} dropouts and leave the threshold out"
        )
