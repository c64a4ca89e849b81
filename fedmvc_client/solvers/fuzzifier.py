"""Memberships from distances: powers of 1/S without overflow, and without a logarithm for m = 2."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

#: Smallest S: a record on a centre gets membership 1 there, one without any view 1/c everywhere.
DISTANCE_FLOOR = 1e-15
#: Up to here an integer 1/(m-1) (m = 2, 1.5, 1.25, 1.2, 1.1, ...) is computed by multiplications.
_LARGEST_INTEGER_POWER = 32


def inverse_power(
    total: torch.Tensor, power: torch.Tensor, exponent: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn ``total`` = S into rho = S_min / S, ``power`` into rho^p; return it and its sum over k.

    This is ``softmax(-p log max(S, floor))`` before its normalisation: rho <= 1 cannot overflow.
    """
    total.clamp_(min=DISTANCE_FLOOR)
    smallest = total.amin(dim=1, keepdim=True)
    rho = torch.div(smallest, total, out=total)
    nearest = round(exponent)
    if abs(exponent - nearest) <= 1e-12 * exponent and nearest <= _LARGEST_INTEGER_POWER:
        _integer_power(rho, power, nearest)
    else:
        torch.log(rho, out=power).mul_(exponent).exp_()
    return power, power.sum(dim=1, keepdim=True)


def _integer_power(base: torch.Tensor, out: torch.Tensor, exponent: int) -> None:
    """Binary powering from the highest bit: ``out = base ** exponent``, exponent >= 1."""
    out.copy_(base)
    for bit in bin(exponent)[3:]:
        out.square_()
        if bit == "1":
            out.mul_(base)


def membership_power(total: torch.Tensor, power: torch.Tensor, fuzzifier: float) -> torch.Tensor:
    """Return u^m in ``total`` from S in ``total``: u^m = rho^(p+1) / Z^m with p = 1/(m-1)."""
    if fuzzifier == 2.0:
        total.clamp_(min=DISTANCE_FLOOR).reciprocal_()
        return total.div_(total.sum(dim=1, keepdim=True)).square_()
    power, normaliser = inverse_power(total, power, 1.0 / (fuzzifier - 1.0))
    scale = normaliser.log_().mul_(-fuzzifier).exp_()
    return total.mul_(power).mul_(scale)


def hard_labels(membership: NDArray[np.float64], held: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Cluster of the largest membership; -1 for a record without any observed cell.

    Parameters
    ----------
    membership : ndarray of shape (n, c)
    held : ndarray of shape (n, s), bool
        Views that each record holds.

    Returns
    -------
    ndarray of shape (n,), int64
    """
    return np.where(held.any(axis=1), membership.argmax(axis=1), -1)
