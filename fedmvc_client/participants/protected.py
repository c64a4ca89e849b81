"""One site in a protected run: the method's sums leave masked, with noise, or both.

Whatever the method answers stays here as a vector in which one record counts at most 1. It is
rounded to the run's grid, given noise where the plan has it, and masked where the plan says so; the
ring elements that result are all that the server ever gets.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused, FedMVCError, PolicyRefused, ProtocolError
from configs.plan import RunPlan
from fedmvc_client.outcomes import Outcome
from fedmvc_client.participants.base import Arrays
from fedmvc_client.participants.fedhk_sums import FedHKSums
from fedmvc_client.participants.mufsht_sums import MUFSHTSums
from fedmvc_client.participants.summands import Summands
from fedmvc_client.safe import Safe
from fedmvc_client.sources import Records, Source
from privacy.fixed_point import to_ring
from privacy.mechanisms import GaussianNoise
from privacy.protection import grid
from privacy.secagg import RunTerms, SecureSumSite, request_digest
from strategies.messages import (
    AskRequest,
    CloseReply,
    CloseRequest,
    KeysReply,
    KeysRequest,
    Message,
    SharesReply,
    SharesRequest,
    SumReply,
    SumRequest,
    UnmaskReply,
    UnmaskRequest,
    as_array,
    body_of,
    from_bytes,
    to_bytes,
)

__all__ = ["MaskedParticipant", "NoisyParticipant", "ProtectedParticipant"]

Floats = NDArray[np.float64]
Octets = NDArray[np.uint8]
Ring = NDArray[np.uint64]
T = TypeVar("T")

log = logging.getLogger("fedmvc.site")


#: The sums of each method.
_SUMMANDS: dict[str, type[Any]] = {"fedhk-mvfc": FedHKSums, "fed-mufsht": MUFSHTSums}
#: Names of the arrays of a participant's state: adopted requests, and what is the method's own.
_ADOPTED, _METHOD = "adopted_", "method_"


class ProtectedParticipant:
    """One site in one protected run (see `Participant`); what its two kinds have in common.

    Parameters
    ----------
    plan : RunPlan
    run_id : str
    source : Source
    records : Records

    Raises
    ------
    DataRefused
        Where there are more records than the plan's ``max_rows``.
    """

    ACTIONS: ClassVar[Mapping[str, type]]
    REPLAYED: ClassVar[tuple[str, ...]] = ()

    def __init__(self, plan: RunPlan, run_id: str, source: Source, records: Records) -> None:
        self.plan = plan
        self.run_id = run_id
        self.site = source.name
        self._safe: Safe = source.safe
        self._noisy = plan.privacy.mechanism == "gaussian"
        n_rows, most = len(records.ids), plan.privacy.max_rows
        if n_rows > most:
            raise self._declined(
                DataRefused(
                    f"site '{self.site}' has {n_rows} rows; privacy.max_rows is {most}: raise it "
                    "or leave the run"
                )
            )
        try:
            self._method: Summands = _SUMMANDS[plan.method](plan, run_id, source, records)
        except (DataRefused, PolicyRefused) as error:
            raise self._declined(error) from error
        #: What was adopted, for a restarted worker: the method's requests as bytes.
        self._adopted: list[bytes] = []
        self._last = 0
        self._last_digest = b""

    @classmethod
    def begin(
        cls, plan: RunPlan, run_id: str, source: Source, records: Records
    ) -> ProtectedParticipant:
        """Take part in a run with the records that were read."""
        return cls(plan, run_id, source, records)

    @property
    def noise(self) -> GaussianNoise | None:
        """What the site adds to each of its sums; None without noise."""
        return self._method.noise

    def answer(self, request: Any) -> Message:
        """Answer a request of any action but close."""
        raise NotImplementedError

    def finish(self, request: CloseRequest) -> tuple[CloseReply, Outcome | None]:
        """End the run at this site; without a method's request nothing is kept of it.

        Raises
        ------
        ProtocolError
            Where the server names other survivors than this site answered, or the method's
            request does not fit.
        """
        outcome = None
        if request.body.size:
            outcome = self._method.finish(from_bytes(request.body.tobytes()))
        self._close(request)
        self._safe.ledger.give_back(self.run_id)
        self._safe.audit.write(
            "run closed", run=self.run_id, exchanges=self._last, with_result=outcome is not None
        )
        return CloseReply(self.run_id), outcome

    def state(self) -> Arrays:
        """Return what was adopted, the last exchange, and the method's own state."""
        return {
            "last": np.array(self._last),
            "digest": as_array(self._last_digest),
            **{f"{_ADOPTED}{i}": as_array(body) for i, body in enumerate(self._adopted)},
            **{f"{_METHOD}{name}": array for name, array in self._method.state().items()},
        }

    def restore(self, state: Arrays) -> None:
        """Take back what `state` gave."""
        self._last = int(state["last"])
        self._last_digest = _bytes(state["digest"])
        for i in range(sum(name.startswith(_ADOPTED) for name in state)):
            self._adopt(_bytes(state[f"{_ADOPTED}{i}"]))
        self._method.restore(
            {
                name.removeprefix(_METHOD): array
                for name, array in state.items()
                if name.startswith(_METHOD)
            }
        )

    # -- one sum -----------------------------------------------------------------------------

    def _vector(self, request: SumRequest, digest: bytes) -> Ring:
        """Compute one release: sums, grid, payment, noise. Masks come after."""
        sums = self._answered(request.bodies, self._method.sums)
        noise = self._method.noise
        codec = grid(self.plan, noise)
        if noise is not None:
            self._check_bounds(sums, noise.limits)
        elif (np.abs(sums) > codec.clip).any():
            raise self._declined(DataRefused(f"site '{self.site}' has sums above their bound"))
        steps = codec.encode(sums)
        if noise is not None:
            self._pay(request.exchange, digest)
            steps = noise.add(steps)
        return to_ring(steps)

    def _check_bounds(self, sums: Floats, limits: Floats) -> None:
        """Refuse sums that no ``max_rows`` records could give: the guarantee would not hold."""
        if sums.shape != limits.shape or not (np.abs(sums) <= limits * (1.0 + 1e-9)).all():
            raise self._declined(
                DataRefused(f"site '{self.site}' has sums above what max_rows records can give")
            )

    def _pay(self, exchange: int, digest: bytes) -> None:
        self._safe.ledger.spend(self.run_id, exchange, digest)

    def _sent(self, exchange: int, digest: bytes, vector: Ring) -> SumReply:
        """Keep the reply with its payment, and note in the audit log that it leaves."""
        body = vector.astype("<u8").tobytes()
        if self._noisy:
            self._safe.ledger.answered(self.run_id, exchange, body)
        self._last, self._last_digest = exchange, digest
        self._safe.audit.write(
            "release sent",
            run=self.run_id,
            exchange=exchange,
            numbers=vector.size,
            request=digest.hex(),
            reply=hashlib.sha256(body).hexdigest(),
        )
        return SumReply(self.run_id, exchange, vector)

    def _answered(self, bodies: Sequence[Octets], answer: Callable[[Message], T]) -> T:
        """Adopt all of the method's requests but the last, and let the method answer that one."""
        if not bodies:
            raise ProtocolError(f"site '{self.site}' was asked for an answer to nothing")
        try:
            for body in bodies[:-1]:
                self._adopt(body.tobytes())
            return answer(from_bytes(bodies[-1].tobytes()))
        except (DataRefused, PolicyRefused) as error:
            raise self._declined(error) from error

    def _adopt(self, body: bytes) -> None:
        """Adopt a request, once: every sum brings along what a site that was away would lack."""
        if body not in self._adopted:
            self._method.adopt(from_bytes(body))
            self._adopted.append(body)

    def _declined(self, error: FedMVCError) -> FedMVCError:
        """Hide from the server what in the data made a noisy run impossible."""
        if not self._noisy:
            return error
        log.error("%s", error.public_message)
        return PolicyRefused(f"site '{self.site}' declined", local_detail=error.public_message)

    def _close(self, request: CloseRequest) -> None:
        raise NotImplementedError

    def _digest(self, request: SumRequest) -> bytes:
        return request_digest(
            self.run_id,
            self.plan.plan_id,
            request.exchange,
            request.previous,
            body_of(request.bodies),
        )


