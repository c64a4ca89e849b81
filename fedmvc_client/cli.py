"""``fedmvc-client``: a hospital's command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.compatibility import one_view_only
from configs.console import print_json, run_app
from configs.plan import RunPlan
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_client.cli_executor import executor
from fedmvc_client.cli_options import JsonOption, SiteOption
from fedmvc_client.cli_plans import plans, refuse_plan
from fedmvc_client.cli_privacy import abort, budget, keygen
from fedmvc_client.cli_privacy import log as audit_log
from fedmvc_client.cli_services import add_services
from fedmvc_client.cli_worker import worker

if TYPE_CHECKING:
    from fedmvc_client.data import SiteData

app = typer.Typer(
    help="One hospital's side of a federation: check the data, serve them, label patients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(plans, name="plans")
app.add_typer(budget, name="budget")
app.add_typer(audit_log, name="log")
app.command()(keygen)
app.command()(abort)
add_services(app)
app.command()(worker)
app.command()(executor)


@app.callback()
def _root() -> None:
    """One hospital's side of a federation: check the data, serve them, label patients."""


@app.command()
def check(
    plan: Annotated[
        Path | None, typer.Argument(help="Plan file: also check whether this site would run it.")
    ] = None,
    site: SiteOption = Path("."),
    as_json: JsonOption = False,
) -> None:
    """Read the site's files and count what a run would find. Nothing leaves this machine."""
    from fedmvc_client.data import load_site
    from fedmvc_client.policy import enforce_cohort

    checked = None if plan is None else RunPlan.load(plan)
    config = SiteConfig.load(site)
    schema = DataSchema.load(site / "schema.toml")
    if config.device.device.startswith("cuda"):
        from fedmvc_client.solvers.devices import resolve_device  # loads torch: only where asked

        resolve_device(config.device.device)
    data = load_site(site, schema, config)
    enforce_cohort(config.name, config.policy, len(data.ids))
    if checked is not None:
        refuse_plan(site, checked)
        if checked.method == "tensor-fmvc":
            _check_vertical(site, config, schema, data, checked)
        elif checked.method == "fed-mufsht":
            _check_selecting(site, data, checked)
        elif checked.features:
            from fedmvc_client.feature_choice import describe_chosen
            from fedmvc_client.sources import FolderSource

            describe_chosen(FolderSource(site), checked)
    report = {
        "site": config.name,
        "rows": data.report.rows,
        "plan_id": None if checked is None else checked.plan_id,
        "views": {
            name: {
                "columns": len(schema.features(name)),
                "schema_hash": schema.schema_hash(name),
                "rows_lacking_it": data.report.lacking_view[name],
                "missing_cells": dict(data.report.missing[name]),
                "cells_outside_bounds": dict(data.report.outside_bounds[name]),
            }
            for name in data.views
        },
    }
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _check_vertical(
    site: Path, config: SiteConfig, schema: DataSchema, data: SiteData, plan: RunPlan
) -> None:
    """Refuse what a vertical run would refuse at this site: views, rows, ids, linkage key."""
    from fedmvc_client.solvers.preprocessing import prepare_rows
    from privacy.alignment import normalise_ids, read_linkage_key

    one_view_only(config.name, len(data.views))
    normalise_ids(data.ids, schema.id_rule, config.name)
    read_linkage_key(site / config.keys.linkage)
    for name, view in data.views.items():
        sentence = f"view '{name}' of site '{config.name}'"
        prepare_rows(view, plan.n_clusters, plan.tensor.scaling, sentence)


def _check_selecting(site: Path, data: SiteData, plan: RunPlan) -> None:
    """Take a selection run's first step here, sums unsent: what it refuses, the run would."""
    import numpy as np

    from fedmvc_client.participants.fed_mufsht import FedMUFSHTParticipant
    from fedmvc_client.sources import FolderSource, Records
    from strategies.messages import SurveyRequest

    records = Records(data.ids, dict(data.views))
    participant = FedMUFSHTParticipant.begin(plan, "check", FolderSource(site), records)
    n_columns = np.array([view.shape[1] for view in data.views.values()], dtype=np.int64)
    participant.survey(SurveyRequest("check", plan.plan_id, tuple(data.views), n_columns))


def _print_report(report: dict[str, Any]) -> None:
    print(f"site '{report['site']}': {report['rows']} rows, {len(report['views'])} views")
    if report["plan_id"] is not None:
        print(f"  would run plan {report['plan_id'][:12]}")
    for name, view in report["views"].items():
        print(
            f"  {name}: {view['columns']} columns, schema {view['schema_hash'][:8]}, "
            f"{view['rows_lacking_it']} rows lack it"
        )
        for key, words in (
            ("missing_cells", "cells missing"),
            ("cells_outside_bounds", "cells outside the declared bounds"),
        ):
            for column, count in view[key].items():
                if count:
                    print(f"    {column}: {count} {words}")


@app.command()
def predict(
    model: Annotated[Path, typer.Option(help="model.json of a run, model.npz beside it.")],
    data: Annotated[Path, typer.Option(help="Folder with the new patients' view files.")],
    out: Annotated[Path, typer.Option(help="File to write: .csv or .parquet.")],
    site: SiteOption = Path("."),
    as_json: JsonOption = False,
) -> None:
    """Label new patients: id, label, u_1 .. u_c, distance, outside_bounds.

    DATA may hold its own site.toml and schema.toml; otherwise those of --site are used.
    """
    from fedmvc_client.predict import predict_files

    found = predict_files(model, data, out, site)
    outside = int((found.outside_bounds > 0).sum())
    if as_json:
        print_json({"out": str(out), "rows": len(found.ids), "rows_outside_bounds": outside})
    else:
        print(f"labelled {len(found.ids)} rows ({outside} with a cell outside its bounds): {out}")


@app.command()
def impute(
    selection: Annotated[
        Path, typer.Option(help="selection.json of a run, selection.npz beside it.")
    ],
    data: Annotated[Path, typer.Option(help="Folder with the view files whose gaps are filled.")],
    out: Annotated[Path, typer.Option(help="Folder to make, with one file a view.")],
    site: SiteOption = Path("."),
    as_json: JsonOption = False,
) -> None:
    """Fill missing cells by what a selection run (fed-mufsht) learned; observed ones stay.

    An imputed value is a guess from the record's other cells, not a measurement. DATA may hold its
    own site.toml and schema.toml; otherwise those of --site are used.
    """
    from fedmvc_client.completion import impute_files

    found = impute_files(selection, data, out, site)
    if as_json:
        left = dict(found.left)
        counts = {"rows": len(found.ids), "imputed": dict(found.imputed), "left_missing": left}
        print_json({"out": str(out), **counts})
        return
    print(f"{len(found.ids)} rows: {out}")
    for view, count in found.imputed.items():
        print(f"  {view}: {count} cells imputed, {found.left[view]} left missing")


def main() -> int:
    """Console script; returns the exit code."""
    return run_app(app)
