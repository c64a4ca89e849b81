"""Where the swarm meets tensor learning: the paper's closed loop, and the search over keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from configs.mufsht_profiles import Variant
from fedmvc_client.solvers.chunks import one_intra_op_thread
from fedmvc_client.solvers.tensor_learning import TensorLearning
from fedmvc_client.solvers.thro import THRO
from fedmvc_client.solvers.thro_fitness import FreeEmbeddingFitness, fold, unfold
from fedmvc_client.solvers.thro_keys import KeysFitness, search_keys

Floats = NDArray[np.float64]

#: Rounds of the closed loop; swarm iterations and sweeps in each.
ROUNDS = 2
ITERATIONS = 20
SWEEPS = 5
#: Half the width of the box that the weights' search starts in; rows have norms of at most 1.
SCALE = 0.1


def closed_loop(
    model: TensorLearning,
    *,
    start: Sequence[Floats] | None = None,
    rounds: int = ROUNDS,
    iterations: int = ITERATIONS,
    sweeps: int = SWEEPS,
    variant: Variant = "hc-thro",
    population: int = 30,
    random_state: int = 0,
) -> list[float]:
    """Alternate the search over weights with sweeps: stage 1 and stage 2 of the paper.

    The swarm's best weights start the sweeps, and what these reach takes the place of its worst
    horse. `TensorLearning.start_svd` reaches a lower objective without any search.

    Parameters
    ----------
    model : TensorLearning
        Started here.
    start : sequence of ndarray of shape (d_v, k), optional
        Weights of every view that the model and one horse start from (Eq. 18): then nothing that
        the model learned before takes part.
    rounds, iterations, sweeps : int
        Rounds of the loop; swarm iterations and sweeps in each. Without sweeps the search alone
        makes the weights.
    variant, population, random_state
        As for :class:`fedmvc_client.solvers.thro.THRO`.

    Returns
    -------
    list of float
        The objective after each sweep, or after each search where there is no sweep; it may rise
        where the swarm takes over again.
    """
    sizes = [len(view) for view in model.problem().views]
    seeds = []
    if start is not None:
        model.start_from(start)
        seeds = [_position(model, start)]
    swarm = THRO(
        sum(sizes) * model.rank,
        variant=variant,
        population=population,
        iterations=rounds * iterations,
        scale=SCALE,
        seeds=seeds,
        random_state=random_state,
        device=model.device,
    )
    history: list[float] = []
    for _ in range(rounds):
        with one_intra_op_thread():
            problem = model.problem()
            fitness = FreeEmbeddingFitness(
                problem.views,
                view_weights=problem.view_weights,
                laplacians=problem.laplacians,
                lam=problem.lam,
                beta=problem.beta,
                targets=problem.targets,
                tau=problem.tau if problem.targets is not None else 0.0,
            )
            found = unfold(swarm.run(fitness, iterations).position, sizes)
        model.start_from(model.spread([w.cpu().numpy() for w in found]))
        history += model.descend(sweeps, 0.0) or [model.objective()]
        swarm.place(_position(model, model.weights))
    return history


def _position(model: TensorLearning, weights: Sequence[Floats]) -> torch.Tensor:
    """Return weights of every view as a position of the swarm."""
    held = [torch.tensor(np.ascontiguousarray(w)) for w in model.gather(weights)]
    return fold(held).to(model.device)


def refine_order(
    model: TensorLearning,
    order: NDArray[np.int64],
    m: int,
    *,
    variant: Variant = "hc-thro",
    random_state: int = 0,
) -> NDArray[np.int64]:
    """Search for m features that explain the embeddings better than the first of an order.

    Parameters
    ----------
    model : TensorLearning
        After its sweeps.
    order : ndarray of shape (D,), int64
        Features of all views side by side, best first.
    m : int
        Features wanted.
    variant, random_state
        As for :class:`fedmvc_client.solvers.thro.THRO`.

    Returns
    -------
    ndarray of shape (D,), int64
        The m found first; both parts in the given order.
    """
    views = [torch.from_numpy(model.imputed(v)) for v in range(len(model.n_features))]
    embeddings = [torch.from_numpy(z) for z in model.embeddings if z is not None]
    with one_intra_op_thread():
        fitness = KeysFitness(views, embeddings, m)
        found = search_keys(
            fitness, torch.tensor(order), variant=variant, random_state=random_state
        )
    return found.order.numpy()
