"""``fedmvc-server resume``: go on with a run whose server was lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from configs.console import end_as_run, print_json
from configs.errors import ConfigError

__all__ = ["end_deployed", "resumable", "resume"]


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Say after Ctrl-C how the run goes on, where it can."""
    try:
        yield
    except KeyboardInterrupt:
        if _can_go_on(out):
            print(f"the run can go on: fedmvc-server resume {out}", file=sys.stderr)
        raise


def end_deployed(out: Path, code: int, stop_reason: str) -> None:
    """End a command as its deployed run ended (`end_as_run`), and say how the run goes on."""
    if code and _can_go_on(out):
        stop_reason += f"; once that is put right, 'fedmvc-server resume {out}' goes on"
    end_as_run(code, stop_reason)


def _can_go_on(out: Path) -> bool:
    from fedmvc_server.artefacts import FOLDER

    return (out / FOLDER).is_dir()


def resume(
    out: Annotated[
        Path, typer.Argument(help="Results folder that 'fedmvc-server run' was given with --out.")
    ],
    server: Annotated[
        str | None,
        typer.Option(help="Address of the SuperLink, HOST:PORT; by default the run's own."),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="CA certificate; by default the run's own.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Go on with a deployed run that was interrupted, and wait for its end.

    For a run whose ServerApp or SuperLink was lost, whose disk was full, or that stopped because a
    site was away: bring these back first. The run keeps its id and goes on after the last exchange
    that is kept in OUT/checkpoint; a site that had answered already gives the same bytes again, so
    the result is the same and no privacy is paid twice. Exit code: 0, 2 where there is nothing to
    go on with (one sentence says why), 7 where the SuperLink cannot be reached, or the code of the
    run's error.
    """
    from fedmvc_server.artefacts import read_result
    from fedmvc_server.checkpoint import unfinished
    from fedmvc_server.deployment import resume_deployed
    from fedmvc_server.progress import print_row

    known = unfinished(out)
    address = server or known.server
    if address is None:
        raise ConfigError(
            f"run.json in folder '{out.name}' names no server: give it with --server, and --ca"
        )
    trust = ca if ca is not None or known.ca is None else Path(known.ca)
    with resumable(out):
        code = resume_deployed(out, address, trust, on_progress=print_row)
    written = read_result(out)
    if as_json:
        print_json(written)
    elif code == 0:
        parts = len(written.get("resumed", ())) + 1
        print(f"completed in {written.get('rounds')} rounds, in {parts} parts; results: {out}")
    sys.stdout.flush()
    end_deployed(out, code, written.get("stop_reason", "the run failed"))
