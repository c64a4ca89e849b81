"""The fixed-point driver of FedHK-MVFC: multi-start, annealing and safeguarded Anderson steps.

One evaluation at a point (A, V) gives the objective J there and the plain next point G(A, V). A
driver holds R starts, proposes the points to evaluate next, and takes the evaluations back. The
server feeds it sums over sites, the estimator the sums of one machine: both run the same steps.

Anderson acceleration (type II; Walker and Ni 2011) acts on centres and log view weights. A step
that raises J is undone: the start falls back to the plain step it had in hand. So no start ends
worse than the plain iteration would have left it at that point, and J never rises.

Near a saddle of J the plain iteration drifts away slowly, and Anderson's step, which solves for any
fixed point, would call it back. A step against the plain one is therefore reflected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from strategies.statistics import Floats, SufficientStatistics

#: Rise of J, relative, that rounding alone can cause.
ROUNDING = 1e-12
#: J in units of ``sum_h v_h^alpha`` below which it is noise: every record lies on a centre.
NEGLIGIBLE = 1e-13
#: Starts whose J differ by less than this, relative, have found the same solution.
TIE = 1e-9
#: Points kept for Anderson's least-squares problem.
WINDOW = 8
#: A step reflected at a saddle is at most this many plain steps long.
REFLECTION_LIMIT = 10.0
#: A start is dropped when its J stays above the best even after this many of its last decrease.
PATIENCE = 20.0
#: Once the best start has converged a slower one costs exchanges: it is dropped when its J stays
#: above the best even after this many times what its decreases still sum to (a geometric series).
LATE_MARGIN = 2.0
#: Evaluations a start gets in its last annealing stage before it may be dropped.
GRACE = 4
#: Intermediate annealing stages end at this relative change of J.
STAGE_TOL = 1e-3
#: Evaluations an intermediate annealing stage may take.
STAGE_LIMIT = 6


@dataclass(frozen=True)
class Query:
    """Points to evaluate in one exchange.

    ``starts`` (R',) numbers the starts; ``centers`` holds (R', c, d_h) a view; ``view_weights`` is
    (R', s); ``bandwidth_factor`` (R',) multiplies every view's bandwidth (annealing).
    """

    starts: NDArray[np.int64]
    centers: tuple[Floats, ...]
    view_weights: Floats
    bandwidth_factor: Floats


@dataclass
class Start:
    """State of one start of the iteration."""

    point: Floats
    stages: tuple[float, ...]
    status: str = "running"
    stage: int = 0
    stage_evaluations: int = 0
    evaluations: int = 0
    objective: float | None = None
    decrease: float = np.inf
    last_decrease: float = np.inf
    accelerated: bool = False
    plain: Floats | None = None
    accepted: Floats | None = None
    history: list[float] = field(default_factory=list)
    memory: deque[tuple[Floats, Floats]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @property
    def factor(self) -> float:
        """Bandwidth factor of the present annealing stage."""
        return self.stages[self.stage]

    @property
    def in_last_stage(self) -> bool:
        """Whether annealing is over."""
        return self.stage == len(self.stages) - 1

    def remaining_decrease(self, late: bool) -> float:
        """Bound what J may still fall by: generous at first, by the rate of decrease when late."""
        if not np.isfinite(self.decrease):
            return np.inf
        decrease = max(self.decrease, 0.0)
        if not late or not decrease < self.last_decrease < np.inf:
            return PATIENCE * decrease
        ratio = decrease / self.last_decrease
        return min(PATIENCE, LATE_MARGIN * ratio / (1.0 - ratio)) * decrease

    def forget(self) -> None:
        """Objective values seen so far no longer compare (another stage, other sites)."""
        self.objective = None
        self.decrease = self.last_decrease = np.inf
        self.memory.clear()
        self.accelerated = False

    def advance(
        self,
        objective: float,
        following: Floats,
        tol: float,
        accelerate: bool,
        negligible: float = 0.0,
    ) -> None:
        """Take the evaluation at ``point``: its J, the plain next point, and what J is noise."""
        self.evaluations += 1
        self.stage_evaluations += 1
        worse = self.objective is not None and not (
            objective <= self.objective + ROUNDING * abs(self.objective) + negligible
        )
        if self.accelerated and worse and self.plain is not None:
            self.point, self.accelerated = self.plain, False
            self.memory.clear()
            return
        self.last_decrease = self.decrease
        self.decrease = np.inf if self.objective is None else self.objective - objective
        bound = tol * abs(objective) + negligible
        settled = self.objective is not None and abs(self.decrease) <= bound
        self.objective = objective
        self.accepted = self.point
        self.plain = following
        if self.in_last_stage:
            self.history.append(objective)
            if settled:
                self.status = "converged"
                return
        elif (
            self.objective is not None
            and abs(self.decrease) <= max(tol, STAGE_TOL) * abs(objective)
        ) or self.stage_evaluations >= STAGE_LIMIT:
            self.stage += 1
            self.stage_evaluations = 0
            self.forget()
            self.point = following
            return
        self.point, self.accelerated = following, False
        if accelerate:
            self.memory.append((self.accepted, following))
            candidate = anderson_step(list(self.memory))
            if candidate is not None:
                self.point, self.accelerated = candidate, True


def first_among_best(objectives: Sequence[float] | Floats, tol: float) -> int:
    """Return the lowest number whose J is within ``tol`` (at least `TIE`), relative, of the least.

    Starts that reach the same solution differ by rounding alone, often with their clusters in
    another order. The rule keeps the choice, and so the order of the clusters, the same for
    another partition of the records or another machine.
    """
    values = np.asarray(objectives, dtype=np.float64)
    least = values.min()
    return int(np.flatnonzero(values <= least + max(tol, TIE) * abs(least))[0])


def anderson_step(memory: Sequence[tuple[Floats, Floats]]) -> Floats | None:
    """Anderson's candidate from pairs (x, G(x)), oldest first; None where there is no direction.

    Minimises ``|f_k - dF gamma|`` over the differences of the residuals ``f = G(x) - x`` and
    returns ``G(x_k) - dG gamma``.
    """
    if len(memory) < 2:
        return None
    points = np.stack([x for x, _ in memory])
    images = np.stack([g for _, g in memory])
    with np.errstate(over="ignore", invalid="ignore"):
        residuals = images - points
        d_residuals = np.diff(residuals, axis=0).T
    if not np.isfinite(d_residuals).all():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            gamma = np.linalg.lstsq(d_residuals, residuals[-1], rcond=1e-8)[0]
        except np.linalg.LinAlgError:
            return None
        candidate: Floats = images[-1] - np.diff(images, axis=0).T @ gamma
        step = candidate - points[-1]
        if step @ residuals[-1] < 0.0:
            longest = REFLECTION_LIMIT * np.linalg.norm(residuals[-1])
            candidate = points[-1] - step * min(1.0, float(longest / np.linalg.norm(step)))
    return candidate if np.isfinite(candidate).all() else None


class FixedPointDriver:
    """Runs R starts of ``(A, V) -> G(A, V)`` to a relative change of J.

    Parameters
    ----------
    centers : sequence of ndarray of shape (R, c, d_h)
        Starting centres in scaled units.
    view_weights : ndarray of shape (R, s)
    view_exponent : float
        alpha > 1.
    holding_share : ndarray of shape (s,)
        pi_h in (0, 1].
    active : ndarray of shape (s,), bool
        Views that vary; the others keep weight 0.
    tol : float
        Stop a start at ``|J_t - J_(t-1)| <= tol |J_t|``.
    max_evaluations : int
        Exchanges at most.
    acceleration : {"anderson", "none"}
    stages : tuple of float
        Bandwidth factors of the annealing stages; the last is 1.
    box : pair of sequences of ndarray of shape (d_h,), optional
        Where all centres that are asked about lie.
    """

    def __init__(
        self,
        centers: Sequence[Floats],
        view_weights: Floats,
        *,
        view_exponent: float,
        holding_share: Floats,
        active: NDArray[np.bool_],
        tol: float,
        max_evaluations: int,
        acceleration: str = "none",
        stages: tuple[float, ...] = (1.0,),
        box: tuple[Sequence[Floats], Sequence[Floats]] | None = None,
    ) -> None:
        self.annealing_left_out = len(stages) > 1 and max_evaluations < STAGE_LIMIT * len(stages)
        if self.annealing_left_out:
            stages = stages[-1:]
        self.shapes = [c.shape[1:] for c in centers]
        self.active = self._varying = active
        self._box = None if box is None else [self._flat(side) for side in box]
        self.view_exponent = view_exponent
        self.holding_share = holding_share
        self.tol = tol
        self.max_evaluations = max_evaluations
        self.accelerate = acceleration == "anderson"
        self.evaluations = 0
        self.starts = [
            Start(self._pack([c[r] for c in centers], view_weights[r]), stages)
            for r in range(view_weights.shape[0])
        ]

    def _pack(self, centers: Sequence[Floats], view_weights: Floats) -> Floats:
        """Centres and log weights of the active views as one vector."""
        logs = np.log(np.maximum(view_weights[self.active], 1e-300))
        return np.concatenate([*(c.ravel() for c in centers), logs])

    def _flat(self, side: Sequence[Floats]) -> Floats:
        return np.concatenate([np.tile(a, n) for a, (n, _) in zip(side, self.shapes, strict=True)])

    def _unpack(
        self, point: Floats, active: NDArray[np.bool_] | None = None
    ) -> tuple[list[Floats], Floats]:
        active = self.active if active is None else active
        centers, offset = [], 0
        for shape in self.shapes:
            size = shape[0] * shape[1]
            centers.append(point[offset : offset + size].reshape(shape))
            offset += size
        logs = point[offset:]
        if not logs.size:
            return centers, np.full(active.shape[0], 1.0 / active.shape[0])
        weights = np.zeros(active.shape[0])
        powers = np.exp(logs - logs.max())
        weights[active] = powers / powers.sum()
        return centers, weights

    def _running(self) -> list[int]:
        return [i for i, s in enumerate(self.starts) if s.status == "running"]

    @property
    def done(self) -> bool:
        """Whether nothing is left to evaluate."""
        return not self._running() or self.evaluations >= self.max_evaluations

    def query(self) -> Query:
        """Return the points the running starts want evaluated."""
        running = self._running()
        if self._box is not None:
            n = self._box[0].size
            for start in (self.starts[i] for i in running):
                start.point = np.r_[np.clip(start.point[:n], *self._box), start.point[n:]]
        parts = [self._unpack(self.starts[i].point) for i in running]
        return Query(
            np.array(running, dtype=np.int64),
            tuple(np.stack([p[0][h] for p in parts]) for h in range(len(self.shapes))),
            np.stack([p[1] for p in parts]),
            np.array([self.starts[i].factor for i in running]),
        )

    def advance(self, query: Query, sums: SufficientStatistics) -> None:
        """Take the pooled statistics at ``query`` and move every running start."""
        self.evaluations += 1
        objectives = sums.objective(query.view_weights, self.holding_share, self.view_exponent)
        centers = sums.next_centers(query.centers)
        weights = sums.next_view_weights(self.holding_share, self.view_exponent, self.active)
        for row, number in enumerate(query.starts):
            self.starts[int(number)].advance(
                float(objectives[row]),
                self._pack([c[row] for c in centers], weights[row]),
                self.tol,
                self.accelerate,
                float(NEGLIGIBLE * (query.view_weights[row] ** self.view_exponent).sum()),
            )
        self._drop_losers()

    def _drop_losers(self) -> None:
        """Drop starts whose J cannot be expected to come below the best one."""
        finals = [
            s
            for s in self.starts
            if s.in_last_stage and s.objective is not None and s.status != "dropped"
        ]
        if not finals:
            return
        best = min(finals, key=lambda s: np.inf if s.objective is None else s.objective)
        late = best.status == "converged"
        for start in finals:
            if start is best or start.status != "running":
                continue
            if start.stage_evaluations < GRACE and not late:
                continue
            if start.objective is None or best.objective is None:
                continue
            if start.objective - start.remaining_decrease(late) > best.objective:
                start.status = "dropped"

    def restart_histories(self, held: NDArray[np.bool_]) -> None:
        """Forget objective values: the set of records behind the sums has changed.

        A start that had converged did so on other records: it goes on from where it is. One that
        was dropped stays out, and its J over other records is forgotten with the rest.

        Parameters
        ----------
        held : ndarray of shape (s,), bool
            Views that anybody still holds. Another's dispersion is 0 from now on, which must not
            make it the best view: its weight becomes 0, its centres stay.
        """
        before, self.active = self.active, self._varying & held
        for start in self.starts:
            for name in ("point", "plain", "accepted"):
                value = getattr(start, name)
                if value is not None:
                    setattr(start, name, self._pack(*self._unpack(value, before)))
            start.history.clear()
            start.forget()
            if start.status != "dropped":
                start.status = "running"

    @property
    def best(self) -> int:
        """Number of the start with the smallest J; the first of those that agree within ``tol``.

        A dropped start is never the best: the one it lost to is still there.
        """
        kept = [i for i, s in enumerate(self.starts) if s.status != "dropped"]
        return kept[first_among_best([self._objectives[i] for i in kept], self.tol)]

    @property
    def converged(self) -> bool:
        """Whether the best start met the tolerance."""
        return self.starts[self.best].status == "converged"

    @property
    def objective(self) -> float | None:
        """Smallest J of any start, None before the first evaluation of the last stage."""
        least = min(self._objectives)
        return least if least < np.inf else None

    @property
    def _objectives(self) -> list[float]:
        """J of every start in the last annealing stage, infinite before its first evaluation."""
        return [s.history[-1] if s.history else np.inf for s in self.starts]

    def solution(self) -> tuple[tuple[Floats, ...], Floats]:
        """Return centres (c, d_h) a view and view weights (s,) where the best's J was measured."""
        start = self.starts[self.best]
        centers, weights = self._unpack(start.point if start.accepted is None else start.accepted)
        return tuple(centers), weights

    def following(self) -> tuple[tuple[Floats, ...], Floats]:
        """Return the plain step from where the best's J was measured."""
        plain = self.starts[self.best].plain
        centers, weights = self._unpack(self.starts[self.best].point if plain is None else plain)
        return tuple(centers), weights

    @property
    def objective_history(self) -> list[float]:
        """J of the best start at each of its accepted points; it never rises."""
        return list(self.starts[self.best].history)
