"""Tensor learning against loops: every block's promise, and the printed rules that break it."""

import numpy as np
import pytest
import torch

from configs.errors import ConfigError, DataRefused
from fedmvc_client.solvers import embeddings
from fedmvc_client.solvers.consensus_factors import ConsensusFactors, project_simplex
from fedmvc_client.solvers.embeddings import leading_embedding, polar
from fedmvc_client.solvers.feature_preparation import standardise
from fedmvc_client.solvers.tensor_learning import TensorLearning
from fedmvc_server.planted import without_cells
from strategies.feature_ranking import rank_features, row_norm_scores
from tests.solvers.mufsht_reference import (
    consensus,
    khatri_rao,
    laplacian,
    objective,
    planted,
    unfold,
    without_views,
)

SETTINGS = {"tau": 0.3, "beta": 0.02, "lam": 0.1, "mu": 0.05, "temp": 0.5, "ridge": 0.1}
BLOCKS = (
    "update_embeddings",
    "update_weights",
    "update_consensus",
    "update_imputation",
    "update_view_weights",
)
SMALL_SIZES = ((12, 5), (9, 4), (15, 6))


def small(seed=0, missing=0.3):
    """Raw views of 40 samples, some single cells and some whole views missing."""
    views, _ = planted(seed, n=40, sizes=SMALL_SIZES, n_clusters=3)
    return without_cells(without_views(views, missing / 2, seed), missing / 2, seed + 1)


def learning(raw, rank=4, **options):
    prepared = [standardise(view)[0] for view in raw]
    return TensorLearning(
        [p.values for p in prepared],
        [p.observed for p in prepared],
        rank,
        **(SETTINGS | options),
    )


def random_weights(raw, rank=4, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(view.shape[1], rank)) for view in raw]


def state_of(model, raw):
    """Return what `objective` reads; X and E are told apart by what was observed."""
    prepared = [standardise(view)[0] for view in raw]
    filled = [view.filled.numpy().copy() for view in model._views]
    x = [p.values for p in prepared]
    return {
        "X": x,
        "E": [whole - part for whole, part in zip(filled, x, strict=True)],
        "W": model.weights,
        "Z": model.embeddings,
        "Q": [laplacian(part) for part in x],
        "A": model.factors.directions.numpy().copy(),
        "P": model.sample_factor,
        "M": model.factors.shares.numpy().copy(),
        "alpha": model.view_weights,
    }


def settings_of(**options):
    return SETTINGS | options


# -- monotone blocks -------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["svd", "weights"])
@pytest.mark.parametrize("lam", [0.0, 0.1])
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("simplex", ["view", "sample", "none"])
def test_every_block_lowers_the_objective(simplex, missing, lam, start):
    raw = small(missing=missing)
    model = learning(raw, simplex=simplex, lam=lam)
    if start == "svd":
        model.start_svd()
    else:
        model.start_from(random_weights(raw))
    settings = settings_of(lam=lam)
    state = state_of(model, raw)
    before = objective(state, settings)
    assert model.objective() == pytest.approx(before, abs=1e-12)
    first = before
    for _ in range(4):
        for block in BLOCKS:
            getattr(model, block)()
            after = objective(state_of(model, raw) | {"Q": state["Q"]}, settings)
            assert after <= before + 1e-12, block
            assert model.objective() == pytest.approx(after, abs=1e-12), block
            before = after
    assert before < first - 1e-2


@pytest.mark.parametrize("simplex", ["view", "sample", "none"])
def test_constraints_hold_after_sweeps(simplex):
    raw = small()
    model = learning(raw, simplex=simplex)
    model.start_svd()
    for _ in range(5):
        model.sweep()
    for z in model.embeddings:
        np.testing.assert_allclose(z @ z.T, np.eye(4), atol=1e-12)
    assert model.view_weights.sum() == pytest.approx(1.0, abs=1e-15)
    assert (model.view_weights > 0).all()
    state = state_of(model, raw)
    for e, view in zip(state["E"], raw, strict=True):
        assert not e[~np.isnan(view).T].any()
        assert e.any()
    for name, on_simplex in (("M", "view"), ("P", "sample")):
        sums = state[name].sum(axis=1)
        assert np.allclose(sums, 1.0) == (simplex == on_simplex)
        assert (state[name] >= 0).all() or simplex != on_simplex


