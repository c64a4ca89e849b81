"""What a site keeps of a run from one request to the next, as the bytes of one file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["STATE", "Answered", "read_state", "state_bytes"]

#: The file in a run's folder: written whole or not at all, so that state and reply agree.
STATE = "state.npz"
#: Names of the arrays that hold the last request's hash and its reply.
_REQUEST, _REPLY = "last_request", "last_reply"


@dataclass(frozen=True)
class Answered:
    """The last request of a run, by its SHA-256, and the bytes that answered it."""

    request: bytes
    reply: bytes


def state_bytes(state: Mapping[str, NDArray[Any]], answered: Answered | None) -> bytes:
    """Write a participant's state and the last reply."""
    arrays = dict(state)
    if answered is not None:
        arrays[_REQUEST] = np.frombuffer(answered.request, np.uint8)
        arrays[_REPLY] = np.frombuffer(answered.reply, np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def read_state(body: bytes) -> tuple[dict[str, NDArray[Any]], Answered | None]:
    """Read what `state_bytes` wrote."""
    with np.load(io.BytesIO(body), allow_pickle=False) as stored:
        state = {name: stored[name] for name in stored.files}
    request, reply = state.pop(_REQUEST, None), state.pop(_REPLY, None)
    if request is None or reply is None:
        return state, None
    return state, Answered(request.tobytes(), reply.tobytes())
