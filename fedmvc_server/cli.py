"""``fedmvc-server``: the operator's and the researcher's command line."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from configs.console import end_as_run, print_json, run_app, set_up_logging
from configs.errors import INTERRUPTED, ConfigError, FedMVCError
from configs.plan import RunPlan
from fedmvc_server.cli_provision import provisioning
from fedmvc_server.cli_rehearse import rehearse
from fedmvc_server.cli_resume import end_deployed, resumable, resume
from fedmvc_server.cli_roster import roster
from fedmvc_server.cli_services import add_services

app = typer.Typer(
    help="Federated multi-view clustering: run federations, or try them on one machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
synthesize = typer.Typer(help="Write synthetic data as site folders.", no_args_is_help=True)
app.add_typer(synthesize, name="synthesize")
app.add_typer(roster, name="roster")
app.add_typer(provisioning)
add_services(app)
app.command()(resume)
app.command()(rehearse)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
PlanArgument = Annotated[
    Path, typer.Argument(help="Plan file (TOML); ready ones are in configs/presets.")
]


@app.callback()
def _root() -> None:
    """Federated multi-view clustering: run federations, or try them on one machine."""


@synthesize.command()
def cardio(
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    sites: Annotated[int, typer.Option(min=1, help="Number of hospitals.")] = 2,
    n: Annotated[int, typer.Option(min=1, help="Number of patients over all hospitals.")] = 10_000,
    partition: Annotated[
        Literal["paper", "iid", "dirichlet", "missing", "stratified"],
        typer.Option(
            help="How patients are dealt: paper = first hospital 85%; missing = each hospital "
            "holds 2 of the 4 phenotypes."
        ),
    ] = "paper",
    alpha: Annotated[float, typer.Option(help="Concentration of the Dirichlet partition.")] = 0.3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and partition.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write the paper's two-view, four-phenotype cardio set (Eqs. 77-104).

    OUT/SITE/ holds site.toml, schema.toml and one CSV a view; OUT/truth.csv the phenotypes, which
    no run opens.
    """
    from fedmvc_server.synthesize import synthesize_cardio

    names = synthesize_cardio(out, sites=sites, n=n, partition=partition, alpha=alpha, seed=seed)
    if as_json:
        print_json({"out": str(out), "sites": names, "n": n, "partition": partition, "seed": seed})
    else:
        print(f"wrote {n} patients at {len(names)} sites into {out}: {', '.join(names)}")


