"""The fixed-point driver on made maps: descent, undone steps, starts, stages, limits."""

import numpy as np
import pytest

from strategies.acceleration import (
    STAGE_LIMIT,
    FixedPointDriver,
    Start,
    anderson_step,
    first_among_best,
)
from strategies.statistics import SufficientStatistics

ONE_VIEW = np.ones(1, dtype=bool)


def driver(points, **options):
    """Return a driver of one view, one cluster, one start for each of the points (R, d)."""
    centers = np.asarray(points, dtype=float)[:, None, :]
    defaults = {"tol": 1e-12, "max_evaluations": 500, "acceleration": "anderson"}
    return FixedPointDriver(
        [centers],
        np.ones((centers.shape[0], 1)),
        view_exponent=2.0,
        holding_share=np.ones(1),
        active=ONE_VIEW,
        **{**defaults, **options},
    )


def sums_of(query, step, objective):
    """Statistics under which the next point is step(x) and J is objective(x)."""
    following = np.stack([[step(x[0])] for x in query.centers[0]])
    values = np.array([[objective(x[0])] for x in query.centers[0]])
    return SufficientStatistics((following,), (np.ones(following.shape),), values)


def run(chosen, step, objective):
    while not chosen.done:
        query = chosen.query()
        chosen.advance(query, sums_of(query, step, objective))
    return chosen


# A slow linear descent of a quadratic: rates .99 and .5 towards (1, 2).
LIMIT = np.array([1.0, 2.0])
RATES = np.array([0.99, 0.5])


def slow_step(x):
    return LIMIT + RATES * (x - LIMIT)


def quadratic(x):
    return 1.0 + float(((x - LIMIT) ** 2).sum())


def assert_never_rises(history):
    values = np.array(history)
    assert (np.diff(values) <= 1e-12 * np.abs(values[:-1])).all()


def test_the_plain_iteration_goes_where_the_map_goes():
    chosen = driver([[0.0, 0.0]], acceleration="none", max_evaluations=3)
    seen = []
    while not chosen.done:
        query = chosen.query()
        seen.append(query.centers[0].ravel())
        chosen.advance(query, sums_of(query, slow_step, quadratic))
    expected = [np.zeros(2), slow_step(np.zeros(2)), slow_step(slow_step(np.zeros(2)))]
    np.testing.assert_allclose(seen, expected, rtol=1e-15)
    # the solution is the last point whose J is known, not one nobody looked at
    np.testing.assert_allclose(chosen.solution()[0][0].ravel(), seen[-1])


def test_anderson_solves_a_linear_map_in_few_steps():
    """Two unknown rates take three differences; the plain iteration takes hundreds."""
    fast = run(driver([[0.0, 0.0]]), slow_step, quadratic)
    slow = run(driver([[0.0, 0.0]], acceleration="none"), slow_step, quadratic)
    assert fast.converged
    assert fast.evaluations <= 8
    assert slow.evaluations > 300
    np.testing.assert_allclose(fast.solution()[0][0].ravel(), LIMIT, atol=1e-9)


def test_anderson_needs_two_pairs_and_returns_the_secant_point():
    assert anderson_step([(np.zeros(1), np.ones(1))]) is None
    # G(x) = x / 2 + 1 through x = 0 and x = 1 has its fixed point at 2
    pairs = [(np.array([0.0]), np.array([1.0])), (np.array([1.0]), np.array([1.5]))]
    assert anderson_step(pairs) == pytest.approx([2.0])


def test_anderson_of_a_point_that_stopped_moving_stays_there():
    pairs = [(np.array([3.0]), np.array([3.0])), (np.array([3.0]), np.array([3.0]))]
    assert anderson_step(pairs) == pytest.approx([3.0])


def test_a_step_that_raises_the_objective_is_undone():
    """J is infinite but at the plain iterates: whatever Anderson proposes is a rise."""
    plain = [np.zeros(2)]
    for _ in range(400):
        plain.append(slow_step(plain[-1]))
    visited = []

    def trap(x):
        visited.append(x)
        known = any(np.allclose(x, p, rtol=0, atol=1e-13) for p in plain)
        return quadratic(x) if known else 1e6

    chosen = run(driver([[0.0, 0.0]], max_evaluations=60), slow_step, trap)
    assert max(map(quadratic, visited)) > 0
    rejected = [x for x in visited if not any(np.allclose(x, p, rtol=0, atol=1e-13) for p in plain)]
    assert rejected, "the trap was never sprung"
    assert_never_rises(chosen.objective_history)
    assert max(chosen.objective_history) < 1e6
    # after each rejected point the plain step that was in hand is taken
    accepted = len(chosen.objective_history)
    assert accepted + len(rejected) == 60
    np.testing.assert_allclose(chosen.solution()[0][0].ravel(), plain[accepted - 1], atol=1e-13)


