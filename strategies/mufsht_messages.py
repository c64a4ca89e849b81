"""Requests and replies of Fed-MUFSHT: sums for the scaling, an NMI, weighted weights, a selection.

Shapes: V views, view v with d_v features, D features over all views side by side, k the size of the
embeddings. ``sums`` are what passes the protection: added over the sites they say all the server
needs, so that with secure aggregation it sees no site's.

With masks and without noise each request after the survey carries as ``history`` the hash of the
one before it that a site's answer depends on (see `history_of`), and so of all of them. A site
compares it with what it was sent itself, and as a part of what is summed it is bound into the
masks: where sites were sent different requests at any time, their later sums open to random
numbers. In other runs it is empty.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.canonical import pack
from strategies.codec import encode
from strategies.feature_scaling import FeatureScaling
from strategies.feature_selection import FeatureSelection

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def history_of(request: SurveyRequest | ScalingRequest | FitRequest | RefineRequest) -> str:
    """Return the SHA-256 of a request (hexadecimal), and with it of all that it follows.

    Nothing in these requests is one site's own, so it is the same for all sites.
    """
    return hashlib.sha256(pack("fedmvc mufsht history", encode(request))).hexdigest()


@dataclass(frozen=True)
class SurveyRequest:
    """Ask for the counts of the views named, in this order; ``n_columns`` (V,) is d_v."""

    run_id: str
    plan_id: str
    views: tuple[str, ...]
    n_columns: Ints


@dataclass(frozen=True)
class SurveyReply:
    """Sums of the site's records, all float64.

    rows (1,); records that hold each view (V,); per feature (D,) its observed cells, the records of
    a site that observes it at all, and the sum of its observed cells or, for text, the documents
    with that word; whether the cells of each view (V,) are weights of words and not counts.
    """

    run_id: str
    sums: tuple[Floats, ...]


@dataclass(frozen=True)
class ScalingRequest:
    """The origin (D,) of the second moments: pooled means, 0 for text.

    ``frequencies`` (D,) and ``documents`` (V,) are the pooled document frequencies of text; a view
    with 0 documents holds weights already, or is no text.
    """

    run_id: str
    plan_id: str
    origin: Floats
    frequencies: Floats
    documents: Floats
    history: str = ""


@dataclass(frozen=True)
class ScalingReply:
    """Sums (D,) of ``x - origin`` and ``(x - origin)^2`` over observed cells."""

    run_id: str
    sums: tuple[Floats, ...]


@dataclass(frozen=True)
class FitRequest:
    """One round: the broadcast weights (D, k); the site starts from its blend with its own.

    ``scaling`` has one entry a view in round 1 and none later; with noise, where a site may have
    missed a round, it comes with each. ``weight`` is the site's weight gamma where it is known
    beforehand ("uniform"), and then the reply is a `ShareReply`; else 0.
    """

    run_id: str
    plan_id: str
    round: int
    weights: Floats
    scaling: tuple[FeatureScaling, ...]
    weight: float
    history: str = ""


@dataclass(frozen=True)
class FitReply:
    """The site's own NMI q in [0, 1] (Eq. 15, without labels); its weights stay until weighed."""

    run_id: str
    round: int
    quality: float


@dataclass(frozen=True)
class ShareRequest:
    """The site's weight gamma of this round, in [0, 1]."""

    run_id: str
    plan_id: str
    round: int
    weight: float


@dataclass(frozen=True)
class ShareTableRequest:
    """Every site's weight gamma of this round: the same request for all, as masked sums need it.

    ``weights`` (K,) are in [0, 1], sum to 1 and belong to the names in ``sites``, which are sorted.
    ``history`` is the hash of the `FitRequest` that was asked in the clear.
    """

    run_id: str
    plan_id: str
    round: int
    sites: tuple[str, ...]
    weights: Floats
    history: str = ""


@dataclass(frozen=True)
class ShareReply:
    """Sums of a round.

    Times gamma: the site's weights W (D, k), turned onto the broadcast; 1 for each feature it
    observes (D,); its view weights alpha (V,); the norm of each view's W (V,). As it is: its
    objective F (1,).
    """

    run_id: str
    round: int
    sums: tuple[Floats, ...]


@dataclass(frozen=True)
class RefineRequest:
    """Look for ``wanted`` features that explain the site's embeddings better than the first ones.

    ``weights`` (D, k) are the final ones, ``ranking`` (D,) the features, best first.
    """

    run_id: str
    plan_id: str
    weights: Floats
    ranking: Ints
    wanted: int
    history: str = ""


@dataclass(frozen=True)
class RefineReply:
    """Sums: which features the site chose (D,), 0 or 1."""

    run_id: str
    sums: tuple[Floats, ...]


@dataclass(frozen=True)
class SelectionRequest:
    """The result; the site keeps it, clusters its records by it and keeps these labels."""

    run_id: str
    plan_id: str
    selection: FeatureSelection


@dataclass(frozen=True)
class SelectionReply:
    """The site has kept the result."""

    run_id: str
