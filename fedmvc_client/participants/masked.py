"""One site in a run with masked sums: keys and shares first, then a vector and its shares a sum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from configs.errors import PolicyRefused, ProtocolError
from configs.plan import RunPlan
from fedmvc_client.participants.base import Arrays
from fedmvc_client.participants.protected import ProtectedParticipant, octets
from fedmvc_client.sources import Records, Source
from privacy.audit import Fact
from privacy.secagg import RunTerms, SecureSumSite
from privacy.vault import Vault
from strategies.messages import (
    AskRequest,
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

__all__ = ["MaskedParticipant"]

#: Fact under which the audit log notes how many changes the run's vault has seen.
_VAULT = "vault"
#: Rounds are numbered from 1; what has no number comes before all of them.
_UNNUMBERED, _LAST_NUMBER = 0, 2**62


class OpenedOnce:
    """What an exact run was asked, for good: of each kind one request a round, and none twice.

    Sums without noise of the same records at points of the server's choice would together show
    single records, so a round is answered for one request only. The same may come again in a later
    exchange: where a sum failed, or a run is resumed, it says nothing new.

    Parameters
    ----------
    vault : Vault
        The run's: what it holds outlives the worker.
    site : str
        The site's name, for messages.
    """

    def __init__(self, vault: Vault, site: str) -> None:
        self._vault = vault
        self._site = site

    def check(self, bodies: Sequence[NDArray[np.uint8]]) -> None:
        """Refuse another request for a round that was answered, or for an earlier one.

        Parameters
        ----------
        bodies : sequence of ndarray of uint8
            The method's requests, without the number of the exchange.

        Raises
        ------
        ProtocolError
        """
        kind, number, digest = _asked(bodies)
        last = self._vault.last(kind)
        if number < last:
            raise ProtocolError(
                f"site '{self._site}' was asked for round {number} after round {last}: without "
                "noise a run goes forward only; start another run"
            )
        if self._vault.get(kind, number) not in (None, digest):
            which = f" of round {number}" if number else ""
            raise ProtocolError(
                f"site '{self._site}' has answered another {kind}{which}: without noise one is "
                "answered, and nothing but the same again; start another run"
            )

    def keep(self, bodies: Sequence[NDArray[np.uint8]]) -> None:
        """Hold a request that is answered, durable before the answer leaves."""
        kind, number, digest = _asked(bodies)
        with self._vault.transaction():
            if self._vault.get(kind, number) is None:
                self._vault.put(kind, digest, number)


def _asked(bodies: Sequence[NDArray[np.uint8]]) -> tuple[str, int, bytes]:
    """Return the kind of a request, its round, and the hash of all that comes with it."""
    asked = from_bytes(bodies[-1].tobytes())
    number = min(max(getattr(asked, "round", _UNNUMBERED), _UNNUMBERED), _LAST_NUMBER)
    return type(asked).__name__, number, hashlib.sha256(body_of(bodies)).digest()


class MaskedParticipant(ProtectedParticipant):
    """Sums leave masked: keys and shares first, then a vector and its shares for each sum.

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
        self._vault = self._safe.vault(run_id)
        self._vouched = self._refuse_put_back()
        self._masks = SecureSumSite(
            RunTerms(run_id, plan.plan_id, roster.hash, terms),
            self.site,
            self._safe.identity(),
            roster,
            self._vault,
        )
        #: With noise a second request for a round is a new release and is paid.
        self._opened = None if self._noisy else OpenedOnce(self._vault, self.site)
        #: The last question that was answered in the clear, and the reply's bytes.
        self._question, self._reply = b"", b""

    def answer(self, request: Any) -> Message:
        """Answer a request of any action but close."""
        if isinstance(request, KeysRequest):
            keys = self._masks.keys(request.first)
            self._vouch("keys sent", exchange=request.first)
            return KeysReply(self.run_id, as_array(keys))
        if isinstance(request, SharesRequest):
            messages = [message.tobytes() for message in request.messages]
            envelopes = self._masks.shares(messages, request.first)
            self._vouch("shares sent", exchange=request.first)
            return SharesReply(
                self.run_id, tuple(envelopes), tuple(as_array(e) for e in envelopes.values())
            )
        if isinstance(request, UnmaskRequest):
            answer = self._masks.unmask(request.exchange, request.survivors)
            self._vouch("sum unmasked", exchange=request.exchange, sites=len(request.survivors))
            return UnmaskReply(self.run_id, request.exchange, as_array(answer))
        return self._ask(request) if isinstance(request, AskRequest) else self._sum(request)

    def state(self) -> Arrays:
        """Return also what was last answered in the clear."""
        asked = {"question": as_array(self._question), "reply": as_array(self._reply)}
        return {**super().state(), **asked}

    def restore(self, state: Arrays) -> None:
        """Take back what `state` gave."""
        super().restore(state)
        self._question, self._reply = octets(state["question"]), octets(state["reply"])

    def _ask(self, request: AskRequest) -> Message:
        """Answer in the clear, where the method has such an answer; once more with the same bytes.

        The masks hide nothing of it, so the method says what it may hold.
        """
        question = hashlib.sha256(body_of(request.bodies)).digest()
        if question != self._question:
            self._check_opened(request)
            reply = to_bytes(self._answered(request.bodies, self._method.ask))
            self._keep_opened(request)
            self._question, self._reply = question, reply
            counter = self._vault.counter
            self._safe.audit.write(
                "answered in the clear",
                run_id=self.run_id,
                bytes=len(reply),
                request=question.hex(),
                reply=hashlib.sha256(reply).hexdigest(),
                **{_VAULT: counter},
            )
            self._vouched = counter
        return from_bytes(self._reply)

    def _check_opened(self, request: SumRequest | AskRequest) -> None:
        if self._opened is not None and request.bodies:
            self._opened.check(request.bodies)

    def _keep_opened(self, request: SumRequest | AskRequest) -> None:
        if self._opened is not None:
            self._opened.keep(request.bodies)

    def _sum(self, request: SumRequest) -> SumReply:
        if request.senders:
            pairs = zip(request.senders, request.envelopes, strict=True)
            self._masks.receive({sender: envelope.tobytes() for sender, envelope in pairs})
        digest = self._digest(request)
        masked = self._masks.answered(request.exchange, digest, request.previous)
        if masked is None:
            self._check_opened(request)
            vector = self._vector(request, digest)
            self._keep_opened(request)
            masked = self._masks.upload(request.exchange, digest, request.previous, vector)
        elif request.exchange <= self._last:
            return SumReply(self.run_id, request.exchange, masked)
        else:  # killed after the upload was stored and before the method's state was
            self._answered(request.bodies, self._method.sums)
        counter = self._vault.counter
        reply = self._sent(request.exchange, digest, masked, **{_VAULT: counter})
        self._vouched = counter
        return reply

    def _pay(self, exchange: int, digest: bytes) -> bytes | None:
        """Pay for a release; the vault knows that nothing was sent for this request."""
        return self._releases.pay(exchange, digest, unsent=True)

    def _refuse_put_back(self) -> int:
        """Refuse a vault that knows of less than was sent; return how far the audit log saw it.

        Raises
        ------
        PolicyRefused
            Where the run's folder was put back from a copy, or removed: the same secrets could be
            made to answer twice.
        """
        seen = [
            int(entry.facts[_VAULT])
            for entry in self._safe.audit.entries()
            if entry.facts.get("run_id") == self.run_id and _VAULT in entry.facts
        ]
        if self._vault.counter < max(seen, default=0):
            raise PolicyRefused(
                f"site '{self.site}': the secure state of run {self.run_id[:8]} is older than its "
                f"audit log ({self._vault.counter} of {max(seen)} changes): it was put back from a "
                "copy or removed, so the run is over here; start another run"
            )
        return max(seen, default=0)

    def _vouch(self, event: str, **facts: Fact) -> None:
        """Note how far the vault has come, before what it remembers leaves."""
        counter = self._vault.counter
        if counter > self._vouched:
            self._safe.audit.write(event, run_id=self.run_id, **facts, **{_VAULT: counter})
            self._vouched = counter

    def _close(self, request: CloseRequest) -> None:
        if request.body.size:
            self._masks.close(request.exchange, request.survivors)
        else:
            self._masks.abort()
