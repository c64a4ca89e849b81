"""The paper's closed loop, and the search over keys, around tensor learning."""

import numpy as np
import pytest
import torch

from fedmvc_client.solvers.feature_preparation import standardise
from fedmvc_client.solvers.feature_search import SCALE, closed_loop, refine_order
from fedmvc_client.solvers.tensor_learning import TensorLearning
from fedmvc_client.solvers.thro import THRO
from fedmvc_client.solvers.thro_fitness import FreeEmbeddingFitness, fold
from fedmvc_server.planted import without_cells
from tests.solvers.mufsht_reference import planted

SIZES = ((12, 5), (9, 4), (15, 6))
RAW, _ = planted(0, n=60, sizes=SIZES, n_clusters=3)


def learning(raw=RAW, rank=4, **options):
    prepared = [standardise(view)[0] for view in raw]
    masks = [p.observed for p in prepared]
    return TensorLearning([p.values for p in prepared], masks, rank, **options)


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_the_problem_of_the_weights_is_what_is_left_of_the_objective():
    """After a Z step no other Z does better: the swarm's fitness and F differ by a constant."""
    model = learning(without_cells(RAW, 0.2, 0), mu=0.0, temp=0.0, ridge=0.0)
    model.start_svd()
    model.factors.update([view.embedding for view in model._views])
    model.update_embeddings()
    problem = model.problem()
    fitness = FreeEmbeddingFitness(
        problem.views,
        view_weights=problem.view_weights,
        laplacians=problem.laplacians,
        lam=problem.lam,
        beta=problem.beta,
        targets=problem.targets,
        tau=problem.tau,
    )
    position = fold([torch.from_numpy(w) for w in model.weights])
    assert float(fitness(position[None])) == pytest.approx(model.objective(), rel=1e-9)


def test_before_a_start_there_is_no_consensus():
    assert learning().problem().targets is None


def test_views_that_are_not_there_are_left_out_and_put_back():
    absent = np.full((60, 5), np.nan)
    model = learning([RAW[0], absent, RAW[1]])
    assert [len(view) for view in model.problem().views] == [12, 9]
    weights = [np.ones((d, 4)) for d in (12, 5, 9)]
    found = model.spread(model.gather(weights))
    assert [w.sum() for w in found] == [48, 0, 36]


def test_the_loop_descends_in_each_round():
    history = closed_loop(learning(), random_state=3)
    assert len(history) == 10
    for part in (history[:5], history[5:]):
        assert (np.diff(part) <= 1e-12).all()
    assert closed_loop(learning(), random_state=3) == history
    assert closed_loop(learning(), random_state=4) != history


def test_a_start_is_one_of_the_horses():
    good = learning()
    good.start_svd()
    good.descend(20, 0.0)
    model = learning()
    (found,) = closed_loop(model, start=good.weights, rounds=1, iterations=2, sweeps=0)
    (drawn,) = closed_loop(learning(), rounds=1, iterations=2, sweeps=0)
    assert found < 0.5 * drawn
    other = learning()
    other.start_svd()
    other.descend(3, 0.0)
    again = closed_loop(other, start=good.weights, rounds=1, iterations=2, sweeps=0)
    assert again == [found]  # what the model had learned before takes no part


def test_without_sweeps_the_weights_are_the_swarms_best():
    model = learning()
    history = closed_loop(model, rounds=1, iterations=4, sweeps=0)
    assert history == [model.objective()]
    problem = learning().problem()
    fitness = FreeEmbeddingFitness(
        problem.views,
        view_weights=problem.view_weights,
        laplacians=problem.laplacians,
        lam=problem.lam,
        beta=problem.beta,
        targets=None,
        tau=0.0,
    )
    swarm = THRO(36 * 4, iterations=4, scale=SCALE)
    np.testing.assert_array_equal(
        np.concatenate(model.weights).ravel(), swarm.run(fitness, 4).position.numpy()
    )


@pytest.mark.parametrize("variant", ["thro", "no-hcl", "no-acm"])
def test_each_variant_searches_in_its_own_way(variant):
    full, part = learning(), learning()
    assert closed_loop(full, rounds=1, sweeps=1) != closed_loop(
        part, rounds=1, sweeps=1, variant=variant
    )


def test_the_svd_start_ends_lower_at_no_search_cost():
    plain = learning()
    plain.start_svd()
    reached = plain.descend(10, 0.0)[-1]
    assert reached < min(closed_loop(learning(), random_state=seed)[-1] for seed in range(3))


def test_the_number_of_threads_does_not_matter(torch_threads):
    raw, _ = planted(1, n=300)
    found = []
    for n_threads in (1, 2):
        torch_threads(n_threads)
        model = learning(raw, 5)
        history = closed_loop(model)
        found.append((history, refine_order(model, np.arange(190), 20).tolist()))
    assert found[0] == found[1]


def test_better_features_come_first():
    model = learning()
    model.start_svd()
    model.descend(10, 0.0)
    order = np.arange(36)[::-1].copy()
    found = refine_order(model, order, 8)

    def unexplained(chosen):
        x = np.concatenate([model.imputed(v) for v in range(3)])[chosen]
        z = np.concatenate(model.embeddings)
        inside = z @ x.T @ np.linalg.solve(x @ x.T + 1e-3 * np.eye(8), x)
        return ((z - inside) ** 2).sum() / (z**2).sum()

    assert sorted(found.tolist()) == list(range(36))
    assert (np.diff(found[:8]) < 0).all()
    assert (np.diff(found[8:]) < 0).all()
    assert unexplained(found[:8]) < unexplained(order[:8]) - 0.05
