"""Key ``features`` of a plan: cluster on the columns that a Fed-MUFSHT run selected."""

from __future__ import annotations

import math
from dataclasses import dataclass

from configs.errors import ConfigError

__all__ = ["FeatureChoice", "parse_features", "refuse_features"]

_RUN_ID_DIGITS = frozenset("0123456789abcdef-")
#: Why only one method takes the columns of an earlier run.
_REASONS = {
    "tensor-fmvc": "the sites of a vertical run hold different views, and a selection is made over "
    "views that sites share",
    "fed-mufsht": "a selection of a selection is not made, as its scores would only speak of what "
    "the first one left",
}


@dataclass(frozen=True)
class FeatureChoice:
    """The first ``ratio`` of the features that a run ranked.

    Attributes
    ----------
    run_id : str
        Of a finished Fed-MUFSHT run, 8 to 64 of the characters 0-9, a-f and '-'.
    ratio : float
        Share of all features, above 0, at most 1; another than the run's own plan had, if wanted.
    """

    run_id: str
    ratio: float

    def __str__(self) -> str:
        """Return ``RUN_ID@RATIO``, the same text however the ratio was written."""
        return f"{self.run_id}@{self.ratio!r}"


def parse_features(text: str) -> FeatureChoice | None:
    """Read ``RUN_ID@RATIO``; an empty text chooses nothing.

    Raises
    ------
    ConfigError
        One sentence with what was written and what is allowed.
    """
    if not text:
        return None
    run_id, _, share = text.rpartition("@")
    if not 8 <= len(run_id) <= 64 or not _RUN_ID_DIGITS.issuperset(run_id):
        raise ConfigError(
            f"features is {text!r}: give '' or 'RUN_ID@RATIO', with the whole run_id of a "
            "Fed-MUFSHT run (0-9, a-f and '-') as its result.json has it"
        )
    try:
        ratio = float(share)
    except ValueError:
        ratio = math.nan
    if not 0.0 < ratio <= 1.0:
        raise ConfigError(
            f"features ends in '@{share}': give a share of the features, above 0 and at most 1, "
            "for instance '@0.4'"
        )
    return FeatureChoice(run_id, ratio)


def refuse_features(method: str) -> None:
    """Refuse methods that cannot run on the columns of another run.

    Raises
    ------
    ConfigError
    """
    reason = _REASONS.get(method)
    if reason is not None:
        raise ConfigError(
            f"features is set but method is '{method}': {reason}; leave it out or use method = "
            '"fedhk-mvfc"'
        )
