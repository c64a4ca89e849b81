"""TensorFMVC on one machine: blobs, noise, row order, what is missing, and what is refused."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone

from configs.errors import ConfigError, DataRefused
from configs.tensor_profiles import SAMPLE_ORDER_WARNING, resolve_tensor
from fedmvc_client.estimators import TensorFMVC
from fedmvc_client.solvers.tensor_site import TensorSite
from strategies.label_coding import pack_labels, unpack_labels
from strategies.tensor_admm import TensorDriver
from tests.federation.harness import accuracy


def tensor_fmvc(n_clusters=4, **options):
    return TensorFMVC(n_clusters, **({"device": "cpu"} | options))


def blobs(seed=0, n_rows=160, n_clusters=4, dims=(4, 6, 5), gap=8.0):
    """Rows sorted by cluster: the easiest case for what depends on row order."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n_rows) * n_clusters // n_rows
    centers = [gap * rng.normal(size=(n_clusters, d)) for d in dims]
    return [c[truth] + rng.normal(size=(n_rows, c.shape[1])) for c in centers], truth


VIEWS, TRUTH = blobs()
OVERLAPPING, _ = blobs(1, gap=1.0)


def test_separable_blobs_are_found():
    model = tensor_fmvc().fit(VIEWS)
    assert accuracy(TRUTH, model.labels_) == 1.0
    assert accuracy(TRUTH, model.vote_labels_) == 1.0
    assert model.labels_.dtype == np.int64
    assert [a.shape for a in (*model.view_labels_, *model.start_labels_)] == [(160,)] * 6
    assert model.view_weights_.sum() == pytest.approx(1.0)
    assert model.agreement_.tolist() == [1.0] * 3
    assert len(model.objective_history_) == model.n_iter_ < 150
    assert model.warnings_ == []


def test_all_labels_share_the_names_of_the_result():
    model = tensor_fmvc().fit(VIEWS)
    for labels in (*model.view_labels_, *model.start_labels_, model.vote_labels_):
        assert np.array_equal(labels, model.labels_)


def test_the_constructor_only_stores():
    model = TensorFMVC(4, p=7.0, profile="no such profile", kappa=0.3)
    assert clone(model).get_params() == model.get_params()
    assert model.get_params()["kappa"] == 0.3
    with pytest.raises(ConfigError):
        model.fit(VIEWS)


def test_fit_predict_and_lists():
    as_lists = [view.tolist() for view in VIEWS]
    assert np.array_equal(tensor_fmvc().fit_predict(as_lists), tensor_fmvc().fit(VIEWS).labels_)


def test_a_view_is_left_as_it_was():
    before = [view.copy() for view in VIEWS]
    tensor_fmvc().fit(VIEWS)
    assert all(np.array_equal(a, b) for a, b in zip(before, VIEWS, strict=True))


def test_one_view_is_clustered_alone():
    model = tensor_fmvc().fit(VIEWS[:1])
    assert accuracy(TRUTH, model.labels_) == 1.0
    assert model.view_weights_.tolist() == [1.0]