def neighbours_of(state, name, rng):
    """Feasible states near a state that differ in one block."""
    for step in (1e-3, 1e-2, 0.3):
        for v in range(len(state["X"])):
            changed = [part.copy() for part in state[name]]
            noise = step * rng.normal(size=changed[v].shape)
            if name == "Z":
                left, _, right = np.linalg.svd(changed[v] + noise, full_matrices=False)
                changed[v] = left @ right
            elif name == "E":
                changed[v] += noise * (changed[v] != 0)
            elif name == "alpha":
                changed = state["alpha"] * np.exp(step * rng.normal(size=len(state["alpha"])))
                changed = changed / changed.sum()
            else:
                changed[v] += noise
            yield state | {name: np.array(changed) if name == "alpha" else changed}


@pytest.mark.parametrize(
    ("block", "name", "options"),
    [
        ("update_embeddings", "Z", {}),
        ("update_weights", "W", {"lam": 0.0}),
        ("update_imputation", "E", {}),
        ("update_view_weights", "alpha", {}),
    ],
)
def test_exact_blocks_end_at_a_minimum(block, name, options):
    raw = small()
    settings = settings_of(**options)
    model = learning(raw, **options)
    model.start_svd()
    model.sweep()
    getattr(model, block)()
    state = state_of(model, raw)
    reached = objective(state, settings)
    rng = np.random.default_rng(0)
    for _ in range(5):
        for other in neighbours_of(state, name, rng):
            assert objective(other, settings) > reached


def test_repeated_weight_steps_end_at_a_minimum_with_the_laplacian():
    raw = small()
    settings = settings_of(beta=0.3, lam=0.5)
    model = learning(raw, beta=0.3, lam=0.5)
    model.start_svd()
    for _ in range(100):
        model.update_weights()
    state = state_of(model, raw)
    zero_rows = [int((w == 0).all(axis=1).sum()) for w in state["W"]]
    assert 0 < sum(zero_rows) < sum(len(w) for w in state["W"])
    reached = objective(state, settings)
    for other in neighbours_of(state, "W", np.random.default_rng(1)):
        assert objective(other, settings) > reached


def test_squared_rows_are_the_share_that_the_embedding_explains():
    raw = small(missing=0.0)
    model = learning(raw, lam=0.0, beta=0.0)
    model.start_svd()
    model.sweep()
    for view, w, z in zip(raw, model.weights, model.embeddings, strict=True):
        for feature, row in zip(view.T, w, strict=True):
            centred = feature - feature.mean()
            fitted = z.T @ (z @ centred)
            assert row @ row == pytest.approx((fitted @ centred) / (centred @ centred))


def test_descend_stops_when_little_changes():
    model = learning(small())
    model.start_svd()
    history = model.descend(200, 1e-4)
    changes = -np.diff(history)
    assert (changes >= -1e-12).all()
    assert 2 < len(history) < 200
    assert changes[-1] <= 1e-4 * abs(history[-2])
    assert (changes[:-1] > 1e-4 * np.abs(history[:-2])).all()
    assert len(model.descend(3, 0.0)) == 3


# -- CP factors ------------------------------------------------------------------------------------


def cp_case(seed=0, k=4, n=9, n_views=3):
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(k, k)), rng.normal(size=(n, k)), rng.random((n_views, k))
    return rng.normal(size=(k, n, n_views)), factors


def consensus_factors(factors, simplex="none", ridge=0.0):
    fast = ConsensusFactors(0.7, ridge, simplex)
    fast.directions, fast.samples, fast.shares = (torch.as_tensor(factor) for factor in factors)
    return fast


def slices(tensor):
    return [torch.tensor(np.ascontiguousarray(tensor[:, :, v])) for v in range(tensor.shape[2])]


