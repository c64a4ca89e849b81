"""``fedmvc-server roster``: which sites are in a federation, and the identity key of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.console import print_json
from configs.errors import ConfigError
from configs.secure_terms import LEAST_SITES
from configs.site import SiteConfig
from configs.values import counted
from privacy.identity import fingerprint, given_passphrase, read_identity, read_public_text
from privacy.roster import Roster

__all__ = ["roster"]

roster = typer.Typer(help="The federation's sites and their identity keys.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@roster.command()
def build(
    federation: Annotated[str, typer.Option(help="Name of the federation.")],
    out: Annotated[Path, typer.Option(help="File to make.")] = Path("roster.json"),
    site: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PUBLIC_KEY", help="A site and its public key; repeat for each site."
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of files NAME.pub, or of site folders, in place of --site."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Put the sites' public keys (`fedmvc-client keygen`) into one file for all of them.

    Compare each fingerprint with its site by telephone before you hand the file to the sites,
    outside the network: they trust no key that is not in it. One file a federation: a site that
    joins, leaves or changes its key needs a new one. Fewer than three sites are warned of: secure
    aggregation needs three.
    """
    found: dict[str, bytes] = {}
    named = [_named(text) for text in site or ()]
    for name, text in [*named, *(() if keys is None else _in_folder(keys))]:
        if name in found:
            raise ConfigError(f"site '{name[:64]}' is named twice: give one key for each site")
        found[name] = read_public_text(text, f"site '{name[:64]}'")
    if not found:
        raise ConfigError("no site is named: give --site NAME=PUBLIC_KEY or --keys FOLDER")
    built = Roster(federation, found)
    built.dump(out)
    _print(built, out, as_json)


@roster.command()
def check(
    file: Annotated[Path, typer.Argument(help="Roster file.")],
    site: Annotated[
        Path | None,
        typer.Option(help="A site's folder: also check that the roster has this site's own key."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a roster's hash, its sites and the fingerprint of each key.

    All sites of a run must have the same hash. A site whose identity key is locked needs its
    passphrase in FEDMVC_PASSPHRASE.
    """
    read = Roster.load(file)
    if site is not None:
        _check_own_key(read, site)
    _print(read, file, as_json)


def _named(text: str) -> tuple[str, str]:
    name, mark, key = text.partition("=")
    if not mark:
        raise ConfigError(f"--site is '{text[:64]}': write NAME=PUBLIC_KEY")
    return name, key


def _in_folder(folder: Path) -> list[tuple[str, str]]:
    """Collect names and keys of a folder of public key files or of site folders."""
    if not folder.is_dir():
        raise ConfigError(
            f"--keys is '{folder.name}', which is no folder", local_detail=str(folder)
        )
    files = [(path.stem, path) for path in folder.glob("*.pub")]
    for site_file in folder.glob("*/site.toml"):
        config = SiteConfig.load(site_file.parent)
        public = (site_file.parent / config.keys.identity).with_suffix(".pub")
        files.append((config.name, public))
    return [(name, _read(path, name)) for name, path in sorted(files)]


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        raise ConfigError(
            f"site '{name[:64]}' has no public key '{path.name}': run `fedmvc-client keygen` there",
            local_detail=str(path),
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"public key '{path.name}' of site '{name[:64]}' cannot be read: copy it again from "
            "the site",
            local_detail=f"{path}: {error}",
        ) from None


def _check_own_key(read: Roster, folder: Path) -> None:
    config = SiteConfig.load(folder)
    identity = read_identity(folder / config.keys.identity, given_passphrase())
    own = identity.public_key().public_bytes_raw()
    if config.name not in read.keys:
        raise ConfigError(
            f"roster of federation '{read.federation}' names no site '{config.name}': let the "
            "operator build one with this site's public key"
        )
    if read.keys[config.name] != own:
        raise ConfigError(
            f"site '{config.name}' has an identity key with fingerprint {fingerprint(own)} and "
            f"the roster names {read.fingerprint(config.name)}: hand the operator identity.pub "
            "again, or restore the key"
        )


def _print(read: Roster, path: Path, as_json: bool) -> None:
    warnings = []
    if len(read.names) < LEAST_SITES:
        warnings.append(
            f"the roster names {counted(len(read.names), 'site')} and secure aggregation needs "
            f"{LEAST_SITES}: build it again when more have sent their key"
        )
    if as_json:
        print_json(
            {
                "roster": str(path),
                "federation": read.federation,
                "hash": read.hash.hex(),
                "sites": {name: read.fingerprint(name) for name in read.names},
                "warnings": warnings,
            }
        )
        return
    print(f"roster of federation '{read.federation}', {counted(len(read.names), 'site')}: {path}")
    print(f"hash  {read.hash.hex()}")
    for name in read.names:
        print(f"  {read.fingerprint(name)}  {name}")
    for warning in warnings:
        print(f"warning: {warning}")
