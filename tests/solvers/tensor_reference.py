"""The client's half of TensorFMVC written the slow, obvious way: loops and dense matrices.

Beside the fast modules of ``fedmvc_client.solvers`` this is what the tests believe in.
"""

from __future__ import annotations

import numpy as np


def das_picks(x: np.ndarray, n_anchors: int) -> list[int]:
    """Directly alternating sampling (section 2): argmax, then ``s <- s (1 - s) / max``."""
    score = [sum(x[i, j] - x[:, j].min() for j in range(x.shape[1])) for i in range(len(x))]
    score = [s / max(score) for s in score]
    picks: list[int] = []
    for _ in range(n_anchors):
        best = max((i for i in range(len(x)) if i not in picks), key=lambda i: (score[i], -i))
        picks.append(best)
        score = [s * (1 - s) for s in score]
        largest = max(score)
        score = [s / largest if largest > 0 else 0.0 for s in score]
    return picks


def graph(x: np.ndarray, anchors: np.ndarray, k: int) -> np.ndarray:
    """Dense B of Eq. (14)."""
    k = min(k, len(anchors) - 1)
    b = np.zeros((len(x), len(anchors)))
    for i, row in enumerate(x):
        p = np.array([((row - a) ** 2).sum() for a in anchors])
        order = np.argsort(p, kind="stable")
        beyond = p[order[k]]
        total = k * beyond - p[order[:k]].sum()
        for j in order[:k]:
            b[i, j] = (beyond - p[j]) / total if total > 0 else 1 / k
    return b


def affinity(b: np.ndarray) -> np.ndarray:
    """Dense W of Eq. (15)."""
    mass = b.sum(axis=0)
    return (b[:, mass > 0] / mass[mass > 0]) @ b[:, mass > 0].T


def butterworth(w: np.ndarray, omega: float) -> np.ndarray:
    """Dense D of Eq. (16)."""
    d = (1 + (w / omega) ** 4) ** -0.5
    np.fill_diagonal(d, 0.0)
    return d


def trace(d: np.ndarray, labels: np.ndarray) -> float:
    """``Tr(H^T D H)``."""
    n = len(labels)
    return sum(d[i, j] for i in range(n) for j in range(n) if labels[i] == labels[j])


def sequential_sweep(d, labels, order, n_clusters, weight, blend):
    """Eq. (30) with the dense D: one row after the other, ties to the lowest cluster."""
    labels = labels.copy()
    for t in order:
        scores = []
        for k in range(n_clusters):
            distance = sum(d[t, j] for j in range(len(labels)) if labels[j] == k)
            scores.append(2 * weight * distance - (0.0 if blend is None else blend[t, k]))
        labels[t] = int(np.argmin(scores))
    return labels


def embedding(w: np.ndarray, n_clusters: int) -> np.ndarray:
    """Return unit rows of the top K eigenvectors of the dense W."""
    _, vectors = np.linalg.eigh(w)
    top = vectors[:, -n_clusters:]
    return top / np.linalg.norm(top, axis=1, keepdims=True)


def parallel_sweep(f, labels, centers, weight, balance, blend):
    """One sweep of profile ``plus``: all rows by the old labels and centres, then the means."""
    n, n_clusters = len(f), len(centers)
    sizes = [int((labels == k).sum()) for k in range(n_clusters)]
    new = np.empty(n, dtype=np.int64)
    for i in range(n):
        scores = []
        for k in range(n_clusters):
            cost = ((f[i] - centers[k]) ** 2).sum() + balance * (sizes[k] * n_clusters / n - 1)
            scores.append(weight * cost - blend[i, k])
        new[i] = int(np.argmin(scores))
    means = centers.copy()
    for k in range(n_clusters):
        if (new == k).any():
            means[k] = f[new == k].mean(axis=0)
    return new, means, sum(((f[i] - means[new[i]]) ** 2).sum() for i in range(n))
