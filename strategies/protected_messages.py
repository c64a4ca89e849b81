"""Requests and replies of a protected run: keys, shares, masked or noisy sums, the closing.

They carry no method of their own: ``bodies`` hold the method's requests as bytes, the same for all
sites, and what comes back is one vector of ring elements; a method's own reply comes back only to
an `AskRequest`, where the method says that it may be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.errors import ProtocolError
from privacy.canonical import pack

__all__ = [
    "AskRequest",
    "CloseReply",
    "CloseRequest",
    "KeysReply",
    "KeysRequest",
    "SharesReply",
    "SharesRequest",
    "SumReply",
    "SumRequest",
    "UnmaskReply",
    "UnmaskRequest",
    "as_array",
    "body_of",
]

#: Bytes, as arrays travel.
Octets = NDArray[np.uint8]
Ring = NDArray[np.uint64]


def as_array(body: bytes) -> Octets:
    """See bytes as an array; ``.tobytes()`` is the way back."""
    return np.frombuffer(body, np.uint8)


def body_of(bodies: Sequence[Octets]) -> bytes:
    """Join requests with their lengths: what a digest covers of them."""
    return pack(*(body.tobytes() for body in bodies))


@dataclass(frozen=True)
class KeysRequest:
    """Ask for the site's signed keys: the first step of a set-up.

    Parameters
    ----------
    first : int
        First exchange that they are for, 1 or more; a later one where a resumed run is set up
        again.
    """

    run_id: str
    plan_id: str
    first: int


@dataclass(frozen=True)
class KeysReply:
    """The site's signed key message (see `privacy.secagg`)."""

    run_id: str
    message: Octets


@dataclass(frozen=True)
class SharesRequest:
    """The key messages of all participants, in name order; ``first`` as in a `KeysRequest`."""

    run_id: str
    plan_id: str
    first: int
    messages: tuple[Octets, ...]


@dataclass(frozen=True)
class SharesReply:
    """One sealed envelope of shares for each other participant; the server cannot open them."""

    run_id: str
    receivers: tuple[str, ...]
    envelopes: tuple[Octets, ...]


@dataclass(frozen=True)
class SumRequest:
    """Ask for one vector of sums.

    Parameters
    ----------
    exchange : int
        Its number, 1 or more and never used twice.
    previous : tuple of str
        Sites in the last sum that was opened; empty before the first.
    bodies : tuple of ndarray of uint8
        The method's requests: all but the last are adopted, the last one is answered.
    senders, envelopes
        Envelopes for this site alone, with its first request after a set-up; they are not part of
        the digest.
    """

    run_id: str
    plan_id: str
    exchange: int
    previous: tuple[str, ...]
    bodies: tuple[Octets, ...]
    senders: tuple[str, ...]
    envelopes: tuple[Octets, ...]

    def __post_init__(self) -> None:
        if self.exchange < 1 or len(self.senders) != len(self.envelopes):
            raise ProtocolError(
                f"a request for sum {self.exchange} with {len(self.envelopes)} envelopes of "
                f"{len(self.senders)} senders: numbers start at 1, and each envelope has a sender"
            )


@dataclass(frozen=True)
class SumReply:
    """The site's sums as ring elements, masked where the plan says so, with noise where it does."""

    run_id: str
    exchange: int
    vector: Ring


@dataclass(frozen=True)
class AskRequest:
    """Ask for a reply that the method gives in the clear, such as a figure on quality.

    ``bodies`` as in a `SumRequest`: all but the last are adopted, the last one is answered by the
    method's own reply.
    """

    run_id: str
    plan_id: str
    bodies: tuple[Octets, ...]


@dataclass(frozen=True)
class UnmaskRequest:
    """Name the sites whose vectors are there; ask for the shares that open their sum."""

    run_id: str
    plan_id: str
    exchange: int
    survivors: tuple[str, ...]


@dataclass(frozen=True)
class UnmaskReply:
    """Shares of self-masks of the survivors and of mask keys of the others."""

    run_id: str
    exchange: int
    answer: Octets


@dataclass(frozen=True)
class CloseRequest:
    """End the run: the last opened exchange and its sites, and the method's last request.

    ``body`` is empty where the run ends without a result.
    """

    run_id: str
    plan_id: str
    exchange: int
    survivors: tuple[str, ...]
    body: Octets


@dataclass(frozen=True)
class CloseReply:
    """The site has closed its part."""

    run_id: str