# -- the same arithmetic as messages --------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"z_encoding": "float16", "orientation": "view"},
        {"profile": "paper", "orientation": "unfold", "max_iter": 12},
        {"profile": "paper", "max_iter": 6},
    ],
)
def test_packed_labels_and_encoded_blends_give_the_same_bits(options):
    """What a federation sends, by hand: bytes of labels up, Z as it is encoded down."""
    holes = np.arange(160) % 9 == 0
    views = [OVERLAPPING[0], np.where(holes[:, None], np.nan, OVERLAPPING[1])]
    model = tensor_fmvc(random_state=3, **options).fit(views)

    rounds = options.pop("max_iter", 150)
    settings = resolve_tensor(options.pop("profile", None), **options)
    sites = {
        name: TensorSite(view, settings, 4, seed=3, position=m, device="cpu")
        for m, (name, view) in enumerate(zip("ab", views, strict=True))
    }

    def sent(name, labels):
        held = sites[name].held
        received = np.full(160, -1)
        packed = pack_labels(labels[labels >= 0], 4)
        received[held] = unpack_labels(packed, int(held.sum()), 4)
        return received

    starts = {name: site.start() for name, site in sites.items()}
    driver = TensorDriver(
        settings,
        4,
        {name: sent(name, labels) for name, (labels, _) in starts.items()},
        {name: trace for name, (_, trace) in starts.items()},
        alone={name: sent(name, site.alone()) for name, site in sites.items()},
        tol=1e-6,
        max_rounds=rounds,
    )
    for name, site in sites.items():
        site.rename(driver.names[name])
    while not driver.done:
        labels, traces = {}, {}
        for name, site in sites.items():
            query = driver.query(name)
            blend = None
            if query.z is not None:
                shape, kind = query.z.shape, query.z.dtype
                blend = np.frombuffer(query.z.tobytes(), kind).reshape(shape)
            own, traces[name] = site.sweep(query.weight, query.mu, blend, query.scale)
            labels[name] = sent(name, own)
        driver.advance(labels, traces)
    result = driver.result()
    assert np.array_equal(result.labels, model.labels_)
    assert np.array_equal(result.vote, model.vote_labels_)
    assert np.array_equal(result.view_weights, model.view_weights_)
    assert driver.rounds == model.n_iter_ > 1
    for found, expected in zip(model.view_labels_, result.site_labels.values(), strict=True):
        assert np.array_equal(found, expected)


# -- row order ------------------------------------------------------------------------------------


def all_labels(model):
    return [model.labels_, model.vote_labels_, *model.view_labels_, *model.start_labels_]


def permuted_equal(views, n_clusters=4, **options):
    order = np.random.default_rng(5).permutation(views[0].shape[0])
    straight = tensor_fmvc(n_clusters, **options).fit(views)
    shuffled = tensor_fmvc(n_clusters, **options).fit([view[order] for view in views])
    assert shuffled.view_weights_.tolist() == straight.view_weights_.tolist()
    return all(
        np.array_equal(a, b[order])
        for a, b in zip(all_labels(shuffled), all_labels(straight), strict=True)
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gap", [0.0, 1.0, 8.0])
def test_permuted_rows_give_the_permuted_result(seed, gap):
    """Exactly, on structure and on pure noise, where ties between clusters are common."""
    views, _ = blobs(seed, gap=gap)
    assert permuted_equal(views, random_state=seed)


def test_row_order_does_not_matter_with_holes_and_sparse_views():
    dense = OVERLAPPING[0].copy()
    dense[::7] = np.nan
    dense[3, 1] = np.nan
    counts = sparse.csr_array(np.random.default_rng(0).poisson(0.3, size=(160, 40)))
    assert permuted_equal([dense, counts, OVERLAPPING[1]])


def test_the_papers_local_term_does_not_know_row_order_either():
    assert permuted_equal(OVERLAPPING, profile="paper", orientation="unfold", max_iter=20)


@pytest.mark.parametrize("options", [{"orientation": "sample"}, {"sweep": "natural"}])
def test_sample_orientation_and_natural_sweeps_do(options):
    options = {"orientation": "unfold"} | options
    order = np.random.default_rng(5).permutation(160)
    # lambda small enough for G to be more than 0 within these rounds
    model = tensor_fmvc(profile="paper", lam=0.05, max_iter=30, **options)
    straight = model.fit(OVERLAPPING).labels_
    shuffled = clone(model).fit([view[order] for view in OVERLAPPING]).labels_
    assert not np.array_equal(shuffled, straight[order])


@pytest.mark.parametrize("n_clusters", [2, 8])
def test_noise_scores_like_random_labels(n_clusters):
    """Noise against contiguous blocks of rows: what a method reads off row order shows here."""
    truth = np.arange(200) * n_clusters // 200
    found, chance = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        views = [rng.normal(size=(200, 10)) for _ in range(3)]
        labels = tensor_fmvc(n_clusters, random_state=seed).fit_predict(views)
        found.append(accuracy(truth, labels))
        chance.append(np.mean([accuracy(truth, rng.permutation(labels)) for _ in range(20)]))
    assert abs(np.mean(found) - np.mean(chance)) < 0.03


def test_the_same_seed_gives_the_same_result_on_any_number_of_threads():
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            found.append(tensor_fmvc().fit(OVERLAPPING))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert other.objective_history_ == found[0].objective_history_
        assert np.array_equal(other.labels_, found[0].labels_)


# -- what a reader is told ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"profile": "paper"}, True),
        ({"orientation": "sample"}, True),
        ({"profile": "paper", "orientation": "unfold"}, False),
        ({}, False),
    ],
)
def test_sample_orientation_says_what_its_scores_are(options, warned):
    model = tensor_fmvc(max_iter=3, **options).fit(OVERLAPPING)
    assert model.warnings_.count(SAMPLE_ORDER_WARNING) == warned


