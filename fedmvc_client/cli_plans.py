"""``fedmvc-client plans``: what a plan would have the site do, and whether it may."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.console import print_json
from configs.errors import BudgetExceeded, ConfigError, PolicyRefused
from configs.plan import RunPlan
from configs.schema import DataSchema
from configs.site import SiteConfig
from configs.values import counted
from fedmvc_client.cli_options import JsonOption, SiteOption

if TYPE_CHECKING:
    from fedmvc_client.safe import Safe
    from privacy.budget import Cost

__all__ = ["finite", "in_words", "plans", "refuse_plan", "shown"]

plans = typer.Typer(
    help="What a plan would have this site do, and whether it may.", no_args_is_help=True
)

#: What a site without an identity key does.
_KEYGEN = "make it with fedmvc-client keygen"
#: Characters that name a plan: fewer could be another one tomorrow.
_SHORTEST_ID = 6
PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="Plan file (TOML), or the id of a plan seen here.")
]


@plans.command(name="list")
def list_plans(site: SiteOption = Path("."), as_json: JsonOption = False) -> None:
    """List the plans that this site has seen, and what was decided about each.

    A plan is seen when a run asks for it or somebody here approves or rejects its file. status:
    seen (nobody decided), approved, used up (all approved runs have begun), expired, rejected.
    """
    safe = _look_at(site)
    entries = [asdict(entry) for entry in safe.register.list()]
    if as_json:
        print_json({"site": safe.site, "plans": entries})
        return
    print(f"site '{safe.site}' has seen {counted(len(entries), 'plan')}")
    for entry in entries:
        runs = ""
        if entry["approved_runs"]:
            runs = (
                f", {entry['runs_left']} of {counted(entry['approved_runs'], 'run')} left, until "
                f"{entry['expires'][:10]}"
            )
        print(
            f"  {entry['plan_id'][:12]}  {entry['method']}, seen {entry['seen'][:10]}: "
            f"{entry['status']}{runs}"
        )


@plans.command()
def show(
    plan: PlanArgument,
    site: Annotated[
        Path | None,
        typer.Option(
            help="A site's folder: also say whether it would take part, and what that takes from "
            "its budget; by default the current folder if it has a site.toml."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a plan runs, what would leave this site, how often, and what it costs.

    Read it before you approve a plan: the sentences on who learns what follow from the plan alone,
    and a run's certificate repeats them.
    """
    from privacy.disclosure import disclosures

    folder = site or (Path(".") if Path("site.toml").is_file() else None)
    safe = None if folder is None else _look_at(folder)
    checked = _plan_named(plan, safe)
    report: dict[str, Any] = {
        "plan_id": checked.plan_id,
        "method": checked.method,
        "profile": checked.profile,
        "n_clusters": checked.n_clusters,
        "max_rounds": checked.max_rounds,
        "quorum": checked.quorum.model_dump(mode="json"),
        "disclosures": list(disclosures(checked)),
        "site": None,
        "status": None,
        "refusal": None,
        "warning": None,
        "cost": None,
        "budget": None,
    }
    if safe is not None and folder is not None:
        report |= _standing(folder, safe, checked)
    if as_json:
        print_json(report)
    else:
        _print_plan(report)


@plans.command()
def approve(
    plan: PlanArgument,
    runs: Annotated[int, typer.Option(min=1, max=1000, help="How many runs may begin.")] = 1,
    days: Annotated[int, typer.Option(min=1, max=3650, help="For how many days.")] = 30,
    site: SiteOption = Path("."),
    as_json: JsonOption = False,
) -> None:
    """Allow runs of exactly this plan; read `plans show` first.

    An edited plan is another plan and needs its own approval. Going on with a run that was
    interrupted uses nothing up. What was decided about the plan before no longer counts.
    """
    from fedmvc_client.policy import enforce_plan

    safe = _open(site)
    checked = _plan_named(plan, safe)
    warning = safe.register.differing_sums(checked)
    safe.register.see(checked)
    entry = safe.register.approve(checked.plan_id, runs, days)
    refusal = None
    try:
        enforce_plan(safe.site, safe.policy, checked)
    except PolicyRefused as error:
        refusal = error.public_message
    if as_json:
        print_json({"site": safe.site, **asdict(entry), "refusal": refusal, "warning": warning})
        return
    print(
        f"approved plan {entry.plan_id[:12]}: {counted(entry.runs_left, 'run')} may begin until "
        f"{str(entry.expires)[:10]}"
    )
    for sentence in filter(None, (refusal, warning)):
        print(textwrap.fill(f"note: {sentence}", 96, subsequent_indent="  "))


@plans.command()
def reject(plan: PlanArgument, site: SiteOption = Path("."), as_json: JsonOption = False) -> None:
    """Allow no run of this plan, whatever site.toml says; runs under way cannot go on."""
    safe = _open(site)
    checked = _plan_named(plan, safe)
    safe.register.see(checked)
    entry = safe.register.reject(checked.plan_id)
    if as_json:
        print_json({"site": safe.site, **asdict(entry)})
    else:
        print(f"rejected plan {entry.plan_id[:12]}")


def refuse_plan(folder: Path, plan: RunPlan) -> None:
    """Refuse a plan that a run would be refused for at this site, before any data is read.

    Raises
    ------
    PolicyRefused
        Where the site's policy, its staff or an earlier run stand against it.
    BudgetExceeded
        Where the site's privacy budget does not cover it.
    """
    safe = _look_at(folder)
    _refuse(folder, safe, plan, _cost(folder, safe, plan))


