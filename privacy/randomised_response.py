"""Label privacy: a label is sent as it is, or as any other one, by chance (k-ary).

With K clusters the true label goes out with probability ``e^epsilon / (e^epsilon + K - 1)`` and
each other with ``1 / (e^epsilon + K - 1)`` (Kairouz, Oh and Viswanath, NIPS 2014): whatever label
is seen, any two true labels explain it with odds of at most e^epsilon. This hides one label, given
all rows; it does not hide a patient, since one changed row may move most labels.

A label that stays is not drawn again: the site re-sends its answer, so that asking often tells
nothing more of it. A changed label is drawn anew and pays again, in the worst case once a message.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from configs.errors import ConfigError, ProtocolError
from privacy.os_random import random_words

__all__ = ["CHANGES_ARE_SEEN", "LabelRandomiser"]

Labels = NDArray[np.int64]

#: For the certificate of a run that sends more than one label a row.
CHANGES_ARE_SEEN = (
    "that a row's label changed between two messages: an answer that is not re-sent shows it, "
    "and epsilon bounds what is learnt of the labels, not of when they change"
)
#: The truth is told this much less often, relatively: room for what division of a 64-bit word by
#: K - 1 leaves over.
_ROOM = 1e-12


class LabelRandomiser:
    """A site's answers about the labels of its rows.

    Two label histories of a row that change at the same messages explain the answers with odds of
    at most ``e^(epsilon_per_release (1 + number of changes))``.

    Parameters
    ----------
    n_clusters : int
        K, 2 or more.
    epsilon_per_release : float
        Above 0: epsilon of the run divided by the label messages that the plan sends.
    labels, answers : ndarray of shape (n,), int64, optional
        The attributes of a randomiser that is to go on after a restart of the site.

    Attributes
    ----------
    labels : ndarray of shape (n,), int64
        True labels of the last message; empty before the first.
    answers : ndarray of shape (n,), int64
        What was sent for them.

    Raises
    ------
    ConfigError
        If there is nothing to choose from, or epsilon is not a number above 0.
    """

    def __init__(
        self,
        n_clusters: int,
        epsilon_per_release: float,
        labels: Labels | None = None,
        answers: Labels | None = None,
    ) -> None:
        if n_clusters < 2 or not 0 < epsilon_per_release < math.inf:
            raise ConfigError(
                f"randomised response with {n_clusters} clusters and epsilon "
                f"{epsilon_per_release:g} a label message: it needs 2 clusters or more and a "
                "number above 0"
            )
        self.n_clusters = n_clusters
        self.labels = np.empty(0, np.int64) if labels is None else labels
        self.answers = np.empty(0, np.int64) if answers is None else answers
        truth = 1.0 / (1.0 + (n_clusters - 1) * math.exp(-epsilon_per_release))
        self._truth_below = np.uint64(int(truth * (1 - _ROOM) * 2**64))

    def release(self, labels: Labels) -> Labels:
        """Return what is sent for the labels of one message.

        Parameters
        ----------
        labels : ndarray of shape (n,), int64
            In 0 .. K-1, one for each row that the site has data for; the same rows in the same
            order in every message.

        Raises
        ------
        ProtocolError
            If the number of rows is not that of the message before.
        """
        first = self.labels.size == 0
        if not first and labels.shape != self.labels.shape:
            raise ProtocolError(
                f"{labels.size} labels are to be sent and the message before had "
                f"{self.labels.size}: the rows of a run never change; start a new run"
            )
        fresh = self._draw(labels)
        answers = fresh if first else np.where(labels == self.labels, self.answers, fresh)
        self.labels, self.answers = labels.copy(), answers
        return answers.copy()

    def rename(self, names: Labels) -> None:
        """Give the clusters new names, which costs nothing: label k becomes ``names[k]``."""
        self.labels, self.answers = names[self.labels], names[self.answers]

    def _draw(self, labels: Labels) -> Labels:
        chance, other = random_words(2 * labels.size).reshape(2, -1)
        # another label is 1 .. K-1 places further on
        places = (other % np.uint64(self.n_clusters - 1)).astype(np.int64) + 1
        moved = (labels + places) % self.n_clusters
        return np.asarray(np.where(chance < self._truth_below, labels, moved))
