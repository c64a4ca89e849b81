"""What a plan puts between a site's sums and the server: the grid, the noise, and what it costs.

Both ends call these functions on the same plan, so they agree on the grid without a message.
"""

from __future__ import annotations

from collections.abc import Sequence

from configs.plan import RunPlan
from privacy.budget import Cost
from privacy.fixed_point import FixedPoint
from privacy.gaussian_noise import TAIL
from privacy.label_privacy import label_epsilon, label_messages
from privacy.mechanisms import GaussianNoise, calibrate
from privacy.sensitivity import Blocks, clipped_update_blocks, heat_kernel_blocks

__all__ = ["cell_mass", "cost_of", "grid", "heat_kernel_noise", "update_noise"]

#: Without masks a plan names no participants; the grid leaves room for this many.
_MOST_SITES = 1024


def heat_kernel_noise(plan: RunPlan, dims: Sequence[int]) -> GaussianNoise | None:
    """Return the noise of a round of FedHK-MVFC; None where the plan has none.

    Parameters
    ----------
    plan : RunPlan
    dims : sequence of int
        Columns d_h of each view of the run.

    Raises
    ------
    ConfigError
        Where the sums do not fit the ring.
    """
    if plan.privacy.mechanism != "gaussian":
        return None
    kernel = plan.settings(1).heat_kernel
    blocks = heat_kernel_blocks(dims, plan.n_clusters, kernel, cell_mass(plan, len(dims)))
    return _calibrated(plan, blocks, plan.privacy.max_rows)


def cell_mass(plan: RunPlan, n_views: int) -> tuple[bool, ...]:
    """Say of each view whether a noisy run sums its mass cell by cell: no cell is missing then."""
    return (plan.settings(1).heat_kernel != "one",) * n_views


def update_noise(plan: RunPlan, n_numbers: int) -> GaussianNoise | None:
    """Return the noise of a round of Fed-MUFSHT, site-level; None where the plan has none."""
    privacy = plan.privacy
    if privacy.mechanism != "gaussian" or privacy.clip is None:
        return None
    return _calibrated(plan, clipped_update_blocks(n_numbers, privacy.clip), 1)


def grid(plan: RunPlan, noise: GaussianNoise | None) -> FixedPoint:
    """Return the grid that all sites of a protected run round to."""
    if noise is not None:
        return noise.codec
    return FixedPoint.finest(float(plan.privacy.max_rows), _n_sites(plan))


def cost_of(plan: RunPlan, dims: Sequence[int]) -> Cost | None:
    """Return what a run takes from a site's budget; None where the plan guarantees nothing.

    Parameters
    ----------
    plan : RunPlan
    dims : sequence of int
        Columns of the site's views. Noise is scaled to what is sent, so only the sampler's tail
        depends on them.
    """
    privacy = plan.privacy
    if privacy.epsilon is None:
        return None
    if privacy.mechanism == "randomised-response":
        return Cost.of_pure(privacy.mechanism, label_messages(plan), label_epsilon(plan))
    if plan.method == "fed-mufsht":
        noise = update_noise(plan, sum(dims) * plan.n_clusters)
    else:
        noise = heat_kernel_noise(plan, dims)
    if noise is None:
        return None
    return Cost(
        mechanism=privacy.mechanism,
        releases=noise.releases,
        rho=noise.rho,
        rho_if_others_collude=noise.rho_if_others_collude,
        sigma=noise.noise_multiplier,
        sensitivity=1.0,
        delta=TAIL * noise.blocks.size * noise.honest_sites,
    )


def _calibrated(plan: RunPlan, blocks: Blocks, max_rows: int) -> GaussianNoise:
    privacy = plan.privacy
    assert privacy.epsilon is not None and privacy.delta is not None and privacy.noise is not None
    return calibrate(
        blocks,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        releases=plan.max_rounds,
        n_sites=_n_sites(plan),
        colluders=privacy.colluders,
        tolerated_dropouts=privacy.tolerated_dropouts or 0,
        noise=privacy.noise,
        max_rows=max_rows,
    )


def _n_sites(plan: RunPlan) -> int:
    return len(plan.privacy.participants) or _MOST_SITES