def test_khatri_rao_orders_fit_the_unfoldings():
    _, (a, p, m) = cp_case()
    tensor = consensus(a, p, m)
    np.testing.assert_allclose(unfold(tensor, 0), a @ khatri_rao(m, p).T, atol=1e-12)
    np.testing.assert_allclose(unfold(tensor, 1), p @ khatri_rao(m, a).T, atol=1e-12)
    np.testing.assert_allclose(unfold(tensor, 2), m @ khatri_rao(p, a).T, atol=1e-12)
    # the orders printed in (9) and (11)
    assert not np.allclose(unfold(tensor, 1), p @ khatri_rao(a, m).T)
    assert not np.allclose(unfold(tensor, 2), m @ khatri_rao(a, p).T)


@pytest.mark.parametrize(
    ("update", "name", "mode"),
    [
        ("update_directions", "directions", 0),
        ("update_samples", "samples", 1),
        ("update_shares", "shares", 2),
    ],
)
def test_a_least_squares_step_solves_the_unfolded_problem(update, name, mode):
    tensor, (a, p, m) = cp_case()
    others = [(m, p), (m, a), (p, a)][mode]
    fast = consensus_factors((a, p, m))
    getattr(fast, update)(slices(tensor))
    design = khatri_rao(*others)
    expected = np.linalg.lstsq(design, unfold(tensor, mode).T, rcond=None)[0].T
    np.testing.assert_allclose(getattr(fast, name), expected, atol=1e-10)


def test_ridge_shares_solve_the_augmented_problem():
    tensor, (a, p, m) = cp_case()
    fast = consensus_factors((a, p, m), ridge=0.4)
    fast.update_shares(slices(tensor))
    design = np.vstack([np.sqrt(0.7) * khatri_rao(p, a), np.sqrt(0.4) * np.eye(4)])
    target = np.vstack([np.sqrt(0.7) * unfold(tensor, 2).T, np.zeros((4, 3))])
    expected = np.linalg.lstsq(design, target, rcond=None)[0].T
    np.testing.assert_allclose(fast.shares, expected, atol=1e-10)


@pytest.mark.parametrize("simplex", ["view", "sample", "none"])
def test_the_penalty_is_the_misfit_and_never_rises(simplex):
    tensor, (a, p, m) = cp_case()
    p, m = np.abs(p), np.abs(m)
    p, m = p / p.sum(axis=1, keepdims=True), m / m.sum(axis=1, keepdims=True)
    fast = consensus_factors((a, p, m), simplex, ridge=0.3)
    views = slices(tensor)
    expected = 0.7 * ((tensor - consensus(a, p, m)) ** 2).sum() + 0.3 * (m**2).sum()
    before = fast.penalty(views)
    assert before == pytest.approx(expected, rel=1e-12)
    for _ in range(5):
        for update in ("update_directions", "update_samples", "update_shares"):
            getattr(fast, update)(views)
            assert fast.penalty(views) <= before + 1e-12
            before = fast.penalty(views)
    assert before < 0.9 * expected


def test_a_step_leaves_directions_alone_that_the_data_do_not_see():
    tensor, (a, p, m) = cp_case()
    m[:, 1] = m[:, 0]
    p[:, 1] = p[:, 0]
    fast = consensus_factors((a, p, m))
    before = fast.penalty(slices(tensor))
    fast.update_directions(slices(tensor))
    assert fast.penalty(slices(tensor)) <= before
    difference = (fast.directions[:, 0] - fast.directions[:, 1]).numpy()
    np.testing.assert_allclose(difference, a[:, 0] - a[:, 1], atol=1e-9)


