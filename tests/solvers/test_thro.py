"""The swarm beside slow loops, its two fitness functions over weights, and the search over keys."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from fedmvc_client.solvers import thro_keys
from fedmvc_client.solvers.feature_laplacian import feature_laplacian
from fedmvc_client.solvers.thro import (
    THRO,
    cognitive_mapping,
    competitive_learning,
    pair_races,
)
from fedmvc_client.solvers.thro_fitness import (
    FixedEmbeddingFitness,
    FreeEmbeddingFitness,
    fold,
    unfold,
)
from fedmvc_client.solvers.thro_keys import KeysFitness, search_keys, selected

VARIANTS = ("hc-thro", "thro", "no-hcl", "no-acm")
K = 3


def tensor(array):
    return torch.tensor(array, dtype=torch.float64)


def sphere(x):
    return (x - 0.3).square().sum(dim=1)


def orthonormal(rows, n, rng):
    return np.linalg.qr(rng.normal(size=(n, rows)))[0].T


class Case:
    """Views of unit rows around a shared embedding, and weights to rate."""

    def __init__(self, seed=0, sizes=(9, 14, 6), n=20):
        rng = np.random.default_rng(seed)
        self.sizes, self.n = sizes, n
        base = orthonormal(K, n, rng)
        self.views = []
        for d in sizes:
            x = rng.normal(size=(d, K)) @ base + 0.3 * rng.normal(size=(d, n)) / np.sqrt(n)
            self.views.append(x / np.linalg.norm(x, axis=1, keepdims=True))
        self.embeddings = [orthonormal(K, n, rng) for _ in sizes]
        self.targets = [0.5 * rng.normal(size=(K, n)) for _ in sizes]
        self.weights = rng.uniform(-1, 1, size=(7, sum(sizes), K))
        self.alpha = [0.2, 0.5, 0.3][: len(sizes)]
        self.laplacians = [feature_laplacian(tensor(x)) for x in self.views]

    @property
    def positions(self):
        return tensor(self.weights.reshape(len(self.weights), -1))

    def options(self, lam=0.1, beta=0.05):
        return {
            "view_weights": self.alpha,
            "laplacians": self.laplacians,
            "lam": lam,
            "beta": beta,
        }

    def fixed(self, **options):
        embeddings = [tensor(z) for z in self.embeddings]
        return FixedEmbeddingFitness([tensor(x) for x in self.views], embeddings, **options)

    def free(self, **options):
        return FreeEmbeddingFitness([tensor(x) for x in self.views], **options)

    def slow(self, weights, embeddings, lam, beta, tau=0.0):
        """F of one W and Z as the formula has it."""
        total, start = 0.0, 0
        for v, (x, z) in enumerate(zip(self.views, embeddings, strict=True)):
            d = len(x)
            w = weights[start : start + d]
            q = self.laplacians[v].to_dense().numpy()
            part = self.alpha[v] * np.linalg.norm(x - w @ z) ** 2
            part += lam * np.trace(w.T @ q @ w)
            part += beta * sum(np.linalg.norm(row) for row in w)
            total += part / d + tau / K * np.linalg.norm(z - self.targets[v]) ** 2
            start += d
        return total

    def best_embeddings(self, weights, tau=0.0):
        found, start = [], 0
        for v, x in enumerate(self.views):
            w = weights[start : start + len(x)]
            y = self.alpha[v] / len(x) * w.T @ x + tau / K * self.targets[v]
            left, _, right = np.linalg.svd(y, full_matrices=False)
            found.append(left @ right)
            start += len(x)
        return found


def turn(seed):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(K, K)))[0]


# -- Eqs. 4 and 5 ---------------------------------------------------------------------------------


def test_equation_4_moves_towards_rival_and_peer():
    x, rival, peer = tensor([0.0, 1.0]), tensor([1.0, 1.0]), tensor([0.0, -1.0])
    draws = (tensor([0.5, 0.5]), tensor([1.0, 0.25]))
    # alpha_0 = .5, beta_0 = 1; alpha_1 = 1.5, beta_1 = 0
    assert competitive_learning(x, rival, peer, draws, 0.0).tolist() == [0.25, 0.5]
    assert competitive_learning(x, rival, peer, draws, 1.0).tolist() == [0.75, 1.0]


def test_equation_5_moves_towards_memory_and_mean():
    moved, x, memory, mean = (tensor([v]) for v in (10.0, 1.0, 3.0, 5.0))
    assert cognitive_mapping(moved, x, memory, mean, 0.0).tolist() == [12.0]
    assert cognitive_mapping(moved, x, memory, mean, 1.0).tolist() == [11.0]
    assert cognitive_mapping(moved, x, memory, mean, 0.5).tolist() == [11.5]


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("variant", ["hc-thro", "no-hcl", "no-acm"])
def test_the_swarm_equals_a_horse_by_horse_loop(variant, greedy):
    n, dims, iterations = 4, 3, 5
    swarm = THRO(
        dims,
        variant=variant,
        population=2 * n,
        iterations=iterations,
        scale=2.0,
        greedy=greedy,
        random_state=7,
    )
    result = swarm.run(sphere)

    draw = torch.Generator().manual_seed(7)
    rand = {"generator": draw, "dtype": torch.float64}
    x = (4 * torch.rand(2 * n, dims, **rand) - 2).clamp(-1, 1).numpy().reshape(2, n, dims)
    rate = lambda p: float(sphere(tensor(p[None]))[0])  # noqa: E731
    fit = np.array([[rate(p) for p in group] for group in x])
    memory, record = x.copy(), fit.copy()
    history = [record.min()]
    for t in range(1, iterations + 1):
        u = t / iterations
        peers = torch.randint(0, n - 1, (2, n), generator=draw).numpy()
        if variant != "no-hcl":
            r1 = torch.rand(2, n, dims, **rand).numpy()
            r2 = torch.rand(2, n, dims, **rand).numpy()
        new = x.copy()
        for g in range(2):
            for i in range(n):
                if variant != "no-hcl":
                    others = [j for j in range(n) if j != i]
                    rival, peer = x[1 - g][fit[1 - g].argmin()], x[g][others[peers[g, i]]]
                    new[g, i] += (0.5 + u) * r1[g, i] * (rival - x[g, i])
                    new[g, i] += (1 - u) * r2[g, i] * (peer - x[g, i])
                if variant != "no-acm":
                    new[g, i] += 0.5 * u * (memory[g, i] - x[g, i])
                    new[g, i] += 0.5 * (1 - u) * (x[g].mean(axis=0) - x[g, i])
        new = new.clip(-1, 1)
        for g in range(2):
            for i in range(n):
                f = rate(new[g, i])
                if f < record[g, i]:
                    record[g, i], memory[g, i] = f, new[g, i]
        if greedy:
            x, fit = memory.copy(), record.copy()
        else:
            x, fit = new, np.array([[rate(p) for p in group] for group in new])
        history.append(record.min())
    assert np.abs(np.array(result.history) - history).max() < 1e-12
    best = memory.reshape(-1, dims)[record.argmin()]
    assert np.abs(result.position.numpy() - best).max() < 1e-12


# -- races of the base optimiser ------------------------------------------------------------------


def test_a_faster_slowest_horse_races_the_kings_slowest():
    assert pair_races([1, 2], [3, 4], [0, 0]) == [(1, 0, 3, 1), (0, 0, 2, 0)]


def test_a_slower_slowest_horse_is_given_away_to_the_kings_fastest():
    # 6 > 5: given away; then 2 < 5: beats the King's slowest; then 1 < 4
    races = pair_races([1, 2, 6], [3, 4, 5], [1, 0, 0])
    assert races == [(2, 1, 3, 3), (1, 0, 5, 1), (0, 0, 4, 0)]


def test_equal_slowest_horses_leave_it_to_the_fastest():
    assert pair_races([1, 5], [2, 5], [0, 0])[0] == (0, 0, 2, 0)
    assert pair_races([2, 5], [1, 5], [0, 0])[0] == (1, 0, 2, 2)


@given(
    st.lists(st.integers(0, 5), min_size=6, max_size=6),
    st.lists(st.integers(0, 5), min_size=6, max_size=6),
)
def test_every_horse_races_once(tianji, king):
    races = pair_races(sorted(tianji), sorted(king), [2] * 6)
    assert sorted(a for a, _, _, _ in races) == list(range(6))
    assert sorted(b for _, _, b, _ in races) == list(range(6, 12))


def test_the_base_optimiser_equals_a_horse_by_horse_loop():
    n, dims, iterations, bound = 4, 3, 6, 0.6

    def uneven(x):
        return ((x - tensor([0.5, -0.2, 0.1])) * tensor([1.0, 2.0, 3.0])).square().sum(dim=1)

    swarm = THRO(
        dims, variant="thro", population=2 * n, iterations=iterations, bound=bound, random_state=5
    )
    result = swarm.run(uneven)

    draw = torch.Generator().manual_seed(5)

    def uniform(*shape):
        return torch.rand(shape, generator=draw, dtype=torch.float64).numpy()

    def normal(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64).numpy()

    def levy(*shape):
        top, below = normal(*shape), normal(*shape)
        return 0.6965745 * top / np.abs(below) ** (2 / 3)

    def rate(position):
        return float(uneven(tensor(position[None]))[0])

    horses = [(rate(p), p) for p in (2 * uniform(2 * n, dims) - 1).clip(-bound, bound)]
    history = [min(f for f, _ in horses)]

    def offer(i, position):
        position = position.clip(-bound, bound)
        f = rate(position)
        return (f, position) if f < horses[i][0] else horses[i]

    for t in range(1, iterations + 1):
        u = t / iterations
        dealt = torch.randperm(2 * n, generator=draw).tolist()
        teams = [
            sorted((horses[i] for i in dealt[g * n : g * n + n]), key=lambda h: h[0])
            for g in range(2)
        ]
        horses = teams[0] + teams[1]
        strangers = torch.randint(0, n, (n,), generator=draw).tolist()
        races = pair_races([f for f, _ in teams[0]], [f for f, _ in teams[1]], strangers)
        runs = [(a, b) for a, b, _, _ in races] + [(c, d) for _, _, c, d in races]
        gap = np.mean([p for _, p in teams[0]], axis=0) - np.mean([p for _, p in teams[1]], axis=0)
        share = np.sin(np.pi / 2 * uniform(2 * n, 1))
        pull = levy(2 * n, 1) * (uniform(2 * n, dims) < share)
        stretch = 1 + np.round(0.5 * (0.5 + uniform(2 * n, 1))) * normal(2 * n, 1)
        shift = np.round(0.5 * (0.1 + uniform(2 * n, 1))) * normal(2 * n, 1)
        raced = list(horses)
        for row, (i, j) in enumerate(runs):
            x, guide = horses[i][1], horses[j][1]
            moved = (1 - u) * x + u * guide + pull[row] * (guide - x + (1 - u) * gap)
            raced[i] = offer(i, moved * stretch[row] + shift[row])
        horses = raced
        pairs = uniform(2, n, n).argsort(axis=2)
        step, swing, coin = levy(2, n, dims), uniform(2, n, dims), uniform(2, n, dims)
        trained = list(horses)
        for g in range(2):
            team = horses[g * n : g * n + n]
            best = min(team, key=lambda h: h[0])[1]
            for i, (_, x) in enumerate(team):
                one, two = team[pairs[g, i, 0]][1], team[pairs[g, i, 1]][1]
                wander = x + 0.2 * step[g, i] * (one - two)
                m = 0.5 * (1 + 0.001 * (1 - u) ** 2 * np.sin(np.pi * swing[g, i]))
                follow = best + m * (best - x)
                trained[g * n + i] = offer(g * n + i, np.where(coin[g, i] > 0.5, wander, follow))
        horses = trained
        history.append(min(f for f, _ in horses))
    assert np.abs(np.array(result.history) - history).max() < 1e-6
    assert np.abs(result.position.numpy() - min(horses, key=lambda h: h[0])[1]).max() < 1e-6
    assert history[-1] < history[0]


# -- the swarm ------------------------------------------------------------------------------------


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_best_never_gets_worse_and_stays_in_bounds(variant, greedy):
    def near(x):
        return (x - 0.05).square().sum(dim=1)

    swarm = THRO(6, variant=variant, iterations=30, scale=1.0, bound=0.25, greedy=greedy)
    result = swarm.run(near)
    history = np.array(result.history)
    assert len(history) == 31
    assert (np.diff(history) <= 0).all()
    assert history[-1] < history[0]
    assert result.fitness == float(near(result.position[None])[0])
    assert float(result.position.abs().max()) <= 0.25


@pytest.mark.parametrize(
    ("variant", "evaluations", "reached"), [("hc-thro", 3030, 1e-2), ("thro", 6030, 1e-4)]
)
def test_the_papers_setting_comes_near_a_plain_minimum(variant, evaluations, reached):
    result = THRO(5, variant=variant, random_state=1).run(sphere)
    assert result.evaluations == evaluations
    assert result.fitness < reached < result.history[0]


def test_without_competition_the_swarm_only_contracts():
    result = THRO(5, variant="no-hcl", random_state=1).run(sphere)
    assert result.fitness > 1e-2


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_seed_decides(variant):
    def run(seed):
        return THRO(4, variant=variant, iterations=5, random_state=seed).run(sphere)

    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = run(3), run(3), run(4)
    assert torch.equal(first.position, again.position)
    assert first.history == again.history
    assert first.history != other.history
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_uses_one_thread_of_torch_and_gives_the_others_back():
    seen = []

    def rate(x):
        seen.append(torch.get_num_threads())
        return sphere(x)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        THRO(3, iterations=1).run(rate)
        assert seen == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_seeded_swarm_is_never_worse_than_its_seeds(variant):
    seeds = [tensor([0.31] * 4), tensor([0.3, 0.3, 0.3, 0.31])]
    result = THRO(4, variant=variant, iterations=3, seeds=seeds).run(sphere)
    assert result.history[0] == float(sphere(seeds[1][None])[0])
    assert result.fitness <= result.history[0]


def test_a_run_goes_on_under_another_fitness_and_from_a_placed_position():
    swarm = THRO(4, iterations=6)
    first = swarm.run(sphere, 3)
    swarm.place(tensor([-0.5, -0.5, -0.5, -2.0]))

    def other(x):
        return (x + 0.5).square().sum(dim=1)

    second = swarm.run(other)
    assert len(first.history) == len(second.history) == 4
    assert second.history[0] == pytest.approx(0.25)  # the placed one, clipped to -1
    assert second.fitness <= second.history[0]


@pytest.mark.parametrize("seed", range(8))
def test_placing_replaces_the_worst_horse_only(seed):
    swarm = THRO(2, population=4, iterations=4, random_state=seed)
    best = swarm.run(sphere, 1)
    swarm.place(tensor([1.0, 1.0]))
    assert swarm.run(sphere, 1).history[0] == best.fitness


def test_memory_apart_from_the_place_changes_the_run():
    kept = [THRO(6, iterations=10, greedy=greedy).run(sphere).history for greedy in (True, False)]
    assert kept[0] != kept[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"population": 3}, "3 horses is too small: give at least 4"),
        ({"iterations": 0}, "0 iterations does nothing: give at least 1"),
        ({"population": 4, "seeds": [torch.zeros(2)] * 5}, "5 seeds do not fit 4 horses"),
    ],
)
def test_settings_that_cannot_run_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        THRO(2, **options)


# -- fitness over weights -------------------------------------------------------------------------


@pytest.mark.parametrize(("lam", "beta"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.05), (0.2, 0.05)])
@pytest.mark.parametrize("n", [8, 40])
def test_fixed_embeddings_batched_equals_the_loop(n, lam, beta):
    case = Case(n=n)
    found = case.fixed(**case.options(lam, beta))(case.positions)
    expected = [case.slow(w, case.embeddings, lam, beta) for w in case.weights]
    assert np.abs(found.numpy() - expected).max() < 1e-12


@pytest.mark.parametrize(("lam", "beta"), [(0.0, 0.0), (0.2, 0.05)])
@pytest.mark.parametrize("tau", [0.0, 0.3])
@pytest.mark.parametrize("n", [8, 40])
def test_free_embeddings_batched_equals_the_loop(n, tau, lam, beta):
    case = Case(n=n)
    targets = [tensor(t) for t in case.targets]
    fitness = case.free(**case.options(lam, beta), targets=targets, tau=tau)
    found = fitness(case.positions)
    expected = [case.slow(w, case.best_embeddings(w, tau), lam, beta, tau) for w in case.weights]
    assert np.abs(found.numpy() - expected).max() < 1e-9


def test_the_best_embeddings_beat_all_others():
    case = Case()
    free = case.free(**case.options())(case.positions)
    assert (free <= case.fixed(**case.options())(case.positions)).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.05, 1.0]))
def test_the_closed_form_beats_every_individual(seed, beta):
    case = Case(seed)
    fitness = case.fixed(view_weights=case.alpha, beta=beta)
    best = fitness.minimiser()
    least = float(fitness(best[None])[0])
    rng = np.random.default_rng(seed)
    near = best + 1e-3 * tensor(rng.normal(size=(200, len(best))))
    swarm = THRO(len(best), iterations=10, random_state=seed)
    assert least <= float(fitness(case.positions).min())
    assert least <= float(fitness(near).min())
    assert least <= float(fitness(torch.zeros_like(best)[None])[0]) + 1e-15
    assert least <= swarm.run(fitness).fitness


def test_the_closed_form_leaves_rows_out():
    case = Case()
    for w in unfold(case.fixed(view_weights=case.alpha, beta=10.0).minimiser(), case.sizes):
        assert torch.equal(w, torch.zeros_like(w))
    some = unfold(case.fixed(view_weights=case.alpha, beta=0.2).minimiser(), case.sizes)
    zero = [bool((w == 0).all(dim=1).any()) for w in some]
    assert any(zero) and not any(bool((w == 0).all()) for w in some)


def test_with_a_laplacian_the_steps_fall_to_the_minimum():
    case = Case()
    fitness = case.fixed(**case.options(lam=0.3))
    values = [float(fitness(fitness.minimiser(steps)[None])[0]) for steps in range(1, 12)]
    assert (np.diff(values) <= 1e-15).all()
    assert values[-1] < values[0]
    best = fitness.minimiser(500)
    near = best + 1e-4 * tensor(np.random.default_rng(0).normal(size=(200, len(best))))
    assert float(fitness(best[None])[0]) <= float(fitness(near).min())


def test_a_seeded_swarm_keeps_the_closed_form():
    case = Case()
    fitness = case.fixed(view_weights=case.alpha, beta=0.05)
    best = fitness.minimiser()
    result = THRO(len(best), iterations=20, seeds=[best]).run(fitness)
    assert result.fitness == pytest.approx(float(fitness(best[None])[0]), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_a_rotation_is_free_only_with_free_embeddings(seed):
    case = Case(seed)
    turned = tensor((case.weights @ turn(seed)).reshape(len(case.weights), -1))
    free, fixed = case.free(**case.options()), case.fixed(**case.options())
    assert (free(turned) - free(case.positions)).abs().max() < 1e-12
    assert (fixed(turned) - fixed(case.positions)).abs().max() > 1e-3


def test_mixing_two_rotations_of_the_solution_destroys_it():
    case = Case()
    fitness = case.free(view_weights=case.alpha)
    views = [np.linalg.svd(x, full_matrices=False) for x in case.views]
    best = np.concatenate([u[:, :K] * s[:K] for u, s, _ in views])
    turned = best @ turn(0)
    mixed = tensor(np.stack([best, turned, (best + turned) / 2]).reshape(3, -1))
    one, same, between = fitness(mixed).tolist()
    assert same == pytest.approx(one, abs=1e-12)
    assert between > 1.2 * one


def test_permuted_features_and_samples_change_nothing():
    case, moved = Case(), Case()
    rng = np.random.default_rng(0)
    samples = rng.permutation(case.n)
    starts = np.cumsum([0, *case.sizes])
    orders = [rng.permutation(d) for d in case.sizes]
    moved.views = [x[p][:, samples] for x, p in zip(case.views, orders, strict=True)]
    moved.embeddings = [z[:, samples] for z in case.embeddings]
    moved.laplacians = [feature_laplacian(tensor(x)) for x in moved.views]
    where = np.concatenate([s + p for s, p in zip(starts, orders, strict=False)])
    moved.weights = case.weights[:, where]
    for kind in ("fixed", "free"):
        before = getattr(case, kind)(**case.options())(case.positions)
        after = getattr(moved, kind)(**moved.options())(moved.positions)
        assert (before - after).abs().max() < 1e-12


def test_one_alternating_sweep_beats_the_swarm_over_weights():
    case = Case(sizes=(40, 30, 50), n=60)
    fitness = case.free(view_weights=case.alpha)
    swarm = THRO(120 * K, scale=0.1).run(fitness)
    start = case.fixed(view_weights=case.alpha).minimiser()
    case.embeddings = case.best_embeddings(start.view(-1, K).numpy())
    sweep = case.fixed(view_weights=case.alpha).minimiser()
    assert float(fitness(sweep[None])[0]) < swarm.fitness


def test_folding_and_back():
    weights = [tensor(np.arange(6.0).reshape(3, 2)), tensor([[9.0, 8.0]])]
    position = fold(weights)
    assert position.tolist() == [0, 1, 2, 3, 4, 5, 9, 8]
    assert all(torch.equal(a, b) for a, b in zip(unfold(position, [3, 1]), weights, strict=True))


# -- feature keys ---------------------------------------------------------------------------------


def keys_fitness(case, m, **options):
    views = [tensor(x) for x in case.views]
    return KeysFitness(views, [tensor(z) for z in case.embeddings], m, **options)


def slow_unexplained(case, subset):
    """Ridge regression of every embedding on the subset, as least squares with extra rows."""
    x = np.concatenate(case.views)[subset].T
    z = np.concatenate(case.embeddings).T
    a = np.concatenate([x, np.sqrt(1e-3) * np.eye(len(subset))])
    b = np.concatenate([z, np.zeros((len(subset), z.shape[1]))])
    found = np.linalg.lstsq(a, b, rcond=None)[0]
    return ((a @ found - b) ** 2).sum() / (z**2).sum()


@pytest.mark.parametrize("m", [1, 5, 12, 25, 29])
@pytest.mark.parametrize("gram_features", [0, 1000])
@pytest.mark.parametrize("block_cells", [1, 1000])
def test_keys_batched_equal_the_loop(m, gram_features, block_cells, monkeypatch):
    monkeypatch.setattr(thro_keys, "BLOCK_CELLS", block_cells)
    case = Case()
    keys = np.random.default_rng(0).uniform(-1, 1, size=(6, 29))
    found = keys_fitness(case, m, gram_features=gram_features)(tensor(keys))
    expected = [slow_unexplained(case, np.argsort(-k)[:m]) for k in keys]
    assert np.abs(found.numpy() - expected).max() < 1e-10


def test_equal_keys_go_by_index():
    keys = tensor([[1.0, 0.0, 1.0, 1.0, -1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert selected(keys, 3).tolist() == [[0, 2, 3], [0, 1, 2]]


def test_more_features_explain_more():
    case = Case()
    keys = tensor(np.random.default_rng(1).uniform(-1, 1, size=(4, 29)))
    shares = torch.stack([keys_fitness(case, m)(keys) for m in range(1, 30)])
    assert (shares.diff(dim=0) <= 1e-12).all()
    assert 0 < float(shares.min()) < float(shares.max()) < 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_key_search_is_never_worse_than_its_seed(variant, seed):
    case = Case(seed)
    fitness = keys_fitness(case, 6)
    order = torch.tensor(np.random.default_rng(seed).permutation(29))
    found = search_keys(fitness, order, variant=variant, iterations=8, random_state=seed)
    assert found.unexplained <= found.seed_unexplained
    subset = order[:6].numpy()
    assert found.seed_unexplained == pytest.approx(slow_unexplained(case, subset), abs=1e-10)
    chosen = found.order[:6].numpy()
    assert found.unexplained == pytest.approx(slow_unexplained(case, chosen), abs=1e-10)
    assert sorted(found.order.tolist()) == list(range(29))
    good = found
    for more in range(5):
        good = search_keys(fitness, good.order, variant=variant, iterations=1, random_state=more)
        assert good.unexplained <= good.seed_unexplained <= found.unexplained + 1e-12


def test_the_key_search_keeps_the_order_of_its_seed_and_improves_a_random_one():
    case = Case()
    order = torch.tensor(np.random.default_rng(0).permutation(29))
    found = search_keys(keys_fitness(case, 6), order, iterations=30)
    rank = {feature: i for i, feature in enumerate(order.tolist())}
    ranks = [rank[feature] for feature in found.order.tolist()]
    assert ranks[:6] == sorted(ranks[:6]) and ranks[6:] == sorted(ranks[6:])
    assert found.unexplained < found.seed_unexplained
    again = search_keys(keys_fitness(case, 6), order, iterations=30)
    assert torch.equal(found.order, again.order)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_rates_like_the_cpu():
    case = Case()
    views = [tensor(x) for x in case.views]
    embeddings = [tensor(z) for z in case.embeddings]
    keys = tensor(np.random.default_rng(0).uniform(-1, 1, size=(6, 29)))
    there = [x.cuda() for x in views]
    for here, far, positions in (
        (FreeEmbeddingFitness(views), FreeEmbeddingFitness(there), case.positions),
        (
            FixedEmbeddingFitness(views, embeddings, **case.options()),
            FixedEmbeddingFitness(
                there,
                [z.cuda() for z in embeddings],
                **case.options() | {"laplacians": [q.cuda() for q in case.laplacians]},
            ),
            case.positions,
        ),
        (
            KeysFitness(views, embeddings, 6),
            KeysFitness(there, [z.cuda() for z in embeddings], 6),
            keys,
        ),
    ):
        assert (here(positions) - far(positions.cuda()).cpu()).abs().max() < 1e-9
    swarm = THRO(120, iterations=3, device=torch.device("cuda"))
    result = swarm.run(lambda x: (x - 0.3).square().sum(dim=1))
    assert result.position.is_cuda
    assert result.fitness <= result.history[0]