def test_no_convergence_is_said():
    model = tensor_fmvc(max_iter=2).fit(OVERLAPPING)
    assert model.n_iter_ == 2
    assert any("max_iter = 2" in warning for warning in model.warnings_)


# -- missing cells --------------------------------------------------------------------------------


def test_a_row_that_a_view_lacks_has_no_vote_of_it():
    views = [view.copy() for view in VIEWS]
    views[1][::5] = np.nan
    model = tensor_fmvc().fit(views)
    missing = np.arange(160) % 5 == 0
    for labels in (model.view_labels_[1], model.start_labels_[1]):
        assert np.array_equal(labels < 0, missing)
    assert accuracy(TRUTH, model.labels_) == 1.0
    assert (model.labels_ >= 0).all()


def test_a_row_without_any_cell_has_no_label():
    views = [view.copy() for view in VIEWS]
    for view in views:
        view[[3, 90]] = np.nan
    model = tensor_fmvc().fit(views)
    assert np.flatnonzero(model.labels_ < 0).tolist() == [3, 90]
    assert np.flatnonzero(model.vote_labels_ < 0).tolist() == [3, 90]
    assert model.warnings_ == ["2 rows hold no observed cell: their label is -1"]


def test_a_missing_cell_is_filled_and_said():
    views = [view.copy() for view in VIEWS]
    views[2][7, 0] = np.nan
    model = tensor_fmvc().fit(views)
    assert accuracy(TRUTH, model.labels_) == 1.0
    (warning,) = model.warnings_
    assert warning.startswith("view 2: 1 of 160 rows")


def test_masked_cells_are_missing_cells():
    holes = np.zeros(VIEWS[0].shape, dtype=bool)
    holes[::4] = True
    masked = [np.ma.masked_array(VIEWS[0], holes), *VIEWS[1:]]
    plain = [np.where(holes, np.nan, VIEWS[0]), *VIEWS[1:]]
    assert np.array_equal(tensor_fmvc().fit_predict(masked), tensor_fmvc().fit_predict(plain))


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_sparse_views_are_the_dense_ones(kind):
    views = [np.where(view > 2, view, 0.0) for view in VIEWS]
    dense = tensor_fmvc(scaling="none").fit(views)
    thin = tensor_fmvc(scaling="none").fit([kind(view) for view in views])
    assert np.array_equal(thin.labels_, dense.labels_)


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_clusters": 0}, "n_clusters is 0"),
        ({"n_clusters": 1}, "n_clusters is 1"),
        ({"n_clusters": 2.5}, "n_clusters is 2.5"),
        ({"profile": "consensus"}, "consensus"),
        ({"profile": "robust"}, "robust"),
        ({"p": 0.0}, "p is 0.0"),
        ({"p": 1.5}, "p is 1.5"),
        ({"r": 1.0}, "r is 1.0"),
        ({"orientation": "rows"}, "rows"),
        ({"kappa": 1.0}, "kappa is 1.0"),
        ({"profile": "paper", "kappa": 0.4}, "kappa"),
        ({"lam": 1.0}, "lambda"),
        ({"anchors": 3}, "anchors is 3"),
        ({"anchor_kind": "kmeans"}, "kmeans"),
        ({"z_encoding": "int4"}, "int4"),
        ({"local_sweeps": 0}, "local_sweeps is 0"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"random_state": -1}, "random_state is -1"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_settings_out_of_range_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        tensor_fmvc(**({"n_clusters": 4} | options)).fit(VIEWS)