def test_simplex_projection_is_the_nearest_point():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 4)) * 2
    found = project_simplex(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert (found >= 0).all()
    distance = ((found - rows) ** 2).sum(axis=1)
    for point in rng.dirichlet(np.full(4, 0.5), size=500):
        assert (((point - rows) ** 2).sum(axis=1) >= distance - 1e-12).all()
    corners = project_simplex(torch.tensor([[0.2, 0.8], [5.0, 0.0], [-3.0, -3.0]])).numpy()
    np.testing.assert_allclose(corners, [[0.2, 0.8], [1, 0], [0.5, 0.5]], atol=1e-6)


# -- what is printed and does not hold -------------------------------------------------------------


@pytest.mark.parametrize("on_missing", [True, False])
def test_the_printed_imputation_raises_the_objective(on_missing):
    """(13) takes the residual where a prediction belongs, on either reading of its mask."""
    raw = small()
    model = learning(raw)
    model.start_svd()
    for _ in range(5):
        model.sweep()
    state = state_of(model, raw)
    masks = [np.isnan(view).T if on_missing else ~np.isnan(view).T for view in raw]
    values = [objective(state, SETTINGS)]
    for _ in range(3):
        residuals = (
            x + e - w @ z for x, e, w, z in zip(*(state[name] for name in "XEWZ"), strict=True)
        )
        state["E"] = [mask * r for mask, r in zip(masks, residuals, strict=True)]
        values.append(objective(state, SETTINGS))
    assert min(values[1:]) > values[0] + 1e-2
    assert values[-1] > values[1]


def test_the_printed_clip_leaves_the_simplex():
    """(12), its gamma read as 1: shift the ridge solution once, then clip."""
    rng = np.random.default_rng(0)
    y = -rng.normal(size=(200, 5))
    printed = np.maximum((1 + y.sum(axis=1, keepdims=True)) / 5 - y, 0)
    off = np.abs(printed.sum(axis=1) - 1)
    assert off.mean() > 0.1
    exact = project_simplex(torch.from_numpy(-y)).numpy()
    inside = (printed > 0).all(axis=1)
    assert 0 < inside.sum() < 200
    np.testing.assert_allclose(printed[inside], exact[inside])


def test_a_projected_ridge_solution_raises_the_objective():
    raised = 0
    for seed in range(40):
        tensor, (a, p, m) = cp_case(seed)
        m = m / m.sum(axis=1, keepdims=True)
        start = consensus_factors((a, p, m), "view", ridge=0.1)
        views = slices(tensor)
        for _ in range(3):
            start.update(views)
        found = start.shares.numpy().copy()
        free = consensus_factors((start.directions, start.samples, found), "none", ridge=0.1)
        free.update_shares(views)
        start.shares = project_simplex(free.shares)
        raised += start.penalty(views) > consensus_factors(
            (start.directions, start.samples, found), "view", ridge=0.1
        ).penalty(views)
    assert raised > 20


def test_without_orthonormal_embeddings_the_objective_has_no_minimum():
    """W/s with s Z and s A keeps the fit and makes every penalty on W as small as one likes."""
    raw = small()
    model = learning(raw)
    model.start_svd()
    model.sweep()
    state = state_of(model, raw)
    state["Z"] = [state["A"] @ np.diag(m) @ state["P"].T for m in state["M"]]
    values = [
        objective(
            state
            | {
                "W": [w / s for w in state["W"]],
                "Z": [s * z for z in state["Z"]],
                "A": s * state["A"],
            },
            SETTINGS,
        )
        for s in (1, 10, 100, 1e4)
    ]
    assert (np.diff(values) < 0).all()
    w = model.weights
    penalty = sum(np.linalg.norm(part, axis=1).sum() / len(part) for part in w)
    assert values[0] - values[-1] > SETTINGS["beta"] * penalty


# -- invariance ------------------------------------------------------------------------------------


def scores(model, rounds=6):
    for _ in range(rounds):
        model.sweep()
    return row_norm_scores(np.concatenate(model.weights))


def test_permuted_features_have_permuted_scores():
    raw = small()
    rng = np.random.default_rng(0)
    orders = [rng.permutation(view.shape[1]) for view in raw]
    straight = learning(raw)
    shuffled = learning([view[:, order] for view, order in zip(raw, orders, strict=True)])
    straight.start_svd()
    shuffled.start_svd()
    starts = np.cumsum([0] + [view.shape[1] for view in raw])
    joint = np.concatenate([s + order for s, order in zip(starts, orders, strict=False)])
    np.testing.assert_allclose(scores(shuffled), scores(straight)[joint], atol=1e-10)


def test_permuted_samples_have_the_same_scores():
    raw = small()
    order = np.random.default_rng(0).permutation(40)
    straight, shuffled = learning(raw), learning([view[order] for view in raw])
    for model in (straight, shuffled):
        model.start_from(random_weights(raw))
    np.testing.assert_allclose(scores(shuffled), scores(straight), atol=1e-10)
    np.testing.assert_allclose(shuffled.sample_factor, straight.sample_factor[order], atol=1e-9)


def test_other_units_have_the_same_scores():
    raw = small()
    rng = np.random.default_rng(0)
    changed = [
        view * rng.uniform(0.01, 100, view.shape[1]) + rng.normal(size=view.shape[1]) * 30
        for view in raw
    ]
    straight, other = learning(raw), learning(changed)
    straight.start_svd()
    other.start_svd()
    np.testing.assert_allclose(scores(other), scores(straight), atol=1e-10)


@pytest.mark.parametrize("start", ["svd", "weights"])
def test_constant_and_unobserved_features_score_0(start):
    raw = small()
    raw[1][:, 2] = np.where(np.isnan(raw[1][:, 2]), np.nan, 0.3)
    raw[1][:, 5] = np.nan
    model = learning(raw)
    if start == "svd":
        model.start_svd()
    else:
        model.start_from(random_weights(raw))
    found = scores(model)
    assert np.flatnonzero(found == 0).tolist() == [12 + 2, 12 + 5]
    assert not model.imputed(1)[[2, 5]].any()


def test_the_number_of_threads_does_not_matter():
    raw, _ = planted(0, n=300)
    raw = without_cells(raw, 0.1, 0)

    def run(n_threads):
        model = learning(raw, 5, n_threads=n_threads)
        model.start_svd()
        return model.descend(4, 0.0), model.weights

    history, weights = run(1)
    for n_threads in (2, 5, None):
        again, others = run(n_threads)
        assert again == history
        assert all(np.array_equal(a, b) for a, b in zip(weights, others, strict=True))


def test_a_new_start_forgets_the_run_before():
    raw = small()
    model = learning(raw)
    model.start_svd()
    history = model.descend(3, 0.0)
    model.start_svd()
    assert model.descend(3, 0.0) == history


# -- embeddings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gram_size", [0, 1000])
@pytest.mark.parametrize("shape", [(30, 60), (60, 30)])
def test_the_start_is_a_truncated_svd(monkeypatch, shape, gram_size):
    monkeypatch.setattr(embeddings, "GRAM_SIZE", gram_size)
    rng = np.random.default_rng(0)
    view = rng.normal(size=(shape[0], 4)) @ rng.normal(size=(4, shape[1]))
    view += 0.3 * rng.normal(size=shape)
    found, defined = leading_embedding(torch.from_numpy(view), 4)
    right = np.linalg.svd(view, full_matrices=False)[2][:4]
    assert defined == 4
    np.testing.assert_allclose(found.T @ found, right.T @ right, atol=1e-9)


def test_a_view_of_few_features_has_an_embedding_of_full_size():
    view = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 20)))
    found, defined = leading_embedding(view, 5)
    assert defined == 2
    np.testing.assert_allclose(found @ found.T, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(view @ found.T @ found, view, atol=1e-12)


def test_polar_is_the_nearest_orthonormal_matrix():
    matrix = np.random.default_rng(0).normal(size=(4, 11))
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    np.testing.assert_allclose(polar(torch.from_numpy(matrix)), left @ right, atol=1e-12)
    found = polar(torch.zeros(3, 7, dtype=torch.float64))
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-12)


