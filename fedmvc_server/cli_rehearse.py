"""``fedmvc-server rehearse``: a federation on this machine for the length of one run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from configs.console import end_as_run, print_json
from configs.errors import ConfigError, PolicyRefused

__all__ = ["rehearse"]

_SITES = 3


def rehearse(
    plan: Annotated[
        Path, typer.Argument(help="Plan file (TOML); ready ones are in configs/presets.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder to make: run (results), sites (synthetic data).")
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of site folders in place of synthetic ones. Their own policies hold: "
            "approve the plan at each first, by 'fedmvc-client plans approve'."
        ),
    ] = None,
    sites: Annotated[
        int | None,
        typer.Option(min=1, help=f"Number of synthetic hospitals; by default {_SITES}."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the SuperLink; by default a free one."),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast", help="--fast-poll and --warm everywhere: less of Flower's own waiting."
        ),
    ] = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Leave kits and logs in OUT/federation, not after a fault only."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Run a plan on a whole federation on this machine: real processes, TLS, node keys.

    Makes kits, starts 'fedmvc-server start' and a worker, an executor and a join for each site on
    the loopback interface, runs PLAN as 'run' does, and stops everything, after Ctrl-C and SIGTERM
    too. Without --data the paper's cardio set is dealt to synthetic hospitals, which approve plans
    by themselves. Exit code: 0, 2 where a setting, the port or a folder does not fit, 7 where a
    process does not come up, 130 after Ctrl-C, or the code of the run's error.
    """
    from fedmvc_server.progress import print_row
    from fedmvc_server.rehearsal import rehearse as hold

    if data is not None and sites is not None:
        raise ConfigError(
            f"--data has its own sites and --sites asks for {sites} synthetic ones: give one of "
            "the two"
        )
    done = hold(
        plan,
        out,
        data=data,
        sites=sites or _SITES,
        port=port,
        fast=fast,
        keep=keep,
        on_progress=print_row,
    )
    if as_json:
        print_json({**done.result, "seconds": asdict(done.seconds)})
    elif done.code == 0:
        took = done.seconds
        a_round = "" if took.round is None else f", {took.round:.1f} s a round (median)"
        print(f"completed in {done.result.get('rounds')} rounds; results: {done.out}")
        print(f"each site's own results: {done.data}/SITE/results/{done.result.get('run_id')}")
        print(f"{took.start:.1f} s until all sites were online, {took.run:.1f} s the run{a_round}")
    if done.code == PolicyRefused.code and data is not None:
        raise PolicyRefused(
            f"{done.stop_reason} (the sites in --data decide by their own site.toml, here too)"
        )
    end_as_run(done.code, done.stop_reason)