def spoiled(value):
    view = VIEWS[1].copy()
    view[2, 1] = value
    return [VIEWS[0], view]


@pytest.mark.parametrize(
    ("views", "words"),
    [
        ([], "0 views"),
        ([VIEWS[0], VIEWS[1][:-1]], "view 1 has 159 rows, view 0 has 160"),
        ([VIEWS[0], sparse.csr_array(VIEWS[1][:-1])], "view 1 has 159 rows, view 0 has 160"),
        ([view[:3] for view in VIEWS], "n_clusters is 4 but there are 3 rows"),
        (spoiled(np.inf), "view 1 has 1 infinite"),
        (spoiled(-np.inf), "view 1 has 1 infinite"),
        ([VIEWS[0], np.ones((160, 3))], "all 160 rows of view 1 are identical"),
        ([VIEWS[0], np.full((160, 3), np.nan)], "view 1 has 0 rows with data"),
        ([VIEWS[0], np.where(np.arange(160)[:, None] < 3, VIEWS[1], np.nan)], "view 1 has 3 rows"),
        ([VIEWS[0], [["a"]] * 160], "view 1 is not a table of numbers"),
        ([VIEWS[0] * 1j], "view 0 is not a table of numbers"),
        ([sparse.csr_array(VIEWS[0] * 1j)], "view 0 is not a table of numbers"),
        ([np.arange(160)], r"view 0 has shape \(160,\)"),
        ([VIEWS[0], np.zeros((160, 0))], r"view 1 has shape \(160, 0\)"),
    ],
)
def test_views_that_cannot_be_clustered_are_refused(views, words):
    with pytest.raises(DataRefused, match=words) as refused:
        tensor_fmvc().fit(views)
    assert "\n" not in str(refused.value)


def test_a_tight_view_that_overrules_the_others_is_named():
    """Eq. 21 trusts tight clusters, also where they have nothing to do with the other views."""
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=300)
    views = [rng.normal(size=(300, 3)) + 3 * rng.normal(size=(4, 3))[labels] for _ in range(2)]
    unrelated = np.eye(4)[rng.integers(4, size=300)]

    model = TensorFMVC(4, device="cpu").fit([*views, unrelated])

    (warning,) = [w for w in model.warnings_ if "of the final vote" in w]
    assert warning.startswith("view 2 has ")
    assert not [w for w in TensorFMVC(4, device="cpu").fit(views).warnings_ if "view 2" in w]


@pytest.mark.parametrize("lacking", [0.1, 0.3])
def test_rows_that_one_of_two_views_lacks_get_the_other_views_label(lacking):
    """The tensor took the gap for disagreement and drove these rows off their label."""
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=300)
    views = [rng.normal(size=(300, 2)) + 6 * np.eye(4)[truth][:, :2] for _ in range(2)]
    views = [view + 6 * np.eye(4)[truth][:, 2:] * [1, -1] for view in views]
    rows = rng.choice(300, int(300 * lacking), replace=False)
    views[0][rows] = np.nan

    model = TensorFMVC(4, device="cpu").fit(views)

    own = model.start_labels_[1]
    assert (model.labels_[rows] == own[rows]).mean() > 0.95
    assert (model.view_labels_[0][rows] == -1).all()
