"""J never rises in exact mode, with and without acceleration, federated and on one machine."""

import numpy as np
import pytest

from fedmvc_client.estimators import HKMVFC
from fedmvc_server.cardio import cardio_views, gaussian_views
from tests.federation.harness import federate, plan_of, split, workers_of
from tests.solvers.cases import KERNELS


def iris():
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    return [x[:, [0, 2]], x[:, [1, 3]]], y


def wine():
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    return [x[:, :6], x[:, 6:]], y


DATA = {
    "cardio": lambda: cardio_views(300, 0),
    "iris": iris,
    "wine": wine,
    "noise view": lambda: gaussian_views(200, 1, n_clusters=3, noise_views=1, outliers=0.05),
    "confused views": lambda: gaussian_views(200, 2, confusions=[[(0, 1)], [(2, 3)]]),
    "uneven sizes": lambda: gaussian_views(200, 3, proportions=[0.7, 0.1, 0.1, 0.1]),
}


def assert_never_rises(objectives):
    values = np.array(objectives)
    assert np.isfinite(values).all()
    assert values.size > 2
    assert (np.diff(values) <= 1e-12 * np.abs(values[:-1])).all()


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("acceleration", ["anderson", "none"])
def test_the_objective_never_rises_over_a_federation(number, acceleration):
    """Each data set under two of the three kernels, one with and one without acceleration."""
    views, truth = list(DATA.values())[number]()
    sites, _ = split(views, truth, "dirichlet", 3)
    plan = plan_of(
        3,
        heat_kernel=KERNELS[(number + (acceleration == "none")) % 3],
        scaling="standard",
        bandwidth="auto",
        init="box",
        n_init=4,
        acceleration=acceleration,
        max_rounds=40,
        tol=1e-9,
    )
    result = federate(plan, workers_of(sites))
    assert_never_rises([record["objective"] for record in result.history])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", DATA)
def test_the_objective_never_rises_from_random_seeds_on_one_machine(name, kernel):
    views, _ = DATA[name]()
    for seed in range(4):
        model = HKMVFC(
            4,
            heat_kernel=kernel,
            scaling="minmax",
            fuzzifier=1.5,
            n_init=2,
            random_state=seed,
            device="cpu",
        ).fit(views)
        assert_never_rises(model.objective_history_)


def test_annealing_reports_the_full_bandwidth_alone():
    views, truth = DATA["wine"]()
    sites, _ = split(views, truth, "iid", 2)
    result = federate(plan_of(3, profile="robust", max_rounds=100), workers_of(sites))
    objectives = [record["objective"] for record in result.history]
    annealed = [np.isnan(j) for j in objectives]
    assert annealed == sorted(annealed, reverse=True)
    assert annealed[0] and not annealed[-1]
    assert_never_rises([j for j in objectives if not np.isnan(j)])


@pytest.mark.parametrize(("limit", "left_out"), [(23, True), (24, False)])
def test_a_run_too_short_to_anneal_says_so(limit, left_out):
    views, truth = DATA["wine"]()
    sites, _ = split(views, truth, "iid", 2)
    result = federate(plan_of(3, profile="robust", max_rounds=limit), workers_of(sites))
    said = [w for w in result.warnings if "annealing is left out" in w]
    assert len(said) == left_out
    assert all("at least 24 rounds" in w and f"max_rounds is {limit}" in w for w in said)
    assert np.isnan(result.history[0]["objective"]) == (not left_out)


@pytest.mark.parametrize("name", ["iris", "wine", "cardio"])
def test_acceleration_never_ends_worse_and_takes_fewer_exchanges(name):
    views, _ = DATA[name]()
    ends, exchanges = {}, {}
    for acceleration in ("anderson", "none"):
        plan = plan_of(
            3,
            profile="paper",
            init="box",
            n_init=3,
            acceleration=acceleration,
            max_rounds=500,
            tol=1e-9,
        )
        result = federate(plan, workers_of({"all": {"views": views}}))
        ends[acceleration], exchanges[acceleration] = result.metrics["objective"], result.rounds
    assert ends["anderson"] <= ends["none"] * (1 + 1e-3)
    assert exchanges["anderson"] < exchanges["none"]


def test_ten_batched_starts_take_about_the_exchanges_of_one():
    views, truth = DATA["cardio"]()
    sites, _ = split(views, truth, "iid", 2)
    options = {"profile": "paper", "init": "kmeans", "max_rounds": 200}
    one, ten = (federate(plan_of(4, n_init=n, **options), workers_of(sites)) for n in (1, 10))
    assert ten.rounds <= one.rounds + 3
    assert ten.metrics["objective"] <= one.metrics["objective"] * (1 + 1e-6)


def test_losing_starts_leave_the_messages():
    views, truth = DATA["uneven sizes"]()
    sites, _ = split(views, truth, "iid", 2)
    plan = plan_of(4, profile="paper", init="box", n_init=10, acceleration="none", max_rounds=200)
    result = federate(plan, workers_of(sites))
    sizes = [record["bytes_up"] for record in result.history]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.5 * sizes[0]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_max_rounds_is_respected_and_said(limit):
    views, truth = DATA["wine"]()
    sites, _ = split(views, truth, "iid", 2)
    for aggregation in ("exact", "weighted"):
        plan = plan_of(3, profile="paper", aggregation=aggregation, max_rounds=limit, tol=0.0)
        result = federate(plan, workers_of(sites))
        assert result.rounds == limit
        assert result.status == "completed"
        assert any(f"max_rounds = {limit}" in warning for warning in result.warnings)
