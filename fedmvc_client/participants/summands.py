"""What a protected run asks of the site half of any method."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedmvc_client.outcomes import Outcome
from fedmvc_client.participants.base import Arrays
from privacy.mechanisms import GaussianNoise
from strategies.messages import Message

__all__ = ["Summands"]

Floats = NDArray[np.float64]


class Summands(Protocol):
    """The site half of a method as a protected run needs it."""

    @property
    def noise(self) -> GaussianNoise | None:
        """The noise of one release; None where the plan has none."""
        ...

    def adopt(self, request: Message) -> None:
        """Take what the next sum needs to know, and answer nothing."""
        ...

    def ask(self, request: Message) -> Message:
        """Answer in the clear what the method may tell of this site alone; else refuse."""
        ...

    def sums(self, request: Message) -> Floats:
        """Answer with sums (k,) in which one record counts at most 1, or a site ``max_rows``."""
        ...

    def finish(self, request: Message) -> Outcome:
        """End the method's part; the outcome stays at the site."""
        ...

    def state(self) -> Arrays:
        """Return what a restarted worker could not compute again; often nothing."""
        ...

    def restore(self, state: Arrays) -> None:
        """Take back what `state` gave; what was adopted has been adopted again."""
        ...
