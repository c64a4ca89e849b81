"""Requests and replies of TensorFMVC: tokens, labels in few bits, and the blend Z.

Shapes: n records of a site, N shared rows in token order, K clusters. Packed labels are those of
:mod:`strategies.label_coding`; a bit mask is ``numpy.packbits`` of booleans.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LinkRequest:
    """Ask for the tokens of the site's records under this plan."""

    run_id: str
    plan_id: str


@dataclass(frozen=True)
class LinkReply:
    """Tokens (n, 16), sorted, and the rule by which ids were normalised."""

    run_id: str
    id_rule: str
    tokens: Bytes


@dataclass(frozen=True)
class AlignRequest:
    """Which of its tokens all sites hold: a bit mask (n,), in token order.

    ``position`` is the site's place m in name order; it seeds the site's own draws.
    """

    run_id: str
    plan_id: str
    position: int
    n_shared: int
    shared: Bytes


@dataclass(frozen=True)
class StartReply:
    """First labels of the rows that the site has data for.

    ``held`` is a bit mask (N,), ``labels`` the packed labels of the held rows, ``trace`` the local
    term at these labels. ``alone`` are the packed labels that the site's view gives by itself, the
    baseline; empty where they are ``labels``.
    """

    run_id: str
    held: Bytes
    labels: Bytes
    trace: float
    alone: Bytes


@dataclass(frozen=True)
class SweepRequest:
    """One exchange: the site's weight alpha^r, mu, and the blend Z = G - Q/mu.

    ``blend`` (N, K) times ``scale`` is Z; shape (0, K) where Z is zero. ``names`` (K,) renames the
    site's own clusters before the sweep; empty where they keep their names.
    """

    run_id: str
    plan_id: str
    round: int
    weight: float
    mu: float
    blend: NDArray[np.generic]
    scale: float
    names: Ints


@dataclass(frozen=True)
class SweepReply:
    """Packed labels of the held rows after the sweep, and the local term at them."""

    run_id: str
    round: int
    labels: Bytes
    trace: float


@dataclass(frozen=True)
class OutcomeRequest:
    """The result for every shared row, packed: final labels, and the aligned vote beside them.

    ``known`` is a bit mask (N,) of the rows that some site has data for; the others have no label.
    """

    run_id: str
    plan_id: str
    known: Bytes
    labels: Bytes
    vote: Bytes


@dataclass(frozen=True)
class OutcomeReply:
    """The site has kept the result of this many shared rows."""

    run_id: str
    n_rows: int