def test_views_narrower_than_k_can_be_learned():
    raw, _ = planted(0, n=60, sizes=((2, 2), (12, 6)), n_clusters=3)
    model = learning(raw, 5)
    model.start_svd()
    history = model.descend(10, 0.0)
    assert (np.diff(history) <= 1e-12).all()


# -- missing cells and views -----------------------------------------------------------------------


def test_missing_cells_are_predicted_better_than_by_the_mean():
    full, _ = planted(3)
    raw = without_cells(full, 0.3, 0)
    model = learning(raw, 5, tau=0.1, mu=0.005)
    model.start_svd()
    model.descend(15, 0.0)
    for v, (view, holes) in enumerate(zip(full, raw, strict=True)):
        _, scaling = standardise(holes)
        truth = ((view - scaling.center) / scaling.spread / np.sqrt(400)).T
        missing = np.isnan(holes).T
        found = model.imputed(v)
        assert np.array_equal(found[~missing], model._views[v].filled.numpy()[~missing])
        relevant = np.linalg.norm(model.weights[v], axis=1) > 0.5
        gaps = missing & relevant[:, None]
        error = ((found - truth)[gaps] ** 2).sum() / (truth[gaps] ** 2).sum()
        assert error < 0.75


def test_a_view_that_is_not_there_takes_no_part():
    raw = small()
    absent = np.full((40, 6), np.nan)
    without = learning(raw)
    model = learning([raw[0], absent, *raw[1:]])
    without.start_svd()
    model.start_svd()
    assert model.descend(5, 0.0) == without.descend(5, 0.0)
    assert model.view_weights[1] == 0
    assert model.weights[1].shape == (6, 4)
    assert not model.weights[1].any()
    assert model.embeddings[1] is None
    assert not model.imputed(1).any()
    model.start_from(random_weights([raw[0], absent, *raw[1:]]))
    assert not model.weights[1].any()


