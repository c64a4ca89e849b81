"""Label privacy at a site: its labels leave by chance alone, each drawn once and sent again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.plan import RunPlan
from fedmvc_client.participants.paid_releases import PaidReleases
from fedmvc_client.safe import Safe
from privacy.label_privacy import label_epsilon
from privacy.os_random import random_words
from privacy.randomised_response import LabelRandomiser
from strategies.messages import Message, pack_labels, to_bytes, unpack_labels

__all__ = ["PrivateLabels"]

Labels = NDArray[np.int64]
Packed = NDArray[np.uint8]


class PrivateLabels:
    """The labels of the rows that all sites hold, as a site lets them out.

    A row without data gets a label at random, which then stays: gaps do not show, and the odds of
    what is sent for a gap and for any label are below those for two labels.

    Parameters
    ----------
    plan : RunPlan
        With randomised response.
    run_id : str
    safe : Safe
    """

    def __init__(self, plan: RunPlan, run_id: str, safe: Safe) -> None:
        self._n_clusters = plan.n_clusters
        self._epsilon = label_epsilon(plan)
        self._releases = PaidReleases(safe, run_id)
        self._randomiser = self._knowing(None, None)
        self._last = -1
        self._last_digest = b""

    def send(self, exchange: int, request: Message, labels: Labels) -> Packed:
        """Pay for a list of labels, draw the answers and keep them; return them packed.

        Parameters
        ----------
        exchange : int
            0 for the first labels, then the number of the round.
        request : Message
            What is answered. A request that was answered before gets the same bytes, free.
        labels : ndarray of shape (N,), int64
            The site's own; -1 where it has no data.

        Raises
        ------
        BudgetExceeded
            Where all label messages of the run are paid.
        """
        digest = _digest(request)
        kept = self._releases.pay(exchange, digest)
        if kept is None:
            packed = pack_labels(self._randomiser.release(self._filled(labels)), self._n_clusters)
            self._releases.sent(exchange, digest, packed.tobytes(), labels.size)
        else:
            # the site was restarted before it had noted what it sent
            packed = np.frombuffer(kept, np.uint8)
            answers = unpack_labels(packed, labels.size, self._n_clusters)
            self._randomiser = self._knowing(np.where(labels >= 0, labels, answers), answers)
        self._last, self._last_digest = exchange, digest
        return packed

    def again(self, exchange: int, request: Message) -> Packed | None:
        """Return what was sent where this is the last request once more, else None."""
        digest = _digest(request)
        if (exchange, digest) != (self._last, self._last_digest):
            return None
        kept = self._releases.pay(exchange, digest)
        return None if kept is None else np.frombuffer(kept, np.uint8)

    def rename(self, names: Labels) -> None:
        """Call cluster k ``names[k]``, which costs nothing."""
        self._randomiser.rename(names)

    def close(self) -> None:
        """End the run: what was not asked for is given back."""
        self._releases.close(self._last)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what a restarted site needs, so that no label is drawn twice."""
        return {
            "labels": self._randomiser.labels,
            "answers": self._randomiser.answers,
            "last": np.array(self._last),
            "digest": np.frombuffer(self._last_digest, np.uint8),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` gave."""
        self._randomiser = self._knowing(
            state["labels"].astype(np.int64), state["answers"].astype(np.int64)
        )
        self._last = int(state["last"])
        self._last_digest = np.asarray(state["digest"], np.uint8).tobytes()

    def _knowing(self, labels: Labels | None, answers: Labels | None) -> LabelRandomiser:
        return LabelRandomiser(self._n_clusters, self._epsilon, labels, answers)

    def _filled(self, labels: Labels) -> Labels:
        """Give rows without data the label that they were given first."""
        filling = self._randomiser.labels
        if filling.size == 0:
            drawn = random_words(labels.size) % np.uint64(self._n_clusters)
            filling = drawn.astype(np.int64)
        return np.where(labels >= 0, labels, filling)


def _digest(request: Message) -> bytes:
    return hashlib.sha256(to_bytes(request)).digest()