@pytest.mark.parametrize("acceleration", ["none", "anderson"])
@pytest.mark.parametrize("seed", range(10))
def test_the_objective_never_rises_on_random_contractions(acceleration, seed):
    rng = np.random.default_rng(seed)
    d = 6
    q, _ = np.linalg.qr(rng.normal(size=(d, d)))
    contraction = q @ np.diag(rng.uniform(0.3, 0.98, d)) @ q.T
    limit = rng.normal(size=d)
    curve = q @ np.diag(rng.uniform(0.5, 5.0, d)) @ q.T

    def step(x):
        return limit + contraction @ (x - limit)

    def objective(x):
        return 3.0 + float((x - limit) @ curve @ (x - limit))

    chosen = run(driver(rng.normal(size=(3, d)), acceleration=acceleration), step, objective)
    assert len(chosen.objective_history) > 3
    assert_never_rises(chosen.objective_history)
    for start in chosen.starts:
        assert_never_rises(start.history)


def test_a_map_that_runs_away_leaves_a_finite_solution():
    chosen = driver([[1.0, 1.0]], max_evaluations=20)
    run(chosen, lambda x: x * 2.0, lambda x: 1.0 / (1.0 + float(x @ x)))
    assert np.isfinite(chosen.solution()[0][0]).all()
    assert_never_rises(chosen.objective_history)


# -- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_max_evaluations_is_respected(limit):
    chosen = run(
        driver([[0.0, 0.0]], max_evaluations=limit, acceleration="none"), slow_step, quadratic
    )
    assert chosen.evaluations == limit
    assert not chosen.converged
    assert len(chosen.objective_history) == limit


def test_a_map_that_stands_still_terminates_with_objective_zero():
    """All rows identical: J is 0 from the first evaluation on."""
    chosen = run(driver([[1.0, 2.0]]), lambda x: x, lambda x: 0.0)
    assert chosen.converged
    assert chosen.evaluations == 2
    assert chosen.objective == 0.0


def test_no_active_view_keeps_equal_weights():
    chosen = FixedPointDriver(
        [np.zeros((1, 1, 1)), np.zeros((1, 1, 1))],
        np.array([[0.5, 0.5]]),
        view_exponent=2.0,
        holding_share=np.ones(2),
        active=np.zeros(2, dtype=bool),
        tol=1e-6,
        max_evaluations=10,
    )
    nothing = np.zeros((1, 1, 1))
    while not chosen.done:
        query = chosen.query()
        chosen.advance(
            query,
            SufficientStatistics((nothing,) * 2, (nothing,) * 2, np.zeros((1, 2))),
        )
    assert chosen.evaluations == 2
    assert chosen.solution()[1].tolist() == [0.5, 0.5]


def test_an_inactive_view_keeps_weight_zero():
    chosen = FixedPointDriver(
        [np.zeros((1, 1, 1))] * 3,
        np.array([[0.5, 0.0, 0.5]]),
        view_exponent=2.0,
        holding_share=np.ones(3),
        active=np.array([True, False, True]),
        tol=1e-6,
        max_evaluations=3,
        acceleration="anderson",
    )
    ones = np.ones((1, 1, 1))
    while not chosen.done:
        query = chosen.query()
        assert query.view_weights[0, 1] == 0.0
        assert query.view_weights.sum() == pytest.approx(1.0)
        chosen.advance(
            query, SufficientStatistics((ones,) * 3, (ones,) * 3, np.array([[1.0, 0.0, 3.0]]))
        )
    # Q = 1 and 3 at alpha = 2
    np.testing.assert_allclose(chosen.solution()[1], [0.75, 0.0, 0.25])


# -- starts ----------------------------------------------------------------------------------


def two_basins(x):
    """Quadratic basins around 0 (depth 1) and 10 (depth 5)."""
    value = float(x[0])
    return 1.0 + value**2 if value < 5 else 5.0 + (value - 10.0) ** 2


def into_basin(x):
    goal = 0.0 if x[0] < 5 else 10.0
    return np.array([goal + 0.3 * (x[0] - goal)])


def test_losing_starts_are_dropped_and_the_best_one_wins():
    chosen = run(driver([[12.0], [1.0], [9.0]], acceleration="none"), into_basin, two_basins)
    assert [s.status for s in chosen.starts] == ["dropped", "converged", "dropped"]
    assert chosen.best == 1
    assert chosen.objective == pytest.approx(1.0)