# -- planted features ------------------------------------------------------------------------------


def precision(views, informative):
    """Return the share of informative features among the first 45, gated and by norm."""
    prepared = [standardise(view)[0] for view in views]
    model = TensorLearning([p.values for p in prepared], [p.observed for p in prepared], 5)
    model.start_svd()
    model.descend(15, 0.0)
    share = np.concatenate([p.observed.mean(axis=1) for p in prepared])
    orders = (
        rank_features(model.weights, int(400 * share.mean()), rule=rule, observed_share=share, m=45)
        for rule in ("gated_pivot", "row_norm")
    )
    return [informative[order].mean() for order in orders]


@pytest.mark.parametrize(
    ("remove", "share", "gated", "row_norm"),
    [
        (without_cells, 0.0, 0.95, 0.95),
        (without_cells, 0.3, 0.92, 0.93),
        (without_cells, 0.5, 0.83, 0.93),
        (without_views, 0.3, 0.92, 0.93),
        (without_views, 0.5, 0.83, 0.93),
    ],
)
def test_planted_features_are_found(remove, share, gated, row_norm):
    cases = [planted(seed) for seed in range(5)]
    found = [
        precision(remove(views, share, seed + 99), informative)
        for seed, (views, informative) in enumerate(cases)
    ]
    assert (np.mean(found, axis=0) >= [gated, row_norm]).all()


# -- bad input, devices ----------------------------------------------------------------------------


def test_fewer_samples_than_k_are_refused():
    with pytest.raises(DataRefused, match="view set 'a' has 40 rows but k is 41"):
        learning(small(), 41, name="view set 'a'")


def test_views_without_variation_are_refused():
    with pytest.raises(DataRefused, match="the data has 2 views and 0 of them vary"):
        learning([np.ones((9, 3)), np.full((9, 2), np.nan)], 2)


def test_an_unknown_simplex_is_refused():
    with pytest.raises(ConfigError, match='simplex "rows" is unknown'):
        learning(small(), simplex="rows")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_sweep_on_cuda_equals_the_cpu_s():
    raw = without_cells(planted(0)[0], 0.1, 0)
    weights = random_weights(raw, 5)
    on_cpu, on_gpu = learning(raw, 5), learning(raw, 5, device="cuda")
    for model in (on_cpu, on_gpu):
        model.start_from(weights)
    assert on_gpu.sweep() == pytest.approx(on_cpu.sweep(), abs=1e-9)
    for found, expected in zip(on_gpu.weights, on_cpu.weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    for found, expected in zip(on_gpu.embeddings, on_cpu.embeddings, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    for v in range(3):
        np.testing.assert_allclose(on_gpu.imputed(v), on_cpu.imputed(v), atol=1e-9)
    np.testing.assert_allclose(on_gpu.view_weights, on_cpu.view_weights, atol=1e-9)
