"""HKMVFC on one machine: scikit-learn habits, literal refusals, warnings in words."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from configs.errors import ConfigError, DataRefused
from fedmvc_client.estimators import HKMVFC
from fedmvc_server.cardio import gaussian_views
from tests.federation.harness import accuracy, centralised, federate, plan_of, workers_of

VIEWS, TRUTH = gaussian_views(150, 0, n_clusters=3, dims=(2, 3))


def hkmvfc(n_clusters=3, **options):
    return HKMVFC(n_clusters, device="cpu", **options)


def test_fit_gives_what_the_page_names():
    model = hkmvfc().fit(VIEWS)
    assert accuracy(TRUTH, model.labels_) == 1.0
    assert model.membership_.shape == (150, 3)
    np.testing.assert_allclose(model.membership_.sum(axis=1), 1.0, atol=1e-12)
    assert np.array_equal(model.labels_, model.membership_.argmax(axis=1))
    assert [a.shape for a in model.cluster_centers_] == [(3, 2), (3, 3)]
    assert model.view_weights_.sum() == pytest.approx(1.0)
    assert len(model.objective_history_) <= model.n_iter_ <= 200
    assert model.warnings_ == []


def test_the_constructor_only_stores():
    model = HKMVFC(3, fuzzifier=0.5, profile="no such profile")
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(ConfigError):
        model.fit(VIEWS)


def test_predict_returns_the_fitted_labels_and_takes_new_rows():
    model = hkmvfc().fit(VIEWS)
    assert np.array_equal(model.predict(VIEWS), model.labels_)
    np.testing.assert_allclose(model.predict_membership(VIEWS), model.membership_, atol=1e-12)
    half = [v[:40].copy() for v in VIEWS]
    half[1][:] = np.nan  # a missing view is possible though none was missing in fit
    assert accuracy(TRUTH[:40], model.predict(half)) > 0.9
    assert np.array_equal(hkmvfc().fit_predict(VIEWS), model.labels_)


def test_lists_and_integers_are_taken():
    as_lists = [np.rint(v).astype(int).tolist() for v in VIEWS]
    assert accuracy(TRUTH, hkmvfc().fit_predict(as_lists)) > 0.95


def test_the_estimator_is_the_one_site_federation():
    """Same driver, same seeds: the same centres to the last digits."""
    for profile in ("paper", "robust"):
        model = hkmvfc(profile=profile, max_iter=50).fit(VIEWS)
        result = federate(plan_of(3, profile=profile), workers_of({"a": {"views": VIEWS}}))
        for found, expected in zip(model.cluster_centers_, result.model.centers, strict=True):
            assert np.abs(found - expected).max() < 1e-12
        assert np.array_equal(model.labels_, result.site_results["a"].labels)
        assert model.n_iter_ == result.rounds


def test_the_fit_reaches_the_plain_iterations_objective():
    plan = plan_of(3, heat_kernel="one", scaling="standard", tol=1e-12, max_rounds=200)
    slow = centralised(VIEWS, plan)
    fast = hkmvfc(heat_kernel="one", scaling="standard", tol=1e-12).fit(VIEWS)
    assert fast.objective_history_[-1] <= slow.objectives[-1] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_clusters": 0}, "n_clusters is 0"),
        ({"fuzzifier": 1.0}, "1.0"),
        ({"view_exponent": 1.0}, "1.0"),
        ({"bandwidth": 0.0}, "0"),
        ({"n_init": 0}, "n_init"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"profile": "robust", "fuzzifier": 2.0}, "robust"),
        ({"dtype": "float16"}, "float16"),
    ],
)
def test_a_parameter_out_of_range_is_one_sentence(options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        HKMVFC(**{"n_clusters": 3, "device": "cpu", **options}).fit(VIEWS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("views", "words"),
    [
        ([], "0 views"),
        ([np.ones(4)], "view 0 has shape"),
        ([np.ones((0, 2))], r"view 0 has shape \(0, 2\)"),
        ([np.ones((4, 0))], "at least 1 row and 1 column"),
        ([np.ones((4, 2)), np.ones((3, 2))], "view 1 has 3 rows, view 0 has 4"),
        ([np.ones((2, 2))], "n_clusters is 3 but there are 2 rows"),
    ],
)
def test_views_that_do_not_fit_are_one_sentence(views, words):
    with pytest.raises(DataRefused, match=words):
        hkmvfc().fit(views)


def test_predict_needs_a_fit_and_the_fitted_columns():
    with pytest.raises(NotFittedError, match="call fit first"):
        hkmvfc().predict(VIEWS)
    with pytest.raises(DataRefused, match=r"\[2\] columns, the model was fitted on \[2, 3\]"):
        hkmvfc().fit(VIEWS).predict(VIEWS[:1])


def test_input_arrays_are_not_written_to():
    views = [v.copy() for v in VIEWS]
    views[0][0, 0] = np.inf
    before = [v.copy() for v in views]
    hkmvfc().fit(views)
    assert all(np.array_equal(a, b) for a, b in zip(views, before, strict=True))


def test_identical_rows_end_without_structure():
    model = hkmvfc().fit([np.full((20, 2), 0.1), np.full((20, 1), 7.0)])
    assert model.membership_ == pytest.approx(np.full((20, 3), 1 / 3))
    assert any(w.startswith("no structure") for w in model.warnings_)
    assert sum("constant" in w for w in model.warnings_) == 3


def test_a_fit_that_was_stopped_says_so():
    model = hkmvfc(profile="paper", max_iter=2, tol=0.0).fit(VIEWS)
    assert model.n_iter_ == 2
    assert any("max_iter = 2" in w for w in model.warnings_)


def test_more_clusters_than_the_data_have_are_noticed():
    """Two distinct records for three clusters: one cluster stays empty, or two fall together."""
    twice = [np.repeat([[0.0, 0.0], [5.0, 5.0]], 10, axis=0)]
    model = hkmvfc(heat_kernel="one").fit(twice)
    assert any("fewer than 3 distinct clusters" in w for w in model.warnings_)


def test_seeds_reproduce():
    a, b = (hkmvfc(random_state=3).fit(VIEWS) for _ in range(2))
    for x, y in zip(a.cluster_centers_, b.cluster_centers_, strict=True):
        assert np.array_equal(x, y)


def test_float32_finds_the_same_clusters():
    a, b = (hkmvfc(dtype=d).fit(VIEWS) for d in ("float64", "float32"))
    assert accuracy(a.labels_, b.labels_) == 1.0


def test_one_cluster_takes_everything():
    model = hkmvfc(1).fit(VIEWS)
    assert (model.membership_ == 1.0).all()
    assert model.warnings_ == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_clusters", "3"),
        ("n_clusters", 2.5),
        ("n_clusters", True),
        ("n_init", 0),
        ("max_iter", 0),
        ("random_state", None),
        ("random_state", -1),
        ("tol", "small"),
        ("tol", float("nan")),
    ],
)
def test_a_parameter_out_of_range_is_named_with_its_value(name, value):
    settings = {"n_clusters": 2, name: value}
    with pytest.raises(ConfigError, match=f"{name} is"):
        HKMVFC(**settings).fit([np.eye(4)])


@pytest.mark.parametrize(
    "views", [[[["a", "b"]]], [[[1.0], [2.0, 3.0]]], [np.full((3, 2), np.nan)]]
)
def test_views_that_hold_no_numbers_are_refused_in_words(views):
    with pytest.raises(DataRefused, match=r"not a table of numbers|0 observed cells"):
        HKMVFC(1).fit(views)


def test_a_two_valued_column_is_named_where_the_minmax_kernel_makes_it_void():
    rng = np.random.default_rng(3)
    truth = np.arange(300) % 3
    views = [np.c_[rng.normal(size=(300, 2)), np.eye(3)[truth]]]
    paper = HKMVFC(3, profile="paper").fit(views)
    assert [w for w in paper.warnings_ if "two values" in w and w.startswith("column 2 of view 0")]
    np.testing.assert_allclose(paper.cluster_centers_[0][:, 2:], 1.0)
    robust = HKMVFC(3, profile="robust").fit(views)
    assert not [w for w in robust.warnings_ if "two values" in w]


def test_a_row_without_a_cell_has_no_label():
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(60, 2)) + 9 * (np.arange(60) % 2)[:, None] for _ in range(2)]
    for view in views:
        view[5] = np.nan
    model = HKMVFC(2).fit(views)
    assert model.labels_[5] == -1
    assert (np.delete(model.labels_, 5) >= 0).all()
    assert any("1 rows hold no observed cell" in w for w in model.warnings_)
    assert model.predict([v[4:7] for v in views])[1] == -1
    assert model.predict([v[5:6] for v in views]).tolist() == [-1]