def _refuse(folder: Path, safe: Safe, plan: RunPlan, cost: Cost | None) -> None:
    from fedmvc_client.books import verify_books
    from fedmvc_client.policy import enforce_plan
    from privacy.key_files import read_private

    verify_books(safe)
    enforce_plan(safe.site, safe.policy, plan)
    if plan.secure_terms() is not None:
        safe.roster()
        read_private(folder / SiteConfig.load(folder).keys.identity, "identity key", _KEYGEN)
    safe.register.would_begin(plan, safe.policy)
    if cost is not None:
        safe.ledger.refuse_dear("", cost)


def _standing(folder: Path, safe: Safe, plan: RunPlan) -> dict[str, Any]:
    """Say how a plan stands at a site: what was decided, what it costs, what is left."""
    cost = _cost(folder, safe, plan)
    refusal = None
    try:
        _refuse(folder, safe, plan, cost)
    except (PolicyRefused, BudgetExceeded, ConfigError) as error:
        refusal = error.public_message
    known = [each.status for each in safe.register.list() if each.plan_id == plan.plan_id]
    return {
        "site": safe.site,
        "status": known[0] if known else None,
        "refusal": refusal,
        "warning": safe.register.differing_sums(plan),
        "cost": None if cost is None else _priced(safe, plan, cost),
        "budget": finite(asdict(safe.ledger.status())),
    }


def _cost(folder: Path, safe: Safe, plan: RunPlan) -> Cost | None:
    """Return what a run would reserve at a site; None where the plan guarantees nothing."""
    from privacy.protection import cost_of

    schema = DataSchema.load(folder / "schema.toml")
    held = [view for view in SiteConfig.load(folder).data if view in schema.view_names]
    return cost_of(plan, [len(schema.features(view)) for view in held])


def _priced(safe: Safe, plan: RunPlan, cost: Cost) -> dict[str, Any]:
    return finite(
        {
            "mechanism": cost.mechanism,
            "releases": cost.releases,
            "epsilon": plan.privacy.epsilon,
            "delta": plan.privacy.delta,
            "from_budget": safe.ledger.price(cost),
        }
    )


def finite(fields: dict[str, Any]) -> dict[str, Any]:
    """Put None where JSON has no number."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }


def _plan_named(text: str, safe: Safe | None) -> RunPlan:
    """Return the plan of a file, or the plan seen whose id begins so."""
    path = Path(text)
    if path.is_file() or path.suffix or len(path.parts) > 1:
        return RunPlan.load(path)
    if safe is None:
        raise ConfigError(
            f"there is no plan file '{text[:64]}' here: name one, or say --site where the plan "
            "was seen"
        )
    if len(text) < _SHORTEST_ID:
        raise ConfigError(
            f"'{text}' is too short for the id of a plan: give {_SHORTEST_ID} characters or more"
        )
    return safe.register.load(safe.register.find(text))


def _look_at(folder: Path) -> Safe:
    from fedmvc_client.books import LookedAtSafe

    return LookedAtSafe(folder, SiteConfig.load(folder))


def _open(folder: Path) -> Safe:
    from fedmvc_client.safe import FolderSafe

    return FolderSafe(folder, SiteConfig.load(folder))


def _print_plan(report: dict[str, Any]) -> None:
    quorum = report["quorum"]
    profile = "" if report["profile"] is None else f", profile {report['profile']}"
    print(f"plan      {report['plan_id']}")
    print(f"method    {report['method']}{profile}")
    print(f"clusters  {report['n_clusters']}")
    print(f"rounds    at most {report['max_rounds']}")
    print(
        f"quorum    {quorum['min_sites']} sites or more, {quorum['timeout_s']:g} s an exchange; "
        f"where one does not answer: {quorum['on_missing']}"
    )
    if report["site"] is not None:
        allowed = f"site '{report['site']}' would take part"
        print(f"policy    {report['refusal'] or allowed}")
        _print_costs(report)
    print("\nwhat leaves this site, and who learns what:")
    for sentence in report["disclosures"]:
        print(textwrap.fill(sentence, 96, initial_indent="- ", subsequent_indent="  "))
    if report["warning"] is not None:
        print(textwrap.fill(f"note: {report['warning']}", 96, subsequent_indent="  "))


def _print_costs(report: dict[str, Any]) -> None:
    budget, cost = report["budget"], report["cost"]
    if cost is None:
        print("cost      nothing of the budget: the plan gives no guarantee that a budget counts")
    else:
        at = "" if cost["delta"] is None else f" at delta {cost['delta']:g}"
        print(
            f"cost      epsilon {cost['epsilon']:g}{at} in {cost['releases']} releases "
            f"({cost['mechanism']}): takes {shown(cost['from_budget'])} of what is left"
        )
        print(
            "          (at the budget's own delta, together with earlier runs: costs do not simply "
            "add)"
        )
    print(f"budget    {in_words(budget)}")


def shown(epsilon: float | None) -> str:
    """Write an epsilon in four digits; None is more than any number."""
    return "more than any" if epsilon is None else f"{epsilon:.4g}"


def in_words(budget: dict[str, Any]) -> str:
    """Say how a budget stands in one line."""
    owner = f"cohort '{budget['cohort']}'" if budget["cohort"] else "the whole site"
    return (
        f"{owner}: epsilon {budget['epsilon_budget']:g} at delta {budget['delta_budget']:g}; spent "
        f"{shown(budget['spent'])}, reserved {shown(budget['reserved'])}, left "
        f"{shown(budget['left'])}"
    )
