"""Flower's waits for the parts of a message, shortened.

A message's parts are uploaded after the message itself. Who looks in between finds a part missing
and asks for it again after 1 s, then 2 s, up to 10 s: Flower 1.42 has no setting for it. Who looks
often looks in between nearly always, so it must ask again soon as well.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["FIRST_S", "LONGEST_S", "WAITING", "ask_again_soon"]

FIRST_S, LONGEST_S = 0.02, 1.0
"""Seconds before a missing part is asked for again: doubled each time, up to the second."""
WAITING = {
    "flwr.supercore.inflatable.inflatable_utils": (
        "pull_objects",
        "pull_and_inflate_object_from_tree",
    )
}
"""Modules of Flower and those of their functions that have these waits as defaults."""


def ask_again_soon() -> None:
    """Let this process ask again soon for parts of messages; where Flower has no such waits, no."""
    for module, names in WAITING.items():
        for name in names:
            defaults = getattr(import_module(module), name).__kwdefaults__ or {}
            if {"initial_backoff", "backoff_cap"} <= defaults.keys():
                defaults.update(initial_backoff=FIRST_S, backoff_cap=LONGEST_S)
