"""Tensor learning of Fed-MUFSHT written the slow, obvious way, and planted data."""

from __future__ import annotations

import numpy as np

from fedmvc_server.planted import PLANTED_SIZES, planted_views


def planted(seed, n=400, sizes=PLANTED_SIZES, n_clusters=5):
    """Return planted views (n, d_v) and which of all features are informative."""
    found = planted_views(n, seed, sizes=sizes, n_clusters=n_clusters)
    return found.views, found.informative


def without_views(views, share, seed):
    """Leave out whole views of some samples; every sample keeps one."""
    rng = np.random.default_rng(seed)
    n = len(views[0])
    gone = rng.random((n, len(views))) < share
    bare = gone.all(axis=1)
    gone[bare, rng.integers(len(views), size=int(bare.sum()))] = False
    return [np.where(gone[:, [v]], np.nan, view) for v, view in enumerate(views)]


def unfold(tensor, mode):
    """Kolda's unfolding: column of (i_0, i_1, ...) without the mode, the first index fastest."""
    shape = tensor.shape
    rest = [axis for axis in range(tensor.ndim) if axis != mode]
    out = np.zeros((shape[mode], int(np.prod([shape[axis] for axis in rest]))))
    for index in np.ndindex(*shape):
        column, stride = 0, 1
        for axis in rest:
            column += index[axis] * stride
            stride *= shape[axis]
        out[index[mode], column] = tensor[index]
    return out


def khatri_rao(slow, fast):
    """Column-wise Kronecker product; the first factor's row changes slowly."""
    return np.array([a * b for a in slow for b in fast])


def consensus(directions, samples, shares):
    """Return the tensor (k, n, V) with entries ``sum_j A_aj P_ij M_vj``."""
    k, r = directions.shape
    tensor = np.zeros((k, len(samples), len(shares)))
    for a, i, v in np.ndindex(*tensor.shape):
        tensor[a, i, v] = sum(directions[a, j] * samples[i, j] * shares[v, j] for j in range(r))
    return tensor


def laplacian(features, neighbours=5):
    """Dense Q: the strongest cosines of each feature, a pair where either keeps the other."""
    d = len(features)
    lengths = [np.linalg.norm(row) for row in features]
    similar = np.zeros((d, d))
    for i in range(d):
        for j in range(d):
            if i != j and lengths[i] > 0 and lengths[j] > 0:
                similar[i, j] = features[i] @ features[j] / lengths[i] / lengths[j]
    kept = np.zeros((d, d))
    for i in range(d):
        for j in np.argsort(-np.abs(similar[i]), kind="stable")[:neighbours]:
            kept[i, j] = kept[j, i] = similar[i, j]
    degree = np.abs(kept).sum(axis=1)
    q = np.zeros((d, d))
    for i in range(d):
        for j in range(d):
            if degree[i] > 0 and degree[j] > 0:
                q[i, j] = (i == j) - kept[i, j] / np.sqrt(degree[i] * degree[j])
    return q


def objective(state, settings):
    """F, term by term, of a dict with lists X, E, W, Z, Q, arrays A, P, M and alpha."""
    k = state["A"].shape[0]
    n_views = len(state["X"])
    total = settings["ridge"] * (state["M"] ** 2).sum() / n_views
    for v in range(n_views):
        x, e, w, z = (state[name][v] for name in "XEWZ")
        alpha = state["alpha"][v]
        parts = settings["mu"] * (e**2).sum()
        parts += settings["lam"] * np.trace(w.T @ state["Q"][v] @ w)
        parts += settings["beta"] * sum(np.sqrt((row**2).sum()) for row in w)
        parts += alpha * ((x + e - w @ z) ** 2).sum()
        total += parts / len(x)
        model = state["A"] @ np.diag(state["M"][v]) @ state["P"].T
        total += settings["tau"] / k * ((z - model) ** 2).sum()
        total += settings["temp"] * alpha * np.log(alpha)
    return total
