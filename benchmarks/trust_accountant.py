"""Check the accountant against dp-accounting: privacy loss distributions and Rényi orders.

Run with ``python -m benchmarks.trust_accountant``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from benchmarks.trust_rows import Row, print_rows
from privacy.accountant import gaussian_epsilon, rdp_epsilon

#: Width of the cells that a privacy loss distribution is rounded up to.
_LOSS_STEP = 1e-3


def accountant_row(
    multipliers: Sequence[float] = (0.5, 1.0, 1.9, 3.42, 6.31, 11.8, 22.24, 80.0),
    releases: Sequence[int] = (1, 5, 10, 50),
    deltas: Sequence[float] = (1e-3, 1e-5, 1e-7, 1e-9),
) -> Row:
    """Compare epsilon over a grid of noise multipliers, releases and deltas."""
    from dp_accounting import dp_event
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.rdp import RdpAccountant
    from opacus.accountants import RDPAccountant

    orders = [*RDPAccountant.DEFAULT_ALPHAS, *range(64, 1025)]
    above_exact, rdp_above_exact, rdp_difference = [], [], []
    for z, count in product(multipliers, releases):
        losses = privacy_loss_distribution.from_gaussian_mechanism(
            z, value_discretization_interval=_LOSS_STEP
        ).self_compose(count)
        accountant = RdpAccountant(orders=orders)
        accountant.compose(dp_event.GaussianDpEvent(z), count)
        for delta in deltas:
            exact = gaussian_epsilon(delta, math.sqrt(count) / z)
            by_rdp = rdp_epsilon(z, count, delta)
            above_exact.append(losses.get_epsilon_for_delta(delta) - exact)
            rdp_above_exact.append(by_rdp - exact)
            rdp_difference.append(abs(by_rdp - accountant.get_epsilon(delta)))
    passed = (
        min(above_exact) >= 0
        and max(above_exact) <= 1e-3
        and min(rdp_above_exact) >= 0
        and max(rdp_difference) <= 1e-9
    )
    return Row(
        f"accountant against dp-accounting, {len(above_exact)} settings",
        f"PLD - exact in [{min(above_exact):.1e}, {max(above_exact):.1e}], RDP - exact at least "
        f"{min(rdp_above_exact):.1e}, RDP against RDP within {max(rdp_difference):.1e}",
        "exact <= PLD <= exact + 1e-3; exact <= RDP; RDP within 1e-9",
        passed,
    )


def main() -> None:
    """Print the figure; exit with 1 where it fails."""
    raise SystemExit(print_rows("accountant", [accountant_row]))


if __name__ == "__main__":
    main()
