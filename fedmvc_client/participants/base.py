"""What the worker asks of the site half of any method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from configs.plan import RunPlan
from fedmvc_client.outcomes import Outcome
from fedmvc_client.sources import Records, Source
from privacy.mechanisms import GaussianNoise
from strategies.messages import Message

Arrays = Mapping[str, NDArray[np.generic]]


class Participant(Protocol):
    """One site in one run.

    Attributes
    ----------
    ACTIONS : dict
        The request type of each action after hello, in the order a run asks them: the first begins
        the site's part, the last ends it. Asked once more, the first begins it anew where it is
        REPLAYED; elsewhere the participant that is there answers.
    REPLAYED : tuple of str
        Set-up actions whose requests are kept on disk and answered again after a restart.
    """

    ACTIONS: ClassVar[Mapping[str, type]]
    REPLAYED: ClassVar[tuple[str, ...]]

    @property
    def noise(self) -> GaussianNoise | None:
        """What the site adds to each of its sums; None without noise."""
        ...

    @classmethod
    def begin(cls, plan: RunPlan, run_id: str, source: Source, records: Records) -> Participant:
        """Take part in a run with the records that were read."""
        ...

    def answer(self, request: Any) -> Message:
        """Answer a request of any action but the last."""
        ...

    def finish(self, request: Any) -> tuple[Message, Outcome | None]:
        """Answer the last action's request; the outcome, None without one, stays at the site."""
        ...

    def state(self) -> Arrays:
        """Return what a restarted worker could not compute again; often nothing."""
        ...

    def restore(self, state: Arrays) -> None:
        """Take back what `state` gave."""
        ...
