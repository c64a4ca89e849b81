"""MUFSHT on one machine: planted features, missing cells, text, and what is refused."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score

from configs.errors import ConfigError, DataRefused
from fedmvc_client.estimators import MUFSHT
from fedmvc_server.planted import without_cells
from tests.solvers.mufsht_reference import planted

SIZES = ((12, 5), (9, 4), (15, 6))
VIEWS, INFORMATIVE = planted(0, n=90, sizes=SIZES, n_clusters=3)


def mufsht(n_clusters=3, **options):
    return MUFSHT(n_clusters, **({"device": "cpu"} | options))


def blobs(seed=0, n=120):
    """Four informative columns of nine in each of two views, three classes far apart."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(3), n // 3)
    views = [rng.normal(size=(n, 9)) for _ in range(2)]
    for view in views:
        view[:, :4] += 5 * rng.normal(size=(3, 4))[truth]
    return views, truth


# -- what comes out --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"profile": "paper"}, {"simplex": "sample"}])
def test_planted_features_come_first(options):
    found = []
    for seed in range(2):
        views, informative = planted(seed)
        model = mufsht(5, **options).fit(views)
        found.append(informative[model.ranking_[:45]].mean())
    assert np.mean(found) >= 0.95


@pytest.mark.parametrize(("rank", "least"), [("gated_pivot", 0.83), ("row_norm", 0.93)])
def test_planted_features_are_found_where_half_is_missing(rank, least):
    found = []
    for seed in range(3):
        views, informative = planted(seed)
        model = mufsht(5, rank=rank).fit(without_cells(views, 0.5, seed + 99))
        found.append(informative[model.ranking_[:45]].mean())
    assert np.mean(found) >= least


def test_what_is_fitted():
    model = mufsht().fit(VIEWS)
    assert sorted(model.ranking_.tolist()) == list(range(36))
    assert model.ranking_.dtype == np.int64
    assert model.features_[[0, 11, 12, 35]].tolist() == [[0, 0], [0, 11], [1, 0], [2, 14]]
    assert [w.shape for w in model.weights_] == [(12, 3), (9, 3), (15, 3)]
    assert model.scores_.shape == (36,)
    assert ((model.scores_ > 0) & (model.scores_ < 1)).all()
    assert model.view_weights_.sum() == pytest.approx(1.0)
    assert len(model.objective_history_) == model.n_iter_ <= 30
    assert (np.diff(model.objective_history_) <= 1e-12).all()
    assert model.labels_.shape == (90,)


def test_row_norm_ranks_by_the_scores():
    model = mufsht(rank="row_norm").fit(VIEWS)
    assert (np.diff(model.scores_[model.ranking_]) <= 0).all()
    pivoted = mufsht().fit(VIEWS)
    assert np.array_equal(pivoted.scores_, model.scores_)
    assert not np.array_equal(pivoted.ranking_, model.ranking_)


def test_profiles_stand_for_their_numbers():
    paper = mufsht(profile="paper").fit(VIEWS)
    spelt = mufsht(rank="row_norm", search="weights", tau=1.0, mu=0.5, beta=0.01, lam=0.1).fit(
        VIEWS
    )
    assert paper.objective_history_ == spelt.objective_history_
    assert np.array_equal(paper.ranking_, spelt.ranking_)
    assert paper.objective_history_ != mufsht().fit(VIEWS).objective_history_


def test_stages_alone_are_the_ablations():
    both = mufsht(profile="paper").fit(VIEWS)
    swarm = mufsht(profile="paper", stages="search").fit(VIEWS)
    sweeps = mufsht(profile="paper", stages="tensor").fit(VIEWS)
    assert len(swarm.objective_history_) == 1
    assert swarm.n_iter_ == 0
    assert swarm.objective_history_[0] > both.objective_history_[-1]
    assert not swarm.warnings_
    assert sweeps.objective_history_ != both.objective_history_
    assert (np.diff(sweeps.objective_history_) <= 1e-12).all()
    ends = {
        (hcl, acm): mufsht(profile="paper", stages="search", hcl=hcl, acm=acm)
        .fit(VIEWS)
        .objective_history_[0]
        for hcl in (True, False)
        for acm in (True, False)
    }
    assert len(set(ends.values())) == 4


