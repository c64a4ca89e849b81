"""``fedmvc-server start``, ``status`` and ``doctor``: the server's own services."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.console import print_json

__all__ = ["add_services"]

KitOption = Annotated[
    Path, typer.Option(help="The server's kit: folder 'server' that 'provision' made.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def add_services(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (start, status, doctor):
        app.command()(command)


def start(
    kit: KitOption,
    host: Annotated[
        str, typer.Option(help="Address to listen at; others than this machine's own need a proxy.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port to listen at; by default the one of federation.toml, behind a proxy 8000.",
        ),
    ] = None,
    behind_proxy: Annotated[
        bool,
        typer.Option(
            "--behind-proxy",
            help="A reverse proxy lets /v1/fleet/ alone through to HOST: whoever reaches the rest "
            "can start runs at every site.",
        ),
    ] = False,
) -> None:
    """Run the server until Ctrl-C or SIGTERM: the SuperLink and its executor.

    TLS with the kit's certificate, registered sites only, state in KIT/state. Either is started
    again when it dies; a run goes on while the SuperLink is away for some seconds. Stay in the
    foreground: let systemd or a container keep this command.
    """
    from fedmvc_server import service
    from fedmvc_server.kit import ServerKit

    service.start(ServerKit.at(kit), host, port, behind_proxy=behind_proxy)


def status(
    server: Annotated[str, typer.Option(help="Address of the SuperLink itself, HOST:PORT.")],
    ca: Annotated[Path, typer.Option(help="CA certificate (ca.crt of the kit).")],
    kit: Annotated[
        Path | None,
        typer.Option(help="The server's kit: also list its sites that are not registered."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder of a run: also its round, and whom it waits for."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which sites are online, when each was heard of last, and what runs.

    Ask from a machine that reaches the SuperLink itself; the sites' proxy lets no such question
    through. Exit code: 0, or 7 where the SuperLink does not answer.
    """
    from fedmvc_server import status as statuses

    found = statuses.status(server, ca, kit=kit, out=out)
    if as_json:
        print_json(statuses.as_dict(found))
    else:
        print(statuses.as_text(found))


def doctor(
    kit: KitOption,
    server: Annotated[
        str | None,
        typer.Option(help="Address of a running SuperLink, HOST:PORT: also look how it answers."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look for what would keep this machine from serving, one line a check.

    Versions, the kit's certificate (names, expiry) and key files, registered sites, free disk; with
    --server reachability and clock. Exit code: 0, or that of the worst problem.
    """
    from configs.diagnosis import as_dict, as_lines, worst
    from fedmvc_server.doctor import diagnose
    from fedmvc_server.kit import ServerKit

    found = diagnose(ServerKit.at(kit), server)
    if as_json:
        print_json(as_dict(found))
    else:
        print(as_lines(found))
    raise typer.Exit(worst(found))
