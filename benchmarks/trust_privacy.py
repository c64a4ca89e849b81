"""Every figure of trust of differential privacy, at full size; exits 1 where one does not pass.

Run with ``python -m benchmarks.trust_privacy``: about two minutes on one core.
"""

from __future__ import annotations

from benchmarks.trust_accountant import accountant_row
from benchmarks.trust_audit import audit_row
from benchmarks.trust_rows import print_rows
from benchmarks.trust_sampler import low_bit_row
from benchmarks.trust_sensitivity import rounding_row, sensitivity_row

ROWS = (accountant_row, sensitivity_row, rounding_row, low_bit_row, audit_row)


def main() -> None:
    """Print the figures; exit with the number of those that do not pass."""
    raise SystemExit(print_rows("differential privacy", ROWS))


if __name__ == "__main__":
    main()
