"""Without multipliers, at a fixed mu and fixed weights, the `plus` rounds are block descent."""

import numpy as np
import pytest

from configs.tensor_profiles import resolve_tensor
from fedmvc_client.solvers.tensor_site import TensorSite
from strategies.tensor_svd import shrink

MU, LAMBDA, P = 0.1, 0.4, 0.9


def indicator(labels, n_clusters):
    return (labels[:, None] == np.arange(n_clusters)).astype(float)


@pytest.mark.parametrize("seed", range(3))
def test_the_total_never_rises(seed):
    rng = np.random.default_rng(seed)
    truth = rng.integers(4, size=160)
    views = [rng.normal(size=(160, 3)) + rng.normal(size=(4, 3))[truth] * s for s in (1, 2, 3)]
    settings = resolve_tensor(balance=0.0)
    sites = [
        TensorSite(view, settings, 4, seed=seed, position=m, device="cpu")
        for m, view in enumerate(views)
    ]
    for site in sites:
        site.start()
    # far from any optimum: labels that a strong blend of noise dictates
    labels, traces = zip(
        *(site.sweep(1.0, 50.0, rng.normal(size=(160, 4)), 1.0) for site in sites), strict=True
    )
    totals = []
    g, penalty = None, 0.0
    for _ in range(30):
        h = np.stack([indicator(own, 4) for own in labels], axis=2)
        if g is not None:
            totals.append(sum(traces) + MU / 2 * ((h - g) ** 2).sum() + LAMBDA * penalty)
        g, penalty = shrink(h, LAMBDA / MU, P, "unfold", iterations=200)
        totals.append(sum(traces) + MU / 2 * ((h - g) ** 2).sum() + LAMBDA * penalty)
        labels, traces = zip(
            *(site.sweep(1.0, MU, g[:, :, m], 1.0) for m, site in enumerate(sites)), strict=True
        )
    assert np.diff(totals).max() <= 1e-9 * totals[0]
    assert totals[-1] < 0.8 * totals[0]
