"""How both command lines end: one sentence and the documented exit code, never a traceback."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import typer
from click import ClickException
from click.exceptions import Abort, Exit

from configs.errors import (
    INTERRUPTED,
    ConfigError,
    FedMVCError,
    InternalError,
    error_for_code,
)

__all__ = ["end_as_run", "print_json", "run_app", "set_up_logging"]

_LOG = logging.getLogger("fedmvc")
#: Whether this command has printed its JSON object: a failure after it adds no second one.
_printed: list[bool] = []


class _Console(logging.Handler):
    """Write log lines to whatever standard error is at that moment.

    A record with an attribute ``local_detail`` is a refusal; the detail gets a line of its own.

    Parameters
    ----------
    both_halves : bool
        The run's own half says on this console why a site refused: of a site's log of it only what
        the server may not know is added.
    """

    def __init__(self, both_halves: bool) -> None:
        super().__init__()
        self.both_halves = both_halves
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        detail = getattr(record, "local_detail", None)
        try:
            if detail is None or not self.both_halves:
                print(self.format(record), file=sys.stderr)
            if detail:
                print(f"  {detail}", file=sys.stderr)
        except (OSError, ValueError):
            self.handleError(record)  # standard error is closed


def set_up_logging(*, both_halves: bool = False) -> None:
    """Send FedMVC's own log to standard error; ``FEDMVC_LOG_LEVEL`` overrides INFO.

    Parameters
    ----------
    both_halves : bool, default False
        Server and sites share this console, so a site's refusal is not said twice.
    """
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Console)]:
        root.removeHandler(handler)
    root.addHandler(_Console(both_halves))
    level = os.environ.get("FEDMVC_LOG_LEVEL", "INFO").upper()
    _LOG.setLevel(level if level in logging.getLevelNamesMapping() else "INFO")


def run_app(app: typer.Typer) -> int:
    """Run a command line and return its exit code.

    A :class:`FedMVCError` becomes its sentence on standard error and its code; wrong usage becomes
    click's own message and code 2; anything else one sentence and code 70, with the traceback only
    where ``FEDMVC_LOG_LEVEL`` is DEBUG.
    """
    set_up_logging()
    _printed.clear()
    try:
        code = app(standalone_mode=False)
    except FedMVCError as error:
        if "--json" in sys.argv and not _printed:
            failed = {"exit_code": error.code, "stop_reason": error.public_message}
            print_json({"status": "failed", **failed})
        _say(error.public_message)
        if error.local_detail:
            print(f"  {error.local_detail}", file=sys.stderr)
        return error.code
    except Exit as ended:
        code = ended.exit_code
    except ClickException as error:
        error.show(file=sys.stderr)
        return ConfigError.code
    except (Abort, KeyboardInterrupt):
        _say("stopped at the keyboard")
        return INTERRUPTED
    except Exception as error:
        _LOG.debug("internal error", exc_info=True)
        _say(
            f"an internal error ({type(error).__name__}): run again with FEDMVC_LOG_LEVEL=DEBUG to "
            "see where, and please report it"
        )
        return InternalError.code
    if code == INTERRUPTED:  # what typer makes of Ctrl-C
        _say("stopped at the keyboard")
    return code if isinstance(code, int) else 0


def end_as_run(code: int, stop_reason: str) -> None:
    """End a command as its run ended: with its exit code, and why in one sentence.

    Raises
    ------
    FedMVCError
        That of the exit code, with `stop_reason`, where it is not 0.
    KeyboardInterrupt
        Where somebody stopped the run.
    """
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise error_for_code(code)(stop_reason)


def print_json(value: dict[str, Any]) -> None:
    """Print the one JSON object of a command with ``--json``."""
    _printed.append(True)
    print(json.dumps(value, indent=2, allow_nan=False))


def _say(sentence: str) -> None:
    print(f"error: {sentence}", file=sys.stderr)
