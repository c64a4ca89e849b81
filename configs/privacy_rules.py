"""What table [privacy] means for a plan: its defaults, its limits, and the numbers of its sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from configs.compatibility import option_refusals
from configs.errors import ConfigError
from configs.secure_terms import SecureTerms, check_terms, default_dropouts

if TYPE_CHECKING:
    from configs.plan import RunPlan

__all__ = ["check_privacy", "secure_terms", "with_defaults"]

_DELTA = 1e-5
#: Spare exchanges at least: keys for sums that have to be asked again under another number.
_LEAST_SPARES = 5
#: What each mechanism needs to be told.
_KEYS: dict[str, tuple[str, ...]] = {
    "none": (),
    "gaussian": ("epsilon", "delta", "noise", "clip"),
    "randomised-response": ("epsilon",),
    "paper": ("epsilon", "delta"),
}
#: Keys that only a masked run has.
_MASKED = ("participants", "tolerated_dropouts", "threshold", "spare_exchanges")


def with_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what the privacy of a plan decides, so that its canonical form spells it out.

    Values of a wrong type are left for the validation to name.

    Parameters
    ----------
    fields : mapping
        A plan's keys and tables as written, method known.
    """
    privacy = fields.get("privacy")
    if not isinstance(privacy, Mapping):
        return dict(fields)
    masked = privacy.get("secure_aggregation") is True
    mechanism = privacy.get("mechanism", "none")
    filled: dict[str, Any] = {}
    if mechanism in ("gaussian", "paper"):
        filled["delta"] = _DELTA
    if mechanism == "gaussian":
        filled["noise"] = "distributed" if masked else "local"
    names, colluders = privacy.get("participants"), privacy.get("colluders", 1)
    if masked and isinstance(names, list | tuple) and isinstance(colluders, int):
        dropouts = privacy.get("tolerated_dropouts")
        if dropouts is None:
            dropouts = default_dropouts(len(names), colluders) if mechanism == "gaussian" else 0
            filled["tolerated_dropouts"] = dropouts
        if isinstance(dropouts, int) and names:
            filled["threshold"] = len(names) - dropouts
    plan = {**fields, "privacy": {**filled, **privacy}}
    if masked and isinstance(names, list | tuple):
        plan["quorum"] = _filled(fields.get("quorum"), {"min_sites": max(len(names), 1)})
    method = fields.get("method")
    if method == "fedhk-mvfc":
        options: dict[str, Any] = {}
        if masked or mechanism == "gaussian":
            options["init"] = "spread"
        if mechanism in ("gaussian", "paper"):
            options["n_init"] = 1  # every start is a release of its own
        if mechanism == "gaussian":
            options["acceleration"] = "none"
        if options:
            plan["fedhk"] = _filled(fields.get("fedhk"), options)
    if method == "fed-mufsht" and (masked or mechanism == "gaussian"):
        plan["mufsht"] = _filled(fields.get("mufsht"), {"weighting": "uniform"})
    if method == "tensor-fmvc" and mechanism == "randomised-response":
        plan = {"max_rounds": 0, **plan}  # the first labels have all of epsilon
    return plan


def _filled(table: Any, defaults: dict[str, Any]) -> Any:
    """Put defaults behind a table's own values."""
    if table is None:
        return defaults
    return {**defaults, **table} if isinstance(table, Mapping) else table


def check_privacy(plan: RunPlan) -> None:
    """Refuse a privacy table that does not fit itself, the method or its options.

    Raises
    ------
    ConfigError
        One sentence with the way out.
    """
    privacy = plan.privacy
    mechanism = privacy.mechanism
    for key in _KEYS["gaussian"]:
        if key not in _KEYS[mechanism] and getattr(privacy, key) is not None:
            raise ConfigError(
                f"privacy.{key} is set but privacy.mechanism is '{mechanism}', which has no {key}: "
                "leave it out or name another mechanism, for instance 'gaussian'"
            )
    if mechanism != "none" and privacy.epsilon is None:
        unit = "label" if mechanism == "randomised-response" else "patient"
        raise ConfigError(
            f"privacy.mechanism is '{mechanism}' but privacy.epsilon is missing: say how much the "
            f"whole run may tell about one {unit}, for instance 1.0"
        )
    if privacy.secure_aggregation:
        _check_masked(plan)
    else:
        for key in _MASKED:
            if getattr(privacy, key) not in (None, ()):
                raise ConfigError(
                    f"privacy.{key} is set but privacy.secure_aggregation is false: set it to true "
                    f"or leave {key} out"
                )
        if privacy.noise == "distributed":
            raise ConfigError(
                "privacy.noise is 'distributed' but privacy.secure_aggregation is false, so the "
                "server would see each site's share of the noise alone: use 'local' or secure "
                "aggregation"
            )
    for broken, sentence in option_refusals(plan):
        if broken:
            raise ConfigError(sentence)


def _check_masked(plan: RunPlan) -> None:
    privacy, quorum = plan.privacy, plan.quorum
    names = privacy.participants
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"privacy.participants lists site '{twice}' twice: name each site once")
    if not names:
        raise ConfigError(
            "privacy.secure_aggregation is true but privacy.participants is empty: list the names "
            "of the sites, 3 or more"
        )
    terms = secure_terms(plan)
    assert terms is not None
    check_terms(terms.n_sites, terms.colluders, terms.tolerated_dropouts, terms.threshold)
    if privacy.mechanism != "gaussian" and terms.tolerated_dropouts:
        raise ConfigError(
            f"privacy.tolerated_dropouts is {terms.tolerated_dropouts} without noise that "
            "guarantees something: two sums that differ by one site are that site's sum; use 0 or "
            'mechanism = "gaussian"'
        )
    if terms.least_contributors < privacy.min_contributors:
        raise ConfigError(
            f"a sum may hold {terms.least_contributors} of {terms.n_sites} sites and "
            f"privacy.min_contributors is {privacy.min_contributors}: add sites or lower it"
        )
    if quorum.min_sites != terms.n_sites:
        raise ConfigError(
            f"quorum.min_sites is {quorum.min_sites} but privacy.participants lists "
            f"{terms.n_sites} sites, which all set the sums up: leave min_sites out"
        )
    if quorum.on_missing != "stop":
        raise ConfigError(
            "quorum.on_missing is 'continue' but with secure aggregation "
            "privacy.tolerated_dropouts says how many sites may be missing: leave on_missing out"
        )


def secure_terms(plan: RunPlan) -> SecureTerms | None:
    """Return the numbers of the plan's secure sums; None where it has none."""
    privacy = plan.privacy
    if not privacy.secure_aggregation:
        return None
    dropouts = privacy.tolerated_dropouts or 0
    n = len(privacy.participants)
    needed = masked_exchanges(plan)
    spares = privacy.spare_exchanges
    if spares is None:
        spares = max(_LEAST_SPARES, math.ceil(needed / 4))
    return SecureTerms(
        participants=tuple(sorted(privacy.participants)),
        colluders=privacy.colluders,
        tolerated_dropouts=dropouts,
        threshold=n - dropouts if privacy.threshold is None else privacy.threshold,
        exchanges=needed + spares,
        max_rows=privacy.max_rows,
    )


def masked_exchanges(plan: RunPlan) -> int:
    """Count the sums that a run of a plan asks for, none of them failing."""
    rounds = plan.max_rounds
    if plan.privacy.mechanism == "gaussian":
        return rounds  # nothing else is released
    if plan.method == "fed-mufsht":
        return 2 + rounds + (plan.mufsht_settings().search == "keys")
    automatic = plan.settings(1).bandwidth == "auto"
    return 1 + automatic + rounds + 1