def test_consensus_clusters_are_the_classes():
    views, truth = blobs()
    assert adjusted_rand_score(truth, mufsht().fit(views).labels_) == 1.0


def test_the_same_twice_and_other_units():
    first, second = mufsht().fit(VIEWS), mufsht().fit(VIEWS)
    assert first.objective_history_ == second.objective_history_
    assert np.array_equal(first.ranking_, second.ranking_)
    assert np.array_equal(first.labels_, second.labels_)
    changed = mufsht().fit([1e3 * view - 50 for view in VIEWS])
    np.testing.assert_allclose(changed.scores_, first.scores_, atol=1e-10)
    assert np.array_equal(changed.ranking_, first.ranking_)


def test_a_view_is_left_as_it_was():
    before = [view.copy() for view in VIEWS]
    mufsht().fit(VIEWS)
    assert all(np.array_equal(a, b) for a, b in zip(before, VIEWS, strict=True))


def test_the_constructor_only_stores():
    model = MUFSHT(3, profile="no such profile", tau=-7.0)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(ConfigError):
        model.fit(VIEWS)


# -- the swarm ---------------------------------------------------------------------------------


def test_a_search_over_weights_ends_no_lower_than_the_svd_start():
    """The paper's closed loop works, and is not worth its time."""
    plain = mufsht(tol=1e-5).fit(VIEWS)
    searched = mufsht(search="weights", tol=1e-5).fit(VIEWS)
    assert searched.objective_history_[-1] > plain.objective_history_[-1] - 1e-3
    assert searched.objective_history_[-1] < searched.objective_history_[0]
    again = mufsht(search="weights", tol=1e-5).fit(VIEWS)
    assert again.objective_history_ == searched.objective_history_
    holes = [*without_cells(VIEWS, 0.1, 0), np.full((90, 4), np.nan)]
    assert mufsht(search="weights").fit(holes).view_weights_[3] == 0


def test_a_search_over_keys_reorders_the_head_only():
    plain = mufsht(ratio=0.3).fit(VIEWS)
    searched = mufsht(ratio=0.3, search="keys").fit(VIEWS)
    assert sorted(searched.ranking_.tolist()) == list(range(36))
    assert set(searched.ranking_[:11]) != set(plain.ranking_[:11])
    place = {feature: i for i, feature in enumerate(plain.ranking_.tolist())}
    for part in (searched.ranking_[:11], searched.ranking_[11:]):
        places = [place[feature] for feature in part.tolist()]
        assert places == sorted(places)
    assert np.array_equal(searched.scores_, plain.scores_)
    again = mufsht(ratio=0.3, search="keys").fit(VIEWS)
    assert np.array_equal(again.ranking_, searched.ranking_)


# -- selection -------------------------------------------------------------------------------------


def test_support_is_the_head_of_the_ranking():
    model = mufsht().fit(VIEWS)
    chosen = model.get_support(0.25, indices=True)
    assert chosen.tolist() == model.ranking_[:9].tolist()
    mask = model.get_support(0.25)
    assert np.flatnonzero(mask).tolist() == sorted(chosen.tolist())
    assert model.get_support().sum() == 14
    assert model.get_support(1e-9).sum() == 1
    assert model.get_support(1).all()
    assert clone(model).set_params(ratio=0.5).fit(VIEWS).get_support().sum() == 18


def test_transform_returns_the_columns_as_they_are():
    holes = without_cells(VIEWS, 0.2, 0)
    model = mufsht().fit(holes)
    parts = np.split(model.get_support(0.5), [12, 21])
    for found, view, part in zip(model.transform(holes, 0.5), holes, parts, strict=True):
        assert np.array_equal(found, view[:, part], equal_nan=True)
    others = [view[:7] for view in VIEWS]
    assert [part.shape for part in mufsht().fit(VIEWS).transform(others, 1.0)] == [
        (7, 12),
        (7, 9),
        (7, 15),
    ]
    first, second = mufsht().fit_transform(VIEWS), model.fit(VIEWS).transform(VIEWS)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_an_unfitted_selector_says_so():
    for ask in (lambda m: m.get_support(), lambda m: m.transform(VIEWS)):
        with pytest.raises(NotFittedError):
            ask(mufsht())


