"""The site worker: the only room that sees data. Bytes of a typed request in, bytes of a reply out.

It treats whoever asks as the server itself: the plan's hash, the site's policy and the order of
requests are checked here, and nothing but a typed message ever leaves.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import FedMVCError, ProtocolError
from configs.plan import RunPlan
from configs.schema import DataSchema
from configs.site import Device
from configs.version import own_version
from fedmvc_client.abandoned import abandoned_runs, give_up
from fedmvc_client.admission import check_protection, load_records, read_plan
from fedmvc_client.books import verify_books
from fedmvc_client.feature_choice import describe_chosen
from fedmvc_client.outcomes import Outcome, SiteResult
from fedmvc_client.participants.base import Participant
from fedmvc_client.participants.kinds import ends_a_run, kind_of, meant_for, replies_of
from fedmvc_client.policy import enforce_plan
from fedmvc_client.refusals import refusal
from fedmvc_client.run_folders import HELLO, RunFolders, check_run_id
from fedmvc_client.run_memory import STATE, Answered, read_state, state_bytes
from fedmvc_client.site_certificate import site_certificate
from fedmvc_client.sources import ArraySource, FolderSource, Source, View
from privacy.protection import cost_of
from privacy.roster import Roster
from strategies.messages import (
    BundleRefused,
    CloseRequest,
    HelloReply,
    HelloRequest,
    Message,
    from_bytes,
    to_bytes,
)

__all__ = ["SiteResult", "SiteWorker", "array_worker", "folder_worker"]

log = logging.getLogger("fedmvc.site")

#: Runs kept in memory at once; an older one is set up again from the state folder when asked.
_RUNS_IN_MEMORY = 2


class SiteWorker:
    """Answers the requests of approved plans for one site.

    Parameters
    ----------
    source : Source
        The site's records, policy and results folder.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._plans: OrderedDict[str, RunPlan] = OrderedDict()
        self._participants: dict[str, Participant] = {}
        #: The last request of each run and its reply; behind masks and noise the books know it.
        self._answered: dict[str, Answered] = {}
        self._folders = RunFolders(source.state_dir)

    @property
    def site(self) -> str:
        """Name of the site."""
        return self.source.name

    def handle(self, body: bytes) -> bytes:
        """Answer one request; never raises.

        Parameters
        ----------
        body : bytes
            A message of :mod:`strategies.messages`.

        Returns
        -------
        bytes
            The reply, or a `Refusal`: an exit code and one sentence without values, ids or paths.
        """
        message: Message | None = None
        try:
            message = from_bytes(body)
            return to_bytes(self._answer(message, body))
        except Exception as error:
            plan = self._plans.get(getattr(message, "run_id", ""))
            return to_bytes(refusal(self.source.safe, error, message, plan))

    def _answer(self, message: Message, body: bytes) -> Message:
        if isinstance(message, HelloRequest):
            return self._hello(message, body)
        if isinstance(message, BundleRefused):
            self.source.safe.note_bundle(message)
            return message
        actions = meant_for(type(message))
        if not actions:
            raise ProtocolError(
                f"site '{self.site}' was sent a {type(message).__name__}, not a request"
            )
        run_id, plan_id = getattr(message, "run_id", ""), getattr(message, "plan_id", "")
        ending = self._ending(run_id, plan_id) if ends_a_run(type(message)) else None
        if ending is not None:
            if ending.request != hashlib.sha256(body).digest():
                self._refuse_finished(run_id)
            self._over(run_id)  # where it was killed before it noted so
            return from_bytes(ending.reply)
        plan = self._plan(run_id, plan_id)
        kind = kind_of(plan)
        if kind not in actions:
            raise ProtocolError(
                f"site '{self.site}' was sent a {type(message).__name__}, which has no part in a "
                f"run of method '{plan.method}' with {replies_of(plan)} replies"
            )
        return self._act(run_id, actions[kind], message, body)

    def _act(self, run_id: str, action: str, message: Message, body: bytes) -> Message:
        """Hand a request of a known run to its participant; one asked again gets the same bytes."""
        plan = self._plans[run_id]
        kind, request = kind_of(plan), hashlib.sha256(body).digest()
        if not isinstance(message, CloseRequest):  # with which nothing leaves
            self.source.safe.register.refuse_rejected(plan.plan_id)
        answered = self._answered.get(run_id) if self._under_way(run_id) else None
        if answered is not None and answered.request == request:
            return from_bytes(answered.reply)
        if action == list(kind.ACTIONS)[-1]:
            return self._finish(run_id, self._participant(run_id, action), message, request)
        reply = self._perform(run_id, action, message)
        if action in kind.REPLAYED:
            self._folders.write(run_id, f"{action}.bin", body)
        self._keep_state(run_id, Answered(request, to_bytes(reply)))
        return reply

    def _perform(self, run_id: str, action: str, message: Message) -> Message:
        kind = kind_of(self._plans[run_id])
        first = action == next(iter(kind.ACTIONS))
        if first and (action in kind.REPLAYED or not self._under_way(run_id)):
            participant = self._create(run_id, first=True)
        else:
            participant = self._participant(run_id, action)
        reply = participant.answer(message)
        self._participants[run_id] = participant
        return reply

    def _finish(
        self, run_id: str, participant: Participant, message: Message, request: bytes
    ) -> Message:
        """End a run; its last reply is kept for a server that did not get it."""
        self._refuse_finished(run_id)
        reply, outcome = participant.finish(message)
        safe = self.source.safe
        if outcome is not None:
            noise, plan = participant.noise, self._plans[run_id]
            safe.register.ends(run_id, request, to_bytes(reply))
            self.source.save(run_id, outcome, site_certificate(safe, run_id, plan, noise))
        self._over(run_id)
        return reply

    def _over(self, run_id: str) -> None:
        self.source.safe.register.finished(run_id)
        self.forget(run_id)

    def _ending(self, run_id: str, plan_id: str) -> Answered | None:
        """Return how a run of this plan ended, where it left its results here."""
        ending = self.source.safe.register.ending(run_id)
        if ending is None or ending[0] != plan_id or not self.source.finished(run_id):
            return None
        return Answered(*ending[1:])

    def result(self, run_id: str) -> Outcome | None:
        """Return what a finished run left at this site; None where it left nothing."""
        return self.source.result(run_id)

    def end_abandoned(self) -> None:
        """End the runs that nobody asks about any more.

        Raises
        ------
        FedMVCError
            Where the site's books cannot be used.
        """
        for run_id in abandoned_runs(self.source.safe):
            log.warning("site '%s' gives up run %s: nobody asks for it", self.site, run_id[:8])
            give_up(self.source.safe, run_id)
            self.forget(run_id)

    # -- one action each ---------------------------------------------------------------------

    def _hello(self, request: HelloRequest, body: bytes) -> HelloReply:
        safe, policy = self.source.safe, self.source.policy
        check_run_id(request.run_id)
        verify_books(safe)  # older ones that were put back would allow more
        self.end_abandoned()
        plan = read_plan(self.site, request)
        safe.see(plan)
        enforce_plan(self.site, policy, plan)
        ending = self._ending(request.run_id, plan.plan_id)
        if ending is None:
            self._refuse_finished(request.run_id)
            safe.register.would_begin(plan, policy, request.run_id)
        views = describe_chosen(self.source, plan)
        roster = check_protection(safe, request.run_id, plan, views)
        reply = HelloReply(request.run_id, self.site, own_version(), views, roster)
        if ending is not None:  # its server may come for the last reply
            return reply
        self._plans[request.run_id] = plan
        self._plans.move_to_end(request.run_id)
        while len(self._plans) > _RUNS_IN_MEMORY:
            oldest, _ = self._plans.popitem(last=False)
            self._participants.pop(oldest, None)
            self._answered.pop(oldest, None)
        self._folders.write(request.run_id, HELLO, body)  # for a restarted worker
        self._folders.remove_oldest(request.run_id)
        return reply

    def _refuse_finished(self, run_id: str) -> None:
        """Results are written once: whoever comes again with their run id is refused."""
        if self.source.finished(run_id):
            raise ProtocolError(
                f"site '{self.site}' already has results of run {run_id[:8]}: start another run"
            )

    def _create(self, run_id: str, *, first: bool = False) -> Participant:
        """Begin the site's part: what allows and pays for it is booked before data are read.

        Where the data then forbid it the ``first`` time, nothing was sent and nothing is spent.
        """
        plan, safe = self._plans[run_id], self.source.safe
        verify_books(safe)
        safe.register.see(plan)  # also where too many were new today: what runs is kept
        safe.register.begin(run_id, plan, self.source.policy)
        cost = cost_of(plan, [len(view.columns) for view in describe_chosen(self.source, plan)])
        if cost is not None:
            safe.ledger.reserve(run_id, plan.plan_id, cost)
        try:
            return kind_of(plan).begin(plan, run_id, self.source, load_records(self.source, plan))
        except FedMVCError:
            if first and cost is not None:
                safe.ledger.give_back(run_id)
            raise

    # -- runs in memory and on disk ----------------------------------------------------------

    def _plan(self, run_id: str, plan_id: str) -> RunPlan:
        if run_id not in self._plans:
            self._replay(run_id)
        plan = self._plans.get(run_id)
        if plan is None:
            raise ProtocolError(
                f"site '{self.site}' knows no run {run_id[:8]}: it needs a hello first"
            )
        if plan.plan_id != plan_id:
            raise ProtocolError(
                f"site '{self.site}': run {run_id[:8]} belongs to plan {plan.plan_id[:12]}, "
                f"not {plan_id[:12]}"
            )
        return plan

    def _under_way(self, run_id: str) -> bool:
        """Whether the site's part has begun, here or before a restart."""
        if run_id not in self._participants:
            self._replay(run_id)  # a restarted worker that met the run's hello first
        return run_id in self._participants

    def _participant(self, run_id: str, action: str) -> Participant:
        if not self._under_way(run_id):
            first = next(iter(kind_of(self._plans[run_id]).ACTIONS))
            raise ProtocolError(f"site '{self.site}' was sent {action} before {first}")
        return self._participants[run_id]

    def _keep_state(self, run_id: str, answered: Answered) -> None:
        """Keep what a restarted worker would lack, before the reply leaves."""
        state = self._participants[run_id].state()
        kept = None if self._plans[run_id].protected else answered
        if self._folders.kept and (state or kept):
            self._folders.write(run_id, STATE, state_bytes(state, kept))
        if kept is not None:
            self._answered[run_id] = kept

    def _replay(self, run_id: str) -> None:
        """Set a run up again from the requests kept on disk."""
        folder = self._folders.path(run_id)
        if folder is None or not folder.is_dir():
            return
        known = run_id in self._plans
        if not known or any(path.name != HELLO for path in folder.iterdir()):
            log.info("site '%s': setting up run %s again after a restart", self.site, run_id[:8])
        hello = None if known else self._folders.read(run_id, HELLO)
        if hello is not None:
            self._answer(from_bytes(hello), hello)
        if run_id not in self._plans:
            self._refuse_finished(run_id)  # a folder that was put back after the end
            return
        for action in kind_of(self._plans[run_id]).REPLAYED:
            body = self._folders.read(run_id, f"{action}.bin")
            if body is None:
                break
            self._perform(run_id, action, from_bytes(body))
        kept = self._folders.read(run_id, STATE)
        if kept is not None:
            state, answered = read_state(kept)
            participant = self._participants.get(run_id) or self._create(run_id)
            if state:
                participant.restore(state)
            self._participants[run_id] = participant
            if answered is not None:
                self._answered[run_id] = answered

    def forget(self, run_id: str) -> None:
        """Let go of a run that is over: what is in memory and what would set it up again."""
        self._plans.pop(run_id, None)
        self._participants.pop(run_id, None)
        self._answered.pop(run_id, None)
        self._folders.remove(run_id)


def folder_worker(folder: Path, require_approval: bool = False) -> SiteWorker:
    """Return the worker of a site's folder; it may ask for approvals that its policy does not.

    Raises
    ------
    ConfigError
        Where ``site.toml`` or ``schema.toml`` does not fit.
    PolicyRefused
        Where the ledger or the audit log was changed and an abandoned run is to be ended in it.
    """
    source = FolderSource(folder)
    if require_approval:
        policy = source.policy.model_copy(update={"approval": "required"})
        source.config = source.config.model_copy(update={"policy": policy})
    worker = SiteWorker(source)
    worker.end_abandoned()
    return worker


def array_worker(
    name: str,
    views: Sequence[View | None],
    schema: DataSchema,
    *,
    device: Device | None = None,
    folder: Path | None = None,
    earlier: Mapping[str, Outcome] | None = None,
    identity: Ed25519PrivateKey | None = None,
    roster: Roster | None = None,
) -> SiteWorker:
    """Return a worker of arrays in memory (see `fedmvc_client.sources.ArraySource`)."""
    return SiteWorker(ArraySource(name, views, schema, device, folder, earlier, identity, roster))
