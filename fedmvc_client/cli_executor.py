"""``fedmvc-client executor``: the process that runs messages, without data or keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["executor"]


def executor(
    socket: Annotated[
        Path, typer.Option(help="The worker's socket: where a refused bundle is reported.")
    ],
    runtime: Annotated[
        str, typer.Option(help="HOST:PORT where the SuperNode hands out messages (its --port).")
    ] = "127.0.0.1:9094",
    warm: Annotated[
        bool,
        typer.Option(
            "--warm",
            help="Import once and fork a fresh process for each message, instead of starting "
            "Python for each.",
        ),
    ] = False,
    fast_poll: Annotated[
        bool,
        typer.Option(
            "--fast-poll", help="Look for a message every 0.05 s, not every second as Flower does."
        ),
    ] = False,
) -> None:
    """Run the messages that the SuperNode got, each in a process of its own, until stopped.

    The server's app bundle is looked at before anything of it is used. One that carries code, or
    names other components than FedMVC's, is refused: the server gets an error, the worker writes
    the bundle's SHA-256 and the reason to the site's audit log. The executor needs the SuperNode's
    port and the worker's socket, and should have nothing else: no data, no keys, no way out.
    """
    from fedmvc_client.executor import run_executor

    run_executor(runtime, socket, warm=warm, fast_poll=fast_poll)