def test_other_columns_are_refused():
    model = mufsht().fit(VIEWS)
    with pytest.raises(DataRefused, match=r"\[12, 9, 14\] columns but had \[12, 9, 15\]"):
        model.transform([VIEWS[0], VIEWS[1], VIEWS[2][:, 1:]])


# -- missing cells ---------------------------------------------------------------------------------


def test_imputed_views_keep_what_was_observed():
    views, _ = blobs()
    holes = without_cells([100 + 10 * view for view in views], 0.2, 0)
    model = mufsht().fit(holes)
    for found, hole, view in zip(model.imputed_, holes, views, strict=True):
        observed = ~np.isnan(hole)
        assert np.array_equal(found[observed], hole[observed])
        assert np.isfinite(found).all()
        gaps = ~observed
        gaps[:, 4:] = False
        truth = (100 + 10 * view)[gaps]
        mean = np.broadcast_to(np.nanmean(hole, axis=0), hole.shape)[gaps]
        assert ((found[gaps] - truth) ** 2).sum() < 0.4 * ((mean - truth) ** 2).sum()


def test_dead_features_score_0_and_are_named():
    views = [view.copy() for view in VIEWS]
    views[1][:, 3] = 0.1
    views[2][:, [2, 8]] = np.nan
    model = mufsht().fit(views)
    assert np.flatnonzero(model.scores_ == 0).tolist() == [15, 23, 29]
    assert set(model.ranking_[-3:]) == {15, 23, 29}
    assert model.warnings_[:2] == [
        "view 1: 1 of 9 columns are constant and score 0 (3)",
        "view 2: 2 of 15 columns are never observed and score 0 (2, 8)",
    ]
    assert np.isnan(model.imputed_[2][:, [2, 8]]).all()
    assert np.isfinite(np.delete(model.imputed_[2], [2, 8], axis=1)).all()


def test_rows_and_views_may_be_missing():
    views, truth = blobs()
    views[0][:5] = np.nan
    views[1][:5] = np.nan
    views[1][30:70] = np.nan
    model = mufsht(rank="row_norm").fit([*views, np.full((120, 4), np.nan)])
    assert (model.labels_ == -1).tolist() == [True] * 5 + [False] * 115
    assert adjusted_rand_score(truth[5:], model.labels_[5:]) > 0.85
    assert model.view_weights_[2] == 0
    assert "5 rows hold no observed cell: their label is -1" in model.warnings_
    assert set(model.get_support(8 / 22, indices=True)) == {0, 1, 2, 3, 9, 10, 11, 12}


def test_a_run_that_did_not_settle_says_so():
    model = mufsht(max_iter=2, tol=0.0).fit(VIEWS)
    assert model.n_iter_ == 2
    (warning,) = model.warnings_
    assert warning.startswith("stopped at max_iter = 2 before the objective settled to tol = 0")
    assert mufsht(tol=0.1).fit(VIEWS).warnings_ == []


# -- text ------------------------------------------------------------------------------------------


