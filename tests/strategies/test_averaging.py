"""The server's state between rounds of parameter averaging."""

import numpy as np
import pytest

from strategies.averaging import AveragingDriver, SiteModel


def driver(aggregation="weighted", n_starts=1, **options):
    centers = [np.zeros((n_starts, 2, 1)), np.zeros((n_starts, 2, 1))]
    defaults = {"temperature": 0.5, "spread": np.ones(2), "tol": 1e-6, "max_rounds": 10}
    return AveragingDriver(
        centers,
        np.full((n_starts, 2), 0.5),
        aggregation=aggregation,
        **{**defaults, **options},
    )


def site(
    first=(0.0, 1.0),
    second=(2.0, 3.0),
    view_weights=(0.5, 0.5),
    n_rows=10,
    held=(True, True),
    objective=1.0,
    coefficient=1.0,
    agreement=1.0,
):
    return SiteModel(
        [np.reshape(first, (1, -1, 1)), np.reshape(second, (1, -1, 1))],
        np.array([view_weights], dtype=float),
        np.array([objective]),
        np.array([coefficient]),
        np.array([agreement]),
        n_rows,
        np.array(held),
    )


def after_one_round(models, aggregation="weighted", **options):
    chosen = driver(aggregation, **options)
    chosen.advance(chosen.query(), models)
    return chosen


def test_weighted_by_hand():
    found = after_one_round(
        {
            "a": site((0, 4), (8, 0), (0.9, 0.1), n_rows=30),
            "b": site((4, 8), (0, 4), (0.5, 0.5), n_rows=10),
        }
    )
    assert found.centers[0].ravel().tolist() == [1.0, 5.0]
    assert found.centers[1].ravel().tolist() == [6.0, 1.0]
    assert found.view_weights == pytest.approx(np.array([[0.8, 0.2]]))
    assert {name: w.item() for name, w in found.weights.items()} == {"a": 0.75, "b": 0.25}


def test_the_order_of_replies_changes_nothing():
    rng = np.random.default_rng(0)
    models = {
        name: site(rng.normal(size=2), rng.normal(size=2), rng.dirichlet([1, 1]), n_rows=n)
        for name, n in (("a", 7), ("b", 11), ("c", 13))
    }
    forward = after_one_round(models)
    backward = after_one_round(dict(reversed(models.items())))
    assert np.array_equal(forward.centers[0], backward.centers[0])
    assert np.array_equal(forward.view_weights, backward.view_weights)


def test_median_of_view_weights_comes_back_onto_the_simplex():
    found = after_one_round(
        {
            "a": site(view_weights=(0.9, 0.1)),
            "b": site(view_weights=(0.5, 0.5)),
            "c": site(view_weights=(0.2, 0.8)),
        },
        "median",
    )
    assert found.view_weights.sum() == pytest.approx(1.0)


def test_a_median_of_view_weights_that_is_zero_everywhere_keeps_the_old_ones():
    """Three views, each the sole favourite of one site: every median is 0."""
    chosen = AveragingDriver(
        [np.zeros((1, 1, 1))] * 3,
        np.array([[0.2, 0.3, 0.5]]),
        aggregation="median",
        temperature=0.5,
        spread=np.ones(3),
        tol=1e-6,
        max_rounds=5,
    )
    models = {
        name: SiteModel(
            [np.zeros((1, 1, 1))] * 3,
            np.eye(3)[[i]],
            np.ones(1),
            np.ones(1),
            np.ones(1),
            10,
            np.ones(3, dtype=bool),
        )
        for i, name in enumerate("abc")
    }
    chosen.advance(chosen.query(), models)
    assert chosen.view_weights.tolist() == [[0.2, 0.3, 0.5]]


def test_a_site_without_a_view_has_no_say_in_it():
    found = after_one_round(
        {"a": site((0, 4), (8, 0)), "b": site((4, 8), (99, 99), (1.0, 0.0), held=(True, False))}
    )
    assert found.centers[0].ravel().tolist() == [2.0, 6.0]
    assert found.centers[1].ravel().tolist() == [8.0, 0.0]


def test_a_view_that_nobody_holds_keeps_its_centres():
    chosen = driver()
    chosen.centers[1][:] = 7.0
    chosen.advance(chosen.query(), {"a": site(held=(True, False), view_weights=(1.0, 0.0))})
    assert chosen.centers[1].ravel().tolist() == [7.0, 7.0]


