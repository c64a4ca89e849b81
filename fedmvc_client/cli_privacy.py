"""``fedmvc-client keygen``, ``budget`` and ``log``: a site's keys and books."""

from __future__ import annotations

import getpass
import os
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from configs.console import print_json
from configs.errors import ConfigError
from configs.site import SiteConfig
from fedmvc_client.cli_options import JsonOption, SiteOption
from fedmvc_client.cli_plans import finite, in_words, shown

__all__ = ["abort", "budget", "keygen", "log"]

budget = typer.Typer(help="The privacy budget of this site's patients.", no_args_is_help=True)
log = typer.Typer(help="The audit log of this site.", no_args_is_help=True)

CertificateOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--certificate",
        help="Certificate of a run kept elsewhere, beside those in results; repeat for several.",
    ),
]
#: What PKCS8 files can be locked with.
_LONGEST_PASSPHRASE = 1023


@budget.command(name="show")
def show_budget(site: SiteOption = Path("."), as_json: JsonOption = False) -> None:
    """Say what of this site's privacy budget is spent, reserved and left.

    The budget (policy.epsilon_budget at policy.delta_budget) belongs to the cohort's name, not to
    a file: a new export of the same patients renews nothing. Exit code 4 where the site's books
    lack something.
    """
    from fedmvc_client.books import LookedAtSafe, verify_books

    safe = LookedAtSafe(site, SiteConfig.load(site))
    verify_books(safe)  # a budget read from books that lack something would be too large
    report = finite(asdict(safe.ledger.status()))
    open_runs = list(safe.ledger.open_runs())
    if as_json:
        print_json({"site": safe.site, **report, "open_runs": open_runs})
        return
    print(f"site '{safe.site}', {in_words(report)}")
    print(
        "  where all other participants of all runs work with the server: "
        f"{shown(report['if_others_collude'])} spent and reserved"
    )
    for run_id in open_runs:
        print(f"  run {run_id} is not over")