@synthesize.command()
def vertical(
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    sites: Annotated[int, typer.Option(min=2, help="Number of hospitals, one view each.")] = 3,
    n: Annotated[int, typer.Option(min=1, help="Number of patients on each hospital's list.")] = (
        1000
    ),
    clusters: Annotated[int, typer.Option(min=2, help="Number of phenotypes.")] = 4,
    overlap: Annotated[
        float, typer.Option(help="Share of each list that is on every hospital's list.")
    ] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and lists.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write hospitals that hold different views of mostly the same patients (tensor-fmvc).

    OUT/SITE/ holds site.toml, schema.toml, one CSV and state/linkage.key (the same at all); the
    lists are in different orders, and the last hospital's view is weak. OUT/truth.csv holds the
    phenotypes, which no run opens.
    """
    from fedmvc_server.synthesize_vertical import synthesize_vertical

    made = synthesize_vertical(
        out, sites=sites, n=n, n_clusters=clusters, overlap=overlap, seed=seed
    )
    if as_json:
        print_json(
            {
                "out": str(out),
                "sites": made.views,
                "n": n,
                "shared": made.n_shared,
                "clusters": clusters,
                "overlap": overlap,
                "seed": seed,
            }
        )
    else:
        held = ", ".join(f"{site} ({view})" for site, view in made.views.items())
        print(
            f"wrote {n} patients at each of {sites} sites, {made.n_shared} of them at all, into "
            f"{out}: {held}"
        )


@synthesize.command()
def features(
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    sites: Annotated[int, typer.Option(min=1, help="Number of hospitals.")] = 3,
    n: Annotated[int, typer.Option(min=1, help="Number of patients over all hospitals.")] = 600,
    clusters: Annotated[int, typer.Option(min=2, help="Number of phenotypes.")] = 5,
    missing: Annotated[float, typer.Option(help="Share of the cells that are empty.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of data, gaps and row orders.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write hospitals with 190 columns of which 45 tell the phenotypes apart (fed-mufsht).

    OUT/SITE/ holds site.toml, schema.toml and one CSV a view; the last of three or more hospitals
    lacks the third view. OUT/truth.csv holds the phenotypes and OUT/informative.csv the columns to
    be found; no run opens them.
    """
    from fedmvc_server.synthesize_features import synthesize_features

    names = synthesize_features(
        out, sites=sites, n=n, n_clusters=clusters, missing=missing, seed=seed
    )
    if as_json:
        print_json(
            {
                "out": str(out),
                "sites": names,
                "n": n,
                "clusters": clusters,
                "missing": missing,
                "seed": seed,
            }
        )
    else:
        print(f"wrote {n} patients at {len(names)} sites into {out}: {', '.join(names)}")


@app.command()
def simulate(
    plan: PlanArgument,
    data: Annotated[Path, typer.Option(help="Folder of site folders (see synthesize).")],
    backend: Annotated[
        Literal["inprocess", "ray"], typer.Option(help="inprocess is fast; ray is Flower's engine.")
    ] = "inprocess",
    out: Annotated[
        Path | None, typer.Option(help="Results folder to make; by default runs/PLAN-RUN_ID.")
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(help="CSV of id,label: after the run, score it beside its baselines."),
    ] = None,
    require_approval: Annotated[
        bool,
        typer.Option(
            "--require-approval",
            help="Let each site ask for an approval (fedmvc-client plans approve), whatever its "
            "site.toml says.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a federation's both halves on this machine.

    The sites' folders in DATA get their memberships (SITE/results/RUN_ID); OUT gets the model, the
    rounds and result.json (a vertical run leaves labels at the sites and no model, a selection
    features.csv). Exit code: 0, or the code of the error (see the README's table).
    """
    checked = RunPlan.load(plan)
    from fedmvc_server.artefacts import read_result, refuse_taken
    from fedmvc_server.evaluation import read_truth
    from fedmvc_server.progress import progress
    from fedmvc_server.report_text import summary
    from fedmvc_server.runner import new_run_id
    from fedmvc_server.simulation import score_folders, simulate_folders

    set_up_logging(both_halves=True)
    run_id = new_run_id()
    out = out or Path("runs") / f"{plan.stem}-{run_id[:8]}"
    refuse_taken(out)
    if truth is not None:
        read_truth(truth)  # a truth file that cannot be read is said before the run, not after
    with progress() as observer:
        result = simulate_folders(
            checked,
            data,
            backend=backend,
            out=out,
            observer=observer,
            run_id=run_id,
            require_approval=require_approval,
        )
    scores: dict[str, Any] = {}
    unscored: FedMVCError | None = None
    if truth is not None and result.status == "completed":
        try:
            scores = score_folders(checked, data, result, truth)
        except FedMVCError as error:
            unscored = error
    if as_json:
        written = read_result(out)
        print_json({**written, **({"scores": scores} if scores else {})})
    elif result.rounds or result.status == "completed":
        print(summary(result, out, scores))
        if result.status == "completed":
            kept = "memberships" if result.model is not None else "labels"
            kept = "selection and clusters" if result.selection is not None else kept
            print(f"each site's {kept}: {data}/SITE/results/{result.run_id}")
    if unscored is not None:
        end_as_run(unscored.code, f"the run completed but is not scored: {unscored.public_message}")
    end_as_run(result.exit_code, result.stop_reason)


@app.command(name="noise-control")
def check_noise(
    plan: PlanArgument,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of site folders: also permute the rows that all sites hold."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for result.json; by default runs/PLAN-noise.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="CSV of id,label: score both orders of the rows too.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that a vertical plan's result does not come from the order of the rows.

    Runs the plan on Gaussian noise, where nothing may score above labels at random, and with
    --data on a permutation of the real rows, which may not change the result. Exit code: 0, 2 where
    the plan fails the check (OUT/result.json has the figures), or the code of the run's error.
    """
    checked = RunPlan.load(plan)
    from fedmvc_server.artefacts import prepare_folder, refuse_taken, versions, write_result
    from fedmvc_server.noise_control import noise_control
    from fedmvc_server.report_text import noise_summary

    set_up_logging(both_halves=True)
    logging.getLogger("fedmvc").setLevel(logging.ERROR)
    logging.getLogger("fedmvc.site").setLevel(logging.ERROR)
    out = out or Path("runs") / f"{plan.stem}-noise"
    refuse_taken(out)
    found = noise_control(
        checked, data, truth=truth, progress=lambda sentence: print(sentence, file=sys.stderr)
    )
    prepare_folder(out)
    failure = "" if found.passed else "the plan's result depends on the order of the rows"
    written = {
        "status": "completed",
        "exit_code": ConfigError.code if failure else 0,
        "stop_reason": failure or "the check ran to its end",
        "plan": checked.fields(),
        "plan_id": checked.plan_id,
        "versions": versions(),
        "noise_control": asdict(found),
    }
    write_result(out, written)
    if as_json:
        print_json(written)
    else:
        print(noise_summary(found, out))
    if failure:
        raise ConfigError(f"{failure}: use profile 'plus' or orientation 'unfold', sweep 'random'")


@app.command()
def run(
    plan: PlanArgument,
    server: Annotated[str, typer.Option(help="Address of the SuperLink, HOST:PORT.")],
    out: Annotated[Path, typer.Option(help="Results folder on the SuperLink's machine.")],
    ca: Annotated[
        Path | None,
        typer.Option(help="CA certificate (ca.crt of the kit); left out: a server without TLS."),
    ] = None,
    fast_poll: Annotated[
        bool,
        typer.Option(
            "--fast-poll",
            help="Look for the sites' replies every 0.01 to 0.05 s, not 0.05 to 0.25. Most of a "
            "round's waiting ends with the sites' own --fast-poll.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a plan on a deployed federation and wait for its end.

    The SuperLink and the sites are already up. OUT gets result.json, the model and the rounds. Exit
    code: 0, 7 where the SuperLink cannot be reached, or the code of the run's error.
    """
    from fedmvc_server.artefacts import read_result, refuse_taken
    from fedmvc_server.deployment import run_deployed
    from fedmvc_server.progress import print_row

    RunPlan.load(plan)
    refuse_taken(out)
    with resumable(out):
        code = run_deployed(plan, server, ca, out, fast_poll=fast_poll, on_progress=print_row)
    written = read_result(out)
    if as_json:
        print_json(written)
    elif code == 0:
        print(f"completed in {written.get('rounds')} rounds; results: {out}")
    end_deployed(out, code, written.get("stop_reason", "the run failed"))


def main() -> int:
    """Console script; returns the exit code."""
    code = run_app(app)
    if code == INTERRUPTED:
        # A thread of Flower's Ray engine may still wait for its sites; nobody waits for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