def test_dropping_never_costs_the_winner():
    """Random basins and speeds: the kept start ends where the best of all would have ended."""
    rng = np.random.default_rng(0)
    dropped = 0
    for _ in range(100):
        depth = rng.uniform(1.0, 3.0, 6)
        rate = rng.uniform(0.1, 0.9, 6)
        away = rng.uniform(0.5, 2.0, 6)

        def basin(x):
            return int(np.clip(np.rint(x[0] / 10.0), 0, 5))

        def step(x, rate=rate):
            k = basin(x)
            return np.array([10.0 * k + rate[k] * (x[0] - 10.0 * k)])

        def objective(x, depth=depth):
            k = basin(x)
            return depth[k] + (x[0] - 10.0 * k) ** 2

        points = [[10.0 * k + away[k]] for k in range(6)]
        chosen = run(driver(points, tol=1e-6, acceleration="none"), step, objective)
        assert chosen.best == int(np.argmin(depth))
        dropped += sum(s.status == "dropped" for s in chosen.starts)
    assert dropped > 300  # of 600 starts; else the test shows nothing


def test_ten_batched_starts_take_the_exchanges_of_the_slowest_one():
    points = [[1.0 + 0.1 * i, 2.0 - 0.3 * i] for i in range(10)]
    alone = [run(driver([p]), slow_step, quadratic).evaluations for p in points]
    together = run(driver(points), slow_step, quadratic)
    assert together.evaluations <= max(alone)


def test_settled_starts_are_not_asked_again():
    """Start 0 stands still in the shallow basin while start 1 falls into the deep one."""
    chosen = driver([[10.0], [4.0]], acceleration="none")
    for _ in range(3):
        query = chosen.query()
        chosen.advance(query, sums_of(query, into_basin, two_basins))
    assert chosen.starts[0].status == "converged"
    assert chosen.query().starts.tolist() == [1]


@pytest.mark.parametrize(
    ("objectives", "tol", "expected"),
    [
        ([3.0, 2.0, 1.0], 1e-6, 2),
        ([3.0, 1.0 + 1e-8, 1.0], 1e-6, 1),
        ([1.0 + 1e-15, 1.0, 1.0 - 1e-15], 0.0, 0),
        ([1.0 + 1e-7, 1.0], 0.0, 1),
        ([np.inf, 5.0, 5.0], 0.0, 1),
        ([np.inf, np.inf], 0.0, 0),
        ([0.0, 0.0], 1e-6, 0),
    ],
)
def test_of_starts_that_agree_the_first_is_taken(objectives, tol, expected):
    """Rounding once chose among equal starts, so sites and pooled rows numbered clusters apart."""
    assert first_among_best(objectives, tol) == expected


# -- annealing -------------------------------------------------------------------------------


def test_stages_rise_to_the_full_bandwidth_and_only_the_last_counts():
    chosen = driver([[0.0, 0.0]], acceleration="none", stages=(0.1, 0.5, 1.0), tol=1e-6)
    factors = []
    while not chosen.done:
        query = chosen.query()
        factors.append(query.bandwidth_factor.item())
        assert (chosen.objective is None) == (factors.count(1.0) <= 1)
        # J of another bandwidth is another function: ten times as large in the first stage
        scale = 1.0 / factors[-1]
        chosen.advance(query, sums_of(query, slow_step, lambda x, s=scale: s * quadratic(x)))
    assert factors == sorted(factors)
    assert factors.count(0.1) <= STAGE_LIMIT
    assert factors.count(0.5) <= STAGE_LIMIT
    assert len(chosen.objective_history) == factors.count(1.0)
    assert_never_rises(chosen.objective_history)
    assert chosen.converged


def test_a_stage_ends_early_once_it_stands_still():
    chosen = run(driver([[1.0, 2.0]], stages=(0.1, 0.5, 1.0), tol=1e-6), slow_step, quadratic)
    assert chosen.evaluations == 6  # two a stage


def test_too_few_evaluations_leave_annealing_out():
    chosen = driver([[0.0, 0.0]], stages=(0.1, 0.5, 1.0), max_evaluations=3 * STAGE_LIMIT - 1)
    assert chosen.query().bandwidth_factor.tolist() == [1.0]
    enough = driver([[0.0, 0.0]], stages=(0.1, 0.5, 1.0), max_evaluations=3 * STAGE_LIMIT)
    assert enough.query().bandwidth_factor.tolist() == [0.1]


# -- a site leaves ---------------------------------------------------------------------------