@budget.command(name="verify")
def verify_budget(
    site: SiteOption = Path("."),
    certificate: CertificateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that no row of the privacy ledger was edited, forged or cut off.

    Each row is authenticated with all rows before it under the site's own key, and its last one
    must be that which the audit log and the certificates name. Exit code 4 where it breaks.
    """
    from fedmvc_client.books import LookedAtSafe, certified_heads, verify_ledger
    from privacy.ledger import LEDGER_HEAD

    safe = LookedAtSafe(site, SiteConfig.load(site))
    heads = certified_heads(site, LEDGER_HEAD, certificate or ())
    verify_ledger(safe, heads)
    head = safe.ledger.head()
    if as_json:
        print_json({"site": safe.site, "certificates": len(heads), "head": head})
    else:
        print(
            f"the privacy ledger of site '{safe.site}' is in order ({len(heads)} certificates "
            f"asked); its head is {head}"
        )


@budget.command()
def separate(
    first: Annotated[str, typer.Argument(help="Name of a cohort, as in policy.cohort.")],
    second: Annotated[str, typer.Argument(help="Name of another.")],
    site: SiteOption = Path("."),
    yes: Annotated[
        bool, typer.Option("--yes", help="Sign without being asked: no patient is in both.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """State under this site's signature that no patient is in both of two cohorts.

    Only then has each a budget of its own; until then the runs of all cohorts count together.
    """
    from fedmvc_client.safe import FolderSafe
    from privacy.cohorts import FILE_NAME, SeparateCohorts

    safe = FolderSafe(site, SiteConfig.load(site))
    identity, path = safe.identity(), site / FILE_NAME
    stated = SeparateCohorts.load(path)
    pairs = [(first, second)]
    if stated is not None:
        stated.of(first, safe.site, identity.public_key())  # nothing is added to a forgery
        pairs += stated.pairs
    signed = SeparateCohorts.sign(safe.site, pairs, identity)
    question = f"Is it certain that no patient is in both '{first}' and '{second}'?"
    if not yes and not typer.confirm(question, err=True):
        raise ConfigError("nothing was signed: both cohorts go on sharing one budget")
    signed.dump(path)
    safe.audit.write("cohorts stated separate", cohorts=[first, second])
    if as_json:
        print_json({"site": safe.site, "separate": [list(pair) for pair in signed.pairs]})
    else:
        print(f"cohorts '{first}' and '{second}' have budgets of their own: signed in {path}")


@log.command(name="verify")
def verify_log(
    site: SiteOption = Path("."),
    certificate: CertificateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that the audit log (state/audit.jsonl) holds every line that something vouches for.

    Each line carries the hash of all lines before it; ledger, register and certificates name lines
    that must be there. What was written after the last of these could be cut off unseen: keep
    certificates elsewhere. Exit code 4 where it breaks.
    """
    from fedmvc_client.books import AUDIT_HEAD, LookedAtSafe, certified_heads, verify_audit

    safe = LookedAtSafe(site, SiteConfig.load(site))
    heads = certified_heads(site, AUDIT_HEAD, certificate or ())
    verify_audit(safe, heads)
    entries = safe.audit.entries()
    if as_json:
        print_json(
            {
                "site": safe.site,
                "events": len(entries),
                "certificates": len(heads),
                "head": safe.audit.head(),
            }
        )
    else:
        print(
            f"the audit log of site '{safe.site}' is in order: {len(entries)} events "
            f"({len(heads)} certificates asked); its head is {safe.audit.head()}"
        )


def abort(
    run_id: Annotated[str, typer.Argument(help="Id of a running run, or how it begins.")],
    site: SiteOption = Path("."),
    as_json: JsonOption = False,
) -> None:
    """End this site's part in a run, now and for good: its secrets go, its budget is forfeited.

    For a run whose server is gone for good, or that must not go on. What the run reserved counts as
    spent, and its id is refused from now on. A run nobody asks about for a week ends by itself.
    """
    from fedmvc_client.abandoned import abort as end_here
    from fedmvc_client.safe import FolderSafe

    safe = FolderSafe(site, SiteConfig.load(site))
    ended = end_here(safe, run_id)
    if as_json:
        print_json({"site": safe.site, "run_id": ended})
    else:
        print(f"site '{safe.site}' has ended its part in run {ended}")


def keygen(
    linkage: Annotated[
        bool,
        typer.Option("--linkage", help="Make the key by which the sites of a vertical run align."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="File to make; by default the one that site.toml names in its keys."),
    ] = None,
    passphrase: Annotated[
        bool,
        typer.Option(
            "--passphrase",
            help="Ask for a passphrase that locks the identity key; without it, that in "
            "FEDMVC_PASSPHRASE if there is one. The worker later needs it there.",
        ),
    ] = False,
    site: SiteOption = Path("."),
    as_json: JsonOption = False,
) -> None:
    """Make this site's identity key; only its owner can read it, and none is ever overwritten.

    The others know the site by it in runs with secure aggregation. Its public half, one line of
    text that is printed and kept in identity.pub beside the key, goes to the operator, who puts it
    into the federation's roster. The key itself never leaves the site.

    With --linkage: make the key by which the sites of a vertical run (method tensor-fmvc) align.
    All need the same one: make it at ONE site and hand the file to the others by a safe channel.
    The server must never have it: with it, it could test who is a patient of yours. Make a new one
    whenever a site leaves.
    """
    if linkage and passphrase:
        raise ConfigError("a linkage key has no passphrase: leave --passphrase out")
    if linkage:
        _make_linkage(out or site / SiteConfig.load(site).keys.linkage, as_json)
    else:
        path = out or site / SiteConfig.load(site).keys.identity
        _make_identity(path, _passphrase(passphrase), as_json)


def _make_linkage(path: Path, as_json: bool) -> None:
    from privacy.alignment import make_linkage_key

    make_linkage_key(path)
    following = (
        "every site of the run needs this same file where keys.linkage in its site.toml says, with "
        "mode 600: hand it to the others by a safe channel, never to the server"
    )
    if as_json:
        print_json({"kind": "linkage", "out": str(path), "next": following})
    else:
        print(f"made linkage key {path}")
        print(f"next: {following}")


def _make_identity(path: Path, passphrase: bytes | None, as_json: bool) -> None:
    from privacy.identity import fingerprint, make_identity, public_text

    key = make_identity(path, passphrase)
    text, name = public_text(key), fingerprint(key.public_key().public_bytes_raw())
    public = path.with_suffix(".pub")
    following = (
        f"hand the operator the site's name and {public.name}, and compare the fingerprint by "
        "telephone; put the roster that comes back where keys.roster in site.toml says"
    )
    if as_json:
        print_json(
            {
                "kind": "identity",
                "out": str(path),
                "locked": passphrase is not None,
                "public_key": text,
                "public_file": str(public),
                "fingerprint": name,
                "next": following,
            }
        )
        return
    print(f"made identity key {path}{'' if passphrase is None else ', locked by the passphrase'}")
    print(f"public key   {text}")
    print(f"fingerprint  {name}")
    print(f"next: {following}")


def _passphrase(ask: bool) -> bytes | None:
    """Return the passphrase that locks a new key: asked for, or from the environment."""
    from privacy.identity import PASSPHRASE

    given = os.environ.get(PASSPHRASE)
    if ask:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)  # it would be seen on the screen
            try:
                given = typer.prompt(
                    "Passphrase", hide_input=True, confirmation_prompt=True, err=True
                )
            except getpass.GetPassWarning as error:
                raise ConfigError(
                    f"there is no terminal to ask for a passphrase: give it in {PASSPHRASE} and "
                    "leave --passphrase out"
                ) from error
    if given is None:
        return None
    if not 1 <= len(given.encode()) <= _LONGEST_PASSPHRASE:
        raise ConfigError(
            f"the passphrase has {len(given.encode())} bytes: give 1 to {_LONGEST_PASSPHRASE}, or "
            "leave it out"
        )
    return given.encode()
