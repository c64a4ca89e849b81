"""``fedmvc-client join`` and ``doctor``: the site's SuperNode, and what may be wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.console import print_json
from fedmvc_client.cli_options import JsonOption, SiteOption

__all__ = ["add_services"]


def add_services(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (join, doctor):
        app.command()(command)


def join(
    site: SiteOption = Path("."),
    server: Annotated[
        str | None,
        typer.Option(help="Server, HOST:PORT, in place of the one in connection.toml."),
    ] = None,
    runtime: Annotated[
        str, typer.Option(help="HOST:PORT at which this site's executor finds the SuperNode.")
    ] = "127.0.0.1:9094",
    socket: Annotated[
        Path | None,
        typer.Option(help="The worker's unix socket; by default SITE/run/worker.sock."),
    ] = None,
    fast_poll: Annotated[
        bool,
        typer.Option(
            "--fast-poll", help="Ask the server for work more often than Flower's every 3 s."
        ),
    ] = False,
) -> None:
    """Connect this site to its server until Ctrl-C or SIGTERM (Flower's SuperNode).

    It has the node key and a way out, and neither data nor code of a run: the worker
    ('fedmvc-client worker') has the data, and 'fedmvc-client executor' runs what arrives. A
    SuperNode that dies is started again. Exit code: 0 after a stop, 7 where the server refuses this
    site (one sentence says why), 8 where the releases of flwr differ.
    """
    from fedmvc_client import join as joining

    joining.join(
        joining.JoinSettings.load(
            site, server=server, runtime=runtime, socket=socket, fast_poll=fast_poll
        )
    )


def doctor(site: SiteOption = Path("."), as_json: JsonOption = False) -> None:
    """Look for what would keep this site out of a federation, one line a check.

    Versions, configuration, keys, roster, the server's certificate (names, expiry), clock, whether
    the server knows this site, data and schema hashes, free disk. Nothing about the data leaves
    this machine. Exit code: 0, or that of the worst problem.
    """
    from configs.diagnosis import as_dict, as_lines, worst
    from fedmvc_client.doctor import diagnose

    found = diagnose(site)
    if as_json:
        print_json(as_dict(found))
    else:
        print(as_lines(found))
    raise typer.Exit(worst(found))