def test_after_a_site_left_converged_starts_are_measured_again():
    """J of fewer records is smaller: a start that converged before must not be compared by it."""
    chosen = driver([[0.0], [10.5]], acceleration="none", tol=1e-9)
    for _ in range(2):
        query = chosen.query()
        chosen.advance(query, sums_of(query, into_basin, two_basins))
    assert chosen.starts[0].status == "converged"
    chosen.starts[1].status = "running"  # as if it had not been given up yet
    chosen.restart_histories(ONE_VIEW)
    assert chosen.objective is None
    # most records are gone, and with them most of J
    while not chosen.done:
        query = chosen.query()
        chosen.advance(query, sums_of(query, into_basin, lambda x: 0.1 * two_basins(x)))
    assert chosen.best == 0
    assert chosen.objective == pytest.approx(0.1)
    assert_never_rises(chosen.objective_history)


def test_a_dropped_start_is_not_chosen_by_its_objective_over_other_records():
    """J rises when a view leaves and the others' weights grow: the old J looked the best."""
    chosen = driver([[12.0], [1.0]], acceleration="none", tol=1e-9)
    while chosen.starts[0].status == "running":
        query = chosen.query()
        chosen.advance(query, sums_of(query, into_basin, two_basins))
    assert chosen.starts[0].status == "dropped"
    assert chosen.starts[1].status == "running"
    chosen.restart_histories(ONE_VIEW)
    assert chosen.objective is None
    assert chosen.best == 1
    while not chosen.done:
        query = chosen.query()
        assert query.starts.tolist() == [1]
        chosen.advance(query, sums_of(query, into_basin, lambda x: 100.0 * two_basins(x)))
    assert [s.status for s in chosen.starts] == ["dropped", "converged"]
    assert chosen.best == 1
    assert chosen.converged
    assert chosen.objective == pytest.approx(100.0)


def test_a_direction_that_cannot_be_solved_for_is_none():
    huge = [(np.zeros(2), np.full(2, s * 1e308)) for s in (-1.0, 1.0, -1.0)]
    assert anderson_step(huge) is None
    assert anderson_step([(np.zeros(1), np.ones(1)), (np.zeros(1), np.array([np.nan]))]) is None


def test_a_view_that_nobody_holds_any_more_loses_its_weight_and_keeps_its_centres():
    chosen = FixedPointDriver(
        [np.full((1, 1, 1), 3.0), np.full((1, 1, 1), 4.0)],
        np.array([[0.25, 0.75]]),
        view_exponent=2.0,
        holding_share=np.ones(2),
        active=np.ones(2, dtype=bool),
        tol=1e-6,
        max_evaluations=10,
        acceleration="anderson",
    )
    chosen.restart_histories(np.array([True, False]))
    nothing, some = np.zeros((1, 1, 1)), np.ones((1, 1, 1))
    while not chosen.done:
        query = chosen.query()
        assert query.view_weights.tolist() == [[1.0, 0.0]]
        chosen.advance(
            query, SufficientStatistics((some, nothing), (some, nothing), np.array([[2.0, 0.0]]))
        )
    centers, weights = chosen.solution()
    assert weights.tolist() == [1.0, 0.0]
    assert [a.item() for a in centers] == [1.0, 4.0]


def test_an_old_objective_is_not_compared_after_a_site_left():
    start = Start(np.zeros(1), (1.0,))
    start.advance(10.0, np.ones(1), 1e-6, True)
    start.advance(9.0, np.ones(1), 1e-6, True)
    start.forget()
    start.advance(9.5, np.ones(1), 1e-6, True)
    assert start.objective == 9.5
    assert start.status == "running"


@pytest.mark.parametrize("acceleration", ["anderson", "none"])
def test_records_on_their_own_centres_end_the_run_with_a_start_left(acceleration):
    """J is noise around 1e-16 there; once every start was dropped against a frozen one."""
    from fedmvc_client.estimators import HKMVFC
    from fedmvc_server.simulation import simulate

    rng = np.random.default_rng(0)
    views = [rng.normal(size=(6, 2)), rng.normal(size=(6, 2))]
    plan = {
        "method": "fedhk-mvfc",
        "profile": "paper",
        "n_clusters": 6,
        "fedhk": {"acceleration": acceleration},
    }
    result = simulate(plan, {"a": {"views": views}})
    assert result.status == "completed", result.stop_reason
    assert result.rounds < 10
    assert result.warnings == []
    assert sorted(result.site_results["a"].labels) == list(range(6))
    model = HKMVFC(6, profile="paper").fit(views)
    assert model.warnings_ == []
    assert sorted(model.labels_) == list(range(6))