def test_a_site_with_fewer_clusters_moves_its_own_rows_only():
    chosen = driver()
    chosen.centers[0][0, :, 0] = [0.0, 10.0]
    chosen.centers[1][0, :, 0] = [0.0, 10.0]
    assert chosen.rows("b", np.array([0])).shape == (1, 0)
    chosen.advance(
        chosen.query(), {"a": site((0, 10), (0, 10)), "b": site((12.0,), (12.0,), n_rows=10)}
    )
    assert chosen.rows("b", np.array([0])).tolist() == [[1]]
    assert chosen.centers[0].ravel().tolist() == [0.0, 11.0]
    # the match is made once: a centre that wanders does not change its row
    chosen.advance(
        chosen.query(), {"a": site((0, 10), (0, 10)), "b": site((1.0,), (1.0,), n_rows=10)}
    )
    assert chosen.centers[0].ravel().tolist() == [0.0, 5.5]


def test_stops_when_nothing_moves():
    """Eq. 71: centres and view weights move less than tol."""
    chosen = driver()
    chosen.advance(chosen.query(), {"a": site((5, 5), (5, 5), objective=3.0)})
    assert not chosen.done
    chosen.advance(chosen.query(), {"a": site((5, 5), (5, 5), objective=2.0)})
    assert chosen.done
    assert chosen.converged
    assert chosen.objective == 2.0


def test_stops_at_a_small_change_of_the_objective():
    chosen = driver()
    chosen.advance(chosen.query(), {"a": site((5, 5), objective=3.0)})
    chosen.advance(chosen.query(), {"a": site((6, 6), objective=3.0 * (1 + 1e-7))})
    assert chosen.converged


def test_stops_at_max_rounds_unconverged():
    chosen = driver(max_rounds=2)
    for number in range(2):
        assert not chosen.done
        chosen.advance(chosen.query(), {"a": site((number, 5), objective=3.0 + number)})
    assert chosen.done
    assert not chosen.converged


def two_starts(first, second, objectives):
    """Return one site's models of two starts, every centre at `first` and at `second`."""
    model = site()
    model.centers = [np.stack([np.full((2, 1), float(x)) for x in (first, second)])] * 2
    model.view_weights = np.full((2, 2), 0.5)
    model.objective = np.array(objectives, dtype=float)
    model.partition_coefficient = model.agreement = np.ones(2)
    return model


def test_a_settled_start_is_measured_again_after_a_site_left():
    """Its J over two sites is larger than any J over one: it once lost to a worse start."""
    chosen = driver(n_starts=2, tol=1e-3)
    for places, objectives in (((1, 1), (5, 6)), ((1, 2), (5, 5.8))):
        model = two_starts(*places, objectives)
        chosen.advance(chosen.query(), {"a": model, "b": model})
    assert chosen.settled.tolist() == [True, False]
    query = chosen.query()
    assert query.starts.tolist() == [1]
    chosen.restart(np.ones(2, dtype=bool))
    chosen.advance(query, {"a": site((3, 3), (3, 3), objective=5.7)})
    assert not chosen.done
    assert chosen.query().starts.tolist() == [0, 1]
    chosen.advance(chosen.query(), {"a": two_starts(1, 4, (5, 5.6))})
    assert chosen.best == 0
    assert chosen.objective == 5.0


def test_the_weights_told_are_those_of_the_best_start_asked():
    chosen = driver("nmi_softmax", n_starts=2)
    models = {"a": two_starts(1, 1, (5, 3)), "b": two_starts(1, 1, (5, 3))}
    models["a"].agreement = np.array([0.0, 1.0])
    models["b"].agreement = np.array([1.0, 0.0])
    chosen.advance(chosen.query(), models)
    assert chosen.best == 1
    assert chosen.best_weights == {n: float(w[1]) for n, w in chosen.weights.items()}
    assert chosen.best_weights["a"] > 0.8
    # the best start has settled: of those asked, the other one's weights count
    chosen.settled[1] = True
    one = {n: site((2, 2), agreement=q, objective=9.0) for n, q in (("a", 1.0), ("b", 0.5))}
    chosen.advance(chosen.query(), one)
    assert chosen.best == 1
    assert chosen.best_weights == {n: float(w[0]) for n, w in chosen.weights.items()}


def test_settled_starts_are_asked_no_more_and_the_best_one_is_returned():
    """Start 0 does not move at all, start 1 does and ends worse."""
    chosen = driver(n_starts=2)
    both = site(objective=3.0)
    both.centers = [np.array([[[0.0], [0.0]], [[1.0], [1.0]]])] * 2
    both.view_weights = np.full((2, 2), 0.5)
    both.objective, both.partition_coefficient, both.agreement = np.array([[3, 9], [1, 1], [1, 1]])
    chosen.advance(chosen.query(), {"a": both})
    assert chosen.query().starts.tolist() == [1]
    assert chosen.query().centers[0].ravel().tolist() == [1.0, 1.0]
    chosen.advance(chosen.query(), {"a": site((2, 2), (2, 2), objective=5.0)})
    assert chosen.best == 0
    assert chosen.converged
    assert not chosen.done
    assert chosen.solution()[0][0].ravel().tolist() == [0.0, 0.0]