class NoisyParticipant(ProtectedParticipant):
    """Sums leave with the site's own noise and without masks: one exchange a sum."""

    ACTIONS: ClassVar[Mapping[str, type]] = {"sum": SumRequest, "close": CloseRequest}

    def answer(self, request: Any) -> SumReply:
        """Answer one sum.

        Raises
        ------
        ProtocolError
            Where an earlier exchange is asked again, but not by the very same request.
        """
        digest, exchange = self._digest(request), request.exchange
        if exchange <= self._last:
            if (exchange, digest) != (self._last, self._last_digest):
                raise ProtocolError(
                    f"site '{self.site}' was asked for exchange {exchange} after exchange "
                    f"{self._last}"
                )
            kept = self._safe.ledger.spend(self.run_id, exchange, digest) or b""
            return SumReply(self.run_id, exchange, np.frombuffer(kept, "<u8"))
        return self._sent(exchange, digest, self._vector(request, digest))

    def _close(self, request: CloseRequest) -> None:
        """Nothing is held open without masks."""


class MaskedParticipant(ProtectedParticipant):
    """Sums leave masked: keys and shares once, then a vector and its shares for each sum.

    Raises
    ------
    ConfigError
        Where the site has no identity key or no roster.
    ProtocolError
        Where its roster does not name the participants.
    """

    ACTIONS: ClassVar[Mapping[str, type]] = {
        "keys": KeysRequest,
        "shares": SharesRequest,
        "ask": AskRequest,
        "sum": SumRequest,
        "unmask": UnmaskRequest,
        "close": CloseRequest,
    }

    def __init__(self, plan: RunPlan, run_id: str, source: Source, records: Records) -> None:
        super().__init__(plan, run_id, source, records)
        terms = plan.secure_terms()
        if terms is None:
            raise ProtocolError(f"site '{self.site}': the plan has no secure aggregation")
        roster = self._safe.roster()
        self._masks = SecureSumSite(
            RunTerms(run_id, plan.plan_id, roster.hash, terms),
            self.site,
            self._safe.identity(),
            roster,
            self._safe.vault(run_id),
        )
        #: The last question that was answered in the clear, and the reply's bytes.
        self._question, self._reply = b"", b""

    def answer(self, request: Any) -> Message:
        """Answer a request of any action but close."""
        if isinstance(request, KeysRequest):
            return KeysReply(self.run_id, as_array(self._masks.keys()))
        if isinstance(request, SharesRequest):
            envelopes = self._masks.shares([m.tobytes() for m in request.messages])
            return SharesReply(
                self.run_id, tuple(envelopes), tuple(as_array(e) for e in envelopes.values())
            )
        if isinstance(request, UnmaskRequest):
            answer = self._masks.unmask(request.exchange, request.survivors)
            return UnmaskReply(self.run_id, request.exchange, as_array(answer))
        return self._ask(request) if isinstance(request, AskRequest) else self._sum(request)

    def state(self) -> Arrays:
        """Return also what was last answered in the clear."""
        asked = {"question": as_array(self._question), "reply": as_array(self._reply)}
        return {**super().state(), **asked}

    def restore(self, state: Arrays) -> None:
        """Take back what `state` gave."""
        super().restore(state)
        self._question, self._reply = _bytes(state["question"]), _bytes(state["reply"])

    def _ask(self, request: AskRequest) -> Message:
        """Answer in the clear, where the method has such an answer; once more with the same bytes.

        The masks hide nothing of it, so the method says what it may hold.
        """
        question = hashlib.sha256(body_of(request.bodies)).digest()
        if question != self._question:
            reply = to_bytes(self._answered(request.bodies, self._method.ask))
            self._question, self._reply = question, reply
            self._safe.audit.write(
                "answered in the clear",
                run=self.run_id,
                bytes=len(reply),
                request=question.hex(),
                reply=hashlib.sha256(reply).hexdigest(),
            )
        return from_bytes(self._reply)

    def _sum(self, request: SumRequest) -> SumReply:
        if request.senders:
            pairs = zip(request.senders, request.envelopes, strict=True)
            self._masks.receive({sender: envelope.tobytes() for sender, envelope in pairs})
        digest = self._digest(request)
        stored = self._masks.answered(request.exchange, digest, request.previous)
        if stored is not None:
            if request.exchange > self._last:
                # killed after the upload was stored and before the method's state was
                self._answered(request.bodies, self._method.sums)
                self._last, self._last_digest = request.exchange, digest
            return SumReply(self.run_id, request.exchange, stored)
        vector = self._vector(request, digest)
        masked = self._masks.upload(request.exchange, digest, request.previous, vector)
        return self._sent(request.exchange, digest, masked)

    def _close(self, request: CloseRequest) -> None:
        if request.body.size:
            self._masks.close(request.exchange, request.survivors)
        else:
            self._masks.abort()


def _bytes(array: NDArray[np.generic]) -> bytes:
    return np.asarray(array, np.uint8).tobytes()
