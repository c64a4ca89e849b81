"""How both command lines end: one sentence and the documented exit code, never a traceback."""

from __future__ import annotations

import logging
import os
import sys

import typer
from click import ClickException
from click.exceptions import Abort, Exit

from configs.errors import ConfigError, FedMVCError, InternalError

__all__ = ["run_app", "set_up_logging"]

_LOG = logging.getLogger("fedmvc")


def set_up_logging() -> None:
    """Send FedMVC's own log to standard error; ``FEDMVC_LOG_LEVEL`` overrides INFO."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
    )
    level = os.environ.get("FEDMVC_LOG_LEVEL", "INFO").upper()
    _LOG.setLevel(level if level in logging.getLevelNamesMapping() else "INFO")


def run_app(app: typer.Typer) -> int:
    """Run a command line and return its exit code.

    A :class:`FedMVCError` becomes its sentence on standard error and its code; wrong usage becomes
    click's own message and code 2; anything else one sentence and code 70, with the traceback only
    where ``FEDMVC_LOG_LEVEL`` is DEBUG.
    """
    set_up_logging()
    try:
        code = app(standalone_mode=False)
    except FedMVCError as error:
        _say(error.public_message)
        if error.local_detail:
            print(f"  {error.local_detail}", file=sys.stderr)
        return error.code
    except Exit as ended:
        return int(ended.exit_code)
    except ClickException as error:
        error.show(file=sys.stderr)
        return ConfigError.code
    except (Abort, KeyboardInterrupt):
        _say("stopped at the keyboard")
        return 130
    except Exception as error:
        _LOG.debug("internal error", exc_info=True)
        _say(
            f"an internal error ({type(error).__name__}): run again with FEDMVC_LOG_LEVEL=DEBUG to "
            "see where, and please report it"
        )
        return InternalError.code
    return code if isinstance(code, int) else 0


def _say(sentence: str) -> None:
    print(f"error: {sentence}", file=sys.stderr)
