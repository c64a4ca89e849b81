"""Matching the clusters of one model to those of another, and votes over matched labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from strategies.statistics import Floats

Labels = NDArray[np.int64]
Colours = NDArray[np.uint64]

#: Rounds of refinement of the colours that break ties between clusters.
REFINEMENTS = 3


def match_clusters(
    local: Sequence[Floats], reference: Sequence[Floats], view_spread: Floats
) -> NDArray[np.int64]:
    """Match each local cluster to a different reference cluster (Hungarian method).

    Parameters
    ----------
    local : sequence of ndarray of shape (c', d_h)
        Only the views both models hold.
    reference : sequence of ndarray of shape (c, d_h), c >= c'
    view_spread : ndarray of shape (s,)
        Total variance of each view; squared distances are divided by it so that views weigh alike.

    Returns
    -------
    ndarray of shape (c',), int64
        ``rows[k]`` is the reference cluster of local cluster k.
    """
    cost = np.zeros((local[0].shape[0], reference[0].shape[0]))
    for a, b, spread in zip(local, reference, view_spread, strict=True):
        squared = ((a**2).sum(axis=1)[:, None] - 2 * a @ b.T + (b**2).sum(axis=1)[None, :]).clip(0)
        cost += squared / max(float(spread), np.finfo(np.float64).tiny)
    return np.asarray(linear_sum_assignment(cost)[1], dtype=np.int64)


def align_labels(
    labelings: Sequence[Labels], n_clusters: int, passes: int = 10
) -> list[NDArray[np.int64]]:
    """Give the clusters of several labellings of the same rows common names.

    Each labelling in turn is matched (Hungarian method) to the votes of all the others, until no
    name changes. It begins with the names of the labelling that agrees best with the others, its
    clusters numbered by size. A tie is broken by what the clusters hold, never by their names or
    by the order of rows: renaming one site's clusters or reordering the rows changes nothing
    unless two clusters are symmetric to each other.

    Parameters
    ----------
    labelings : sequence of ndarray of shape (N,), int64
        0 .. K-1, -1 where a site has no label.
    n_clusters : int
    passes : int
        Rounds over the labellings at most.

    Returns
    -------
    list of ndarray of shape (K,), int64
        ``names[m][k]`` is the common name of cluster k of labelling m: a permutation.
    """
    n_sites = len(labelings)
    tables = {
        (m, other): contingency(labelings[m], labelings[other], n_clusters)
        for m in range(n_sites)
        for other in range(m)
    }
    tables |= {(other, m): table.T for (m, other), table in tables.items()}
    agreement = np.zeros((n_sites, n_sites))
    for (m, other), table in tables.items():
        agreement[m, other] = table[linear_sum_assignment(table, maximize=True)].sum()
    reference = int(np.argmax(agreement.sum(axis=1)))
    colours = _colours(labelings, n_clusters)

    held = labelings[reference][labelings[reference] >= 0]
    sizes = np.bincount(held, minlength=n_clusters)
    names = [np.arange(n_clusters) for _ in labelings]
    names[reference][np.lexsort((colours[reference], -sizes))] = np.arange(n_clusters)

    def matched(m: int, others: Sequence[int]) -> NDArray[np.int64]:
        votes = np.zeros((n_clusters, n_clusters))
        for other in others:
            votes[:, names[other]] += tables[m, other]
        # whole votes decide; all tie-breakers together stay below one vote
        columns = _mixed(np.arange(1, n_clusters + 1, dtype=np.uint64))
        breaker = _mixed(colours[m][:, None] ^ columns[None, :]) / 2.0**64
        total = votes + breaker / (2 * n_clusters)
        return np.asarray(linear_sum_assignment(total, maximize=True)[1], dtype=np.int64)

    for m in range(n_sites):
        if m != reference:
            names[m] = matched(m, [reference])
    for _ in range(passes if n_sites > 2 else 0):
        before = [kept.copy() for kept in names]
        for m in range(n_sites):
            if m != reference:
                names[m] = matched(m, [other for other in range(n_sites) if other != m])
        if all(np.array_equal(a, b) for a, b in zip(before, names, strict=True)):
            break
    return names


def majority_vote(
    labelings: Sequence[Labels], weights: Sequence[float] | Floats, n_clusters: int
) -> Labels:
    """Label of most weight in each row.

    Parameters
    ----------
    labelings : sequence of ndarray of shape (N,), int64
        Common names 0 .. K-1, -1 where a site has no label.
    weights : sequence of float
        One a labelling, none negative.
    n_clusters : int

    Returns
    -------
    ndarray of shape (N,), int64
        Ties go to the lowest label; -1 where no site has one.
    """
    n_rows = labelings[0].shape[0]
    votes = np.zeros((n_rows, n_clusters))
    anyone = np.zeros(n_rows, dtype=bool)
    for labels, weight in zip(labelings, weights, strict=True):
        rows = np.flatnonzero(labels >= 0)
        votes[rows, labels[rows]] += weight
        anyone[rows] = True
    return np.where(anyone, votes.argmax(axis=1), -1)


def contingency(first: Labels, second: Labels, n_clusters: int) -> Floats:
    """Count the rows of each pair of labels (K, K), over the rows that have both."""
    both = (first >= 0) & (second >= 0)
    pairs = first[both] * n_clusters + second[both]
    counts = np.bincount(pairs, minlength=n_clusters**2)
    return counts.reshape(n_clusters, n_clusters).astype(np.float64)


def _mixed(values: Colours) -> Colours:
    """Scramble 64-bit integers (the finaliser of splitmix64)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _colours(labelings: Sequence[Labels], n_clusters: int) -> list[Colours]:
    """Colour clusters by what they hold: free of names, of row order and of site order.

    Colour refinement on the graph of rows and clusters: a row's colour is made of its clusters',
    a cluster's of its rows'. Sums of scrambled integers modulo 2**64 do not depend on any order.
    """
    rows = [np.flatnonzero(labels >= 0) for labels in labelings]
    row_colours = np.ones(labelings[0].shape[0], dtype=np.uint64)
    clusters: list[Colours] = []
    for _ in range(REFINEMENTS):
        clusters = []
        for labels, held in zip(labelings, rows, strict=True):
            total = np.zeros(n_clusters, dtype=np.uint64)
            np.add.at(total, labels[held], _mixed(row_colours[held]))
            clusters.append(_mixed(total))
        row_colours = np.zeros_like(row_colours)
        for labels, held, colour in zip(labelings, rows, clusters, strict=True):
            row_colours[held] += colour[labels[held]]
    return clusters
