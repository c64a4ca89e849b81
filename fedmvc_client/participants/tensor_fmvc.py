"""The site half of TensorFMVC: tokens, then one packed label a row and round.

With randomised response nothing of a site's data leaves but labels that were drawn by chance: each
row has one, and the local term is 0 for every site, so that all views weigh the same.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from configs.compatibility import one_view_only
from configs.errors import DataRefused, PolicyRefused, ProtocolError
from configs.plan import RunPlan
from fedmvc_client.faults import Declined
from fedmvc_client.outcomes import VerticalResult
from fedmvc_client.participants.private_labels import PrivateLabels
from fedmvc_client.participants.tensor_checks import check_sweep, shared_rows, unpacked_mask
from fedmvc_client.solvers.tensor_site import TensorSite
from fedmvc_client.sources import Link, Records, Source
from strategies.messages import (
    AlignRequest,
    LinkReply,
    LinkRequest,
    Message,
    OutcomeReply,
    OutcomeRequest,
    StartReply,
    SweepReply,
    SweepRequest,
    pack_labels,
    unpack_labels,
)

log = logging.getLogger("fedmvc.site")

Labels = NDArray[np.int64]


class TensorParticipant:
    """One site in one run of TensorFMVC (see `Participant`).

    Parameters
    ----------
    plan : RunPlan
    run_id : str
    source : Source
        Name, policy, device, and the way to the tokens.
    records : Records
        With exactly one view.

    Raises
    ------
    DataRefused
        Where the site holds another number of views than one.
    """

    ACTIONS: ClassVar[Mapping[str, type]] = {
        "link": LinkRequest,
        "align": AlignRequest,
        "round": SweepRequest,
        "finish": OutcomeRequest,
    }
    REPLAYED: ClassVar[tuple[str, ...]] = ()
    noise: ClassVar[None] = None

    def __init__(self, plan: RunPlan, run_id: str, source: Source, records: Records) -> None:
        self.plan = plan
        self.run_id = run_id
        self.site = source.name
        self.records = records
        self._source = source
        one_view_only(self.site, len(records.views))
        ((self._view_name, self._view),) = records.views.items()
        self._link: Link | None = None
        self._rows: Labels | None = None
        self._position = 0
        self._solver: TensorSite | None = None
        self._alone = np.zeros(0, dtype=np.int64)
        self._last_round = 0
        self._private: PrivateLabels | None = None
        if plan.privacy.mechanism == "randomised-response":
            self._private = PrivateLabels(plan, run_id, source.safe)

    @classmethod
    def begin(
        cls, plan: RunPlan, run_id: str, source: Source, records: Records
    ) -> TensorParticipant:
        """Take part in a run with the records that were read."""
        return cls(plan, run_id, source, records)

    def answer(self, request: LinkRequest | AlignRequest | SweepRequest) -> Message:
        """Answer a request of any action but finish."""
        if isinstance(request, LinkRequest):
            return self.link()
        if isinstance(request, AlignRequest):
            return self.align(request)
        return self.sweep(request)

    # -- before round 1 ----------------------------------------------------------------------

    def link(self) -> LinkReply:
        """Send the tokens of all records, sorted: their order says nothing of the file's."""
        if self._link is None:
            self._link = self._source.link(self.records, self.plan)
        return LinkReply(self.run_id, self._link.id_rule, self._link.tokens)

    def align(self, request: AlignRequest) -> StartReply:
        """Take the rows that all sites hold and label them by the site's own view.

        Raises
        ------
        ProtocolError
            Where the rows do not fit the tokens, other rows were named before, or rounds have been
            answered: a new start would be a way to more rounds than the plan has.
        PolicyRefused
            Where fewer than ``policy.min_cohort`` rows are shared.
        DataRefused
            Where the view cannot be clustered.
        """
        if self._last_round > 0:
            raise ProtocolError(
                f"site '{self.site}' was sent align after round {self._last_round}: start another "
                "run"
            )
        if self._link is None:
            raise ProtocolError(f"site '{self.site}' was sent align before link")
        rows = self._link.order[shared_rows(self.plan, self.site, request, len(self.records.ids))]
        known = self._rows
        if known is not None and (
            not np.array_equal(known, rows) or request.position != self._position
        ):
            raise ProtocolError(
                f"site '{self.site}' was told other shared rows before: start another run"
            )
        least = self._source.policy.min_cohort
        if rows.size < least:
            raise PolicyRefused(
                f"site '{self.site}' shares fewer rows with the others than policy.min_cohort = "
                f"{least}: lower it or leave the run"
            )
        self._rows, self._position = rows, request.position
        try:
            self._solver = self._make_solver(rows, request.position)
        except DataRefused as error:
            if self._private is None:
                raise
            raise Declined(self.site, error) from error
        for warning in self._solver.warnings:
            log.warning("%s", warning)
        labels, trace = self._solver.start()
        self._alone = self._solver.alone()
        if self._private is not None:
            sent = self._private.send(0, request, labels)
            everywhere = np.packbits(np.ones(rows.size, dtype=bool))
            return StartReply(self.run_id, everywhere, sent, 0.0, sent[:0])
        same = np.array_equal(labels, self._alone)
        return StartReply(
            self.run_id,
            np.packbits(self._solver.held),
            self._packed(labels),
            trace,
            self._packed(labels[:0] if same else self._alone),
        )

    def _make_solver(self, rows: Labels, position: int) -> TensorSite:
        return TensorSite(
            self._view[rows],
            self.plan.tensor_settings(),
            self.plan.n_clusters,
            seed=self.plan.seed,
            position=position,
            device=self._source.device.device,
            name=f"view '{self._view_name}' of site '{self.site}'",
        )

    # -- rounds ------------------------------------------------------------------------------

    def sweep(self, request: SweepRequest) -> SweepReply:
        """Answer one round: sweep the rows under the blend Z (Eq. 30) and send the labels.

        Raises
        ------
        ProtocolError
            Where the request does not fit the plan, the rows or the order of rounds.
        """
        solver = self._ready()
        if self._private is not None:
            sent = self._private.again(request.round, request)
            if sent is not None:
                return SweepReply(self.run_id, request.round, sent, 0.0)
        check_sweep(self.plan, self.site, request, solver.held.size, self._last_round)
        if request.names.size:
            solver.rename(request.names)
            self._alone = np.where(self._alone >= 0, request.names[self._alone], -1)
            if self._private is not None:
                self._private.rename(request.names)
        blend = request.blend if request.blend.shape[0] else None
        labels, trace = solver.sweep(request.weight, request.mu, blend, request.scale)
        self._last_round = request.round
        if self._private is not None:
            sent = self._private.send(request.round, request, labels)
            return SweepReply(self.run_id, request.round, sent, 0.0)
        return SweepReply(self.run_id, request.round, self._packed(labels), trace)

    def _packed(self, labels: Labels) -> NDArray[np.uint8]:
        return pack_labels(labels[labels >= 0], self.plan.n_clusters)

    def _ready(self) -> TensorSite:
        if self._solver is None:
            raise ProtocolError(f"site '{self.site}' was sent a round before align")
        return self._solver

    # -- after the rounds --------------------------------------------------------------------

    def finish(self, request: OutcomeRequest) -> tuple[OutcomeReply, VerticalResult]:
        """Keep the result's labels beside the site's own; nothing but the number of rows leaves.

        Raises
        ------
        ProtocolError
            Where labels or mask do not fit the rows.
        """
        n = self._ready().held.size
        known = unpacked_mask(request.known, n, self.site)
        labels, vote = (
            np.where(known, unpack_labels(packed, n, self.plan.n_clusters), -1)
            for packed in (request.labels, request.vote)
        )
        if self._last_round == 0:  # names come with round 1
            self._alone = _named_like(labels, self._alone, self.plan.n_clusters)
        if self._private is not None:
            self._private.close()
        result = VerticalResult(
            self.records.ids,
            self._spread(labels),
            self._spread(vote),
            self._spread(self._alone),
            self.plan.n_clusters,
        )
        return OutcomeReply(self.run_id, n), result

    def _spread(self, labels: Labels) -> Labels:
        """Put the shared rows' labels where their records are, -1 elsewhere."""
        out = np.full(len(self.records.ids), -1, dtype=np.int64)
        out[self._rows] = labels
        return out

    # -- restart -----------------------------------------------------------------------------

    @cached_property
    def _digest(self) -> NDArray[np.uint8]:
        """What tells two lists of ids apart, as 32 bytes that name none of them."""
        digest = hashlib.sha256("\0".join(self.records.ids).encode())
        return np.frombuffer(digest.digest(), dtype=np.uint8)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return tokens, rows, and what the solver carries from round to round."""
        state: dict[str, NDArray[Any]] = {}
        if self._link is None and self._solver is None:
            return state
        state["records"] = self._digest
        if self._link is not None and self._last_round == 0:
            state["tokens"], state["order"] = self._link.tokens, _small(self._link.order)
            state["id_rule"] = np.array(self._link.id_rule)
        if self._solver is not None and self._rows is not None:
            state["rows"], state["alone"] = _small(self._rows), _small(self._alone)
            state["progress"] = np.array([self._position, self._last_round])
            parts = {"solver": self._solver, "private": self._private}
            for name, part in parts.items():
                if part is not None:
                    state |= {f"{name}_{k}": _small(v) for k, v in part.state().items()}
        return state

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` gave; the site's graph is computed again.

        Raises
        ------
        DataRefused
            Where the site's list of records is another one by now.
        """
        if not np.array_equal(state["records"], self._digest):
            raise DataRefused(
                f"site '{self.site}': the list of its records has changed since the run began: "
                "put the files back or start another run"
            )
        if "tokens" in state:
            order = state["order"].astype(np.int64)
            self._link = Link(state["tokens"], order, str(state["id_rule"]))
        if "rows" in state:
            self._rows, self._alone = (state[k].astype(np.int64) for k in ("rows", "alone"))
            self._position, self._last_round = (int(x) for x in state["progress"])
            self._solver = self._make_solver(self._rows, self._position)
            self._solver.restore(_part(state, "solver_"))
            if self._private is not None:
                self._private.restore(_part(state, "private_"))


def _part(state: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _named_like(reference: Labels, labels: Labels, n_clusters: int) -> Labels:
    """Give clusters the names under which they agree best with other labels of the same rows."""
    both = (reference >= 0) & (labels >= 0)
    pairs = np.bincount(labels[both] * n_clusters + reference[both], minlength=n_clusters**2)
    names = linear_sum_assignment(pairs.reshape(n_clusters, -1), maximize=True)[1]
    return np.where(labels >= 0, names[labels], -1)


def _small(values: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in as few bytes as hold them; the state is written every round."""
    if values.dtype != np.int64 or not values.size:
        return values
    return values.astype(np.promote_types(*map(np.min_scalar_type, (values.min(), values.max()))))
