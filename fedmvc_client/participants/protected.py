"""One site in a protected run: the method's sums leave with noise, or masked, or both.

Whatever the method answers stays here as a vector in which one record counts at most 1. It is
rounded to the run's grid, given noise where the plan has it, and masked where the plan says so; the
ring elements that result are all that the server ever gets.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataRefused, FedMVCError, PolicyRefused, ProtocolError
from configs.plan import RunPlan
from fedmvc_client.faults import Declined
from fedmvc_client.outcomes import Outcome
from fedmvc_client.participants.base import Arrays
from fedmvc_client.participants.fedhk_sums import FedHKSums
from fedmvc_client.participants.mufsht_sums import MUFSHTSums
from fedmvc_client.participants.paid_releases import PaidReleases
from fedmvc_client.participants.summands import Summands
from fedmvc_client.policy import without_count
from fedmvc_client.safe import Safe
from fedmvc_client.sources import Records, Source
from privacy.audit import Fact
from privacy.fixed_point import to_ring
from privacy.mechanisms import GaussianNoise
from privacy.protection import grid
from privacy.secagg import request_digest
from strategies.messages import (
    CloseReply,
    CloseRequest,
    Message,
    SumReply,
    SumRequest,
    as_array,
    body_of,
    from_bytes,
)

__all__ = ["NoisyParticipant", "ProtectedParticipant", "octets"]

Floats = NDArray[np.float64]
Octets = NDArray[np.uint8]
Ring = NDArray[np.uint64]
T = TypeVar("T")


#: The sums of each method.
_SUMMANDS: dict[str, type[Any]] = {"fedhk-mvfc": FedHKSums, "fed-mufsht": MUFSHTSums}
#: Names of the arrays of a participant's state: adopted requests, and what is the method's own.
_ADOPTED, _METHOD = "adopted_", "method_"


class ProtectedParticipant(abc.ABC):
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
        self._releases = PaidReleases(self._safe, run_id)
        self._noisy = plan.privacy.mechanism == "gaussian"
        n_rows, most = len(records.ids), plan.privacy.max_rows
        if n_rows > most:
            raise self._declined(
                DataRefused(
                    f"site '{self.site}' has more rows than privacy.max_rows, {most}: raise it or "
                    "leave the run",
                    local_detail=f"{n_rows} rows",
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

    @abc.abstractmethod
    def answer(self, request: Any) -> Message:
        """Answer a request of any action but close."""

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
        self._releases.close(self._last, with_result=outcome is not None)
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
        self._last_digest = octets(state["digest"])
        for i in range(sum(name.startswith(_ADOPTED) for name in state)):
            self._adopt(octets(state[f"{_ADOPTED}{i}"]))
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
        self._check_bounds(sums, np.full(sums.shape, codec.clip) if noise is None else noise.limits)
        steps = codec.encode(sums)
        if noise is None:
            return to_ring(steps)
        kept = self._pay(request.exchange, digest)
        return to_ring(noise.add(steps)) if kept is None else np.frombuffer(kept, "<u8")

    def _check_bounds(self, sums: Floats, limits: Floats) -> None:
        """Refuse sums that no ``max_rows`` records could give: grid and noise are made for them."""
        inside = sums.shape == limits.shape and np.abs(sums) <= limits * (1.0 + 1e-9)
        if not np.all(inside):
            raise self._declined(
                DataRefused(
                    f"site '{self.site}' has sums above what privacy.max_rows "
                    f"({self.plan.privacy.max_rows}) records can give: check the bounds in "
                    "schema.toml, or leave the run",
                    local_detail=f"{np.count_nonzero(~np.asarray(inside))} of {sums.size} sums",
                )
            )

    def _pay(self, exchange: int, digest: bytes) -> bytes | None:
        """Pay for a release; return the reply where this very request was answered before."""
        return self._releases.pay(exchange, digest)

    def _sent(self, exchange: int, digest: bytes, vector: Ring, **facts: Fact) -> SumReply:
        """Keep the reply with its payment, and note in the audit log that it leaves."""
        body = vector.astype("<u8").tobytes()
        self._releases.sent(exchange, digest, body, vector.size, paid=self._noisy, **facts)
        self._last, self._last_digest = exchange, digest
        return SumReply(self.run_id, exchange, vector)

    def _answered(self, bodies: Sequence[Octets], answer: Callable[[Message], T]) -> T:
        """Adopt all of the method's requests but the last, and let the method answer that one."""
        if not bodies:
            raise ProtocolError(f"site '{self.site}' was asked for an answer to nothing")
        try:
            for body in bodies[:-1]:
                self._adopt(body.tobytes())
            asked = bodies[-1].tobytes()
            self._refuse_second(asked)
            return answer(from_bytes(asked))
        except (DataRefused, PolicyRefused) as error:
            raise self._declined(error) from error

    def _adopt(self, body: bytes) -> None:
        """Adopt a request, once: every sum brings along what a site that was away would lack."""
        if body not in self._adopted:
            self._refuse_second(body)
            self._method.adopt(from_bytes(body))
            self._adopted.append(body)

    def _refuse_second(self, body: bytes) -> None:
        """Refuse another request of a kind that was adopted: what is in force is what sums carry.

        A site that had taken the other one in between would sum something else than the rest.
        """
        kind = type(from_bytes(body))
        if any(type(from_bytes(kept)) is kind and kept != body for kept in self._adopted):
            raise ProtocolError(
                f"site '{self.site}' was sent another {kind.__name__} than the run began with"
            )

    def _declined(self, error: FedMVCError) -> FedMVCError:
        """Hide from the server what in the data made a run impossible, or how many they are."""
        return Declined(self.site, error) if self._noisy else without_count(error)

    @abc.abstractmethod
    def _close(self, request: CloseRequest) -> None:
        """Let go of what the run holds open; refuse where the server names other survivors."""

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
        if (exchange, digest) == (self._last, self._last_digest):
            kept = self._pay(exchange, digest)
            assert kept is not None  # it was kept before the number of the exchange was
            return SumReply(self.run_id, exchange, np.frombuffer(kept, "<u8"))
        if exchange <= self._last:
            raise ProtocolError(
                f"site '{self.site}' was asked for exchange {exchange} after exchange {self._last}"
            )
        return self._sent(exchange, digest, self._vector(request, digest))

    def _close(self, request: CloseRequest) -> None:
        """Nothing is held open without masks."""


def octets(array: NDArray[np.generic]) -> bytes:
    """Return the bytes that an array of a participant's state stands for."""
    return np.asarray(array, np.uint8).tobytes()