def documents(seed=0, n=90, n_words=60):
    """Draw counts of words, the first 30 with a topic, in two views; documents of many lengths."""
    rng = np.random.default_rng(seed)
    topics = np.repeat(np.arange(3), n // 3)
    views = []
    for _ in range(2):
        rates = np.full((3, n_words), 0.3)
        for topic in range(3):
            rates[topic, 10 * topic : 10 * topic + 10] = 3.0
        views.append(rng.poisson(rates[topics] * rng.uniform(0.3, 3, size=(n, 1))).astype(float))
    return views, topics


def test_words_with_a_topic_come_first():
    views, topics = documents()
    model = mufsht(text=True).fit(views)
    chosen = model.get_support(0.5, indices=True)
    assert (chosen % 60 < 30).mean() > 0.9
    assert adjusted_rand_score(topics, model.labels_) > 0.9


def test_sparse_text_is_the_same_as_dense():
    views, _ = documents()
    dense = mufsht(text=True).fit(views)
    found = mufsht(text=True).fit([sparse.csr_array(view) for view in views])
    assert np.array_equal(found.scores_, dense.scores_)


def test_selected_text_has_unit_rows():
    views, _ = documents()
    views[0][3] = np.nan
    model = mufsht(text=True).fit(views)
    first, second = model.transform(views, 0.3)
    assert first.shape[1] + second.shape[1] == 36
    assert np.isnan(first[3]).all()
    lengths = np.linalg.norm(np.delete(first, 3, axis=0), axis=1)
    assert ((np.abs(lengths - 1) < 1e-12) | (lengths == 0)).all()
    assert (lengths > 0).mean() > 0.9
    assert np.isfinite(model.imputed_[0]).all()


def test_negative_text_is_refused():
    with pytest.raises(DataRefused, match=r"view 0 has \d+ negative cells and text may have 0"):
        mufsht(text=True).fit(VIEWS)
    views, _ = documents()
    model = mufsht(text=True).fit(views)
    with pytest.raises(DataRefused, match="view 1 has 5400 negative cells"):
        model.transform([views[0], -1.0 - views[1]])


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_clusters": 1}, "n_clusters is 1"),
        ({"n_clusters": 2.5}, "n_clusters is 2.5"),
        ({"profile": "plus"}, "profile is 'plus'; allowed: 'gated', 'paper'"),
        ({"rank": "variance"}, "rank is 'variance'; allowed"),
        ({"search": "features"}, "search is 'features'; allowed"),
        ({"simplex": "rows"}, "simplex is 'rows'; allowed"),
        ({"tau": -1.0}, "tau is -1.0"),
        ({"beta": np.nan}, "beta is nan"),
        ({"lam": np.inf}, "lam is inf"),
        ({"mu": "small"}, "mu is 'small'"),
        ({"text": "yes"}, "text is 'yes'"),
        ({"ratio": 0.0}, "ratio is 0.0"),
        ({"ratio": 1.5}, "ratio is 1.5"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"random_state": -1}, "random_state is -1"),
        ({"device": "tpu"}, "tpu"),
        ({"stages": "search"}, "stages is 'search' but search is 'off'"),
        ({"stages": "tensor", "search": "weights"}, "stages is 'tensor' but search is 'weights'"),
        ({"hcl": False}, "hcl is false but search is 'off'"),
    ],
)
def test_settings_out_of_range_are_refused(options, words):
    with pytest.raises(ConfigError, match=words) as refused:
        mufsht(**({"n_clusters": 3} | options)).fit(VIEWS)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ratio", [0, -0.1, 1.01, np.nan, True, "half"])
def test_ratios_out_of_range_are_refused(ratio):
    with pytest.raises(ConfigError, match="give a number above 0 and at most 1"):
        mufsht(max_iter=1).fit(VIEWS).get_support(ratio)


def spoiled(value):
    view = VIEWS[1].copy()
    view[2, 1] = value
    return [VIEWS[0], view]


@pytest.mark.parametrize(
    ("views", "words"),
    [
        ([], "0 views"),
        ([VIEWS[0], VIEWS[1][:-1]], "view 1 has 89 rows, view 0 has 90"),
        ([view[:2] for view in VIEWS], "n_clusters is 3 but there are 2 rows"),
        ([VIEWS[0][:1]], "n_clusters is 3 but there are 1 rows"),
        (spoiled(np.inf), "view 1 has 1 infinite cells"),
        (spoiled(1e200), r"view 1 has 1 values beyond 1e\+150"),
        ([np.ones((90, 3)), np.full((90, 2), np.nan)], "2 views and 0 of them vary"),
        ([VIEWS[0], [["a"]] * 90], "view 1 is not a table of numbers"),
    ],
)
def test_views_that_cannot_be_learned_are_refused(views, words):
    with pytest.raises(DataRefused, match=words) as refused:
        mufsht().fit(views)
    assert "\n" not in str(refused.value)
