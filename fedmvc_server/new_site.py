"""One more site for a federation that was provisioned: its kit, or nothing at all."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from configs.endpoint import read_certificate
from configs.errors import ConfigError
from configs.federation import FederationConfig
from fedmvc_server.kit_folders import refuse_taken, whole_or_nothing
from fedmvc_server.kits import public_key_file, write_site_kit
from fedmvc_server.node_keys import NodeKey
from fedmvc_server.server_kit import NODES_FILE, alone, load_server_kit, read_nodes
from privacy.key_files import replace_file

__all__ = ["SiteAdded", "add_site"]


@dataclass(frozen=True)
class SiteAdded:
    """What was made for one more site.

    Attributes
    ----------
    federation : FederationConfig
        With the new site.
    kit : Path
        The site's kit.
    compose : bool
        Whether it has a compose file.
    """

    federation: FederationConfig
    kit: Path
    compose: bool


def add_site(kit: Path, site: str, kits: Path | None = None) -> SiteAdded:
    """Make the kit of one more site, and let the server's kit know it.

    The federation's file in the server's kit is replaced last: until then the site is unknown, and
    what was written for it is removed where anything fails. No other kit is touched, and the
    authority's key is not needed: it signs no site.

    Parameters
    ----------
    kit : Path
        The server's kit.
    site : str
        The new site's name.
    kits : Path, optional
        Folder of the sites' kits; by default the one that the server's kit is in.

    Returns
    -------
    SiteAdded

    Raises
    ------
    ConfigError
        If `kit` is no server kit, the federation or its record has the site, the name does not fit,
        or a folder is taken or cannot be written.
    """
    load_server_kit(kit)  # says what is wrong with a folder that is no kit
    with alone(kit):
        federation = load_server_kit(kit).with_site(site)
        if site in read_nodes(kit):
            raise ConfigError(
                f"{NODES_FILE} of the server kit has a node key of an earlier site '{site}': give "
                "the new site another name"
            )
        home, way_out = (kits or kit.absolute().parent) / site, "name another folder with --kits"
        refuse_taken(home, way_out)
        authority = read_certificate(kit / "ca.crt", "CA certificate")
        node, public = NodeKey(), public_key_file(kit, site)
        with whole_or_nothing(home, way_out) as folder:
            compose = write_site_kit(folder, site, federation, authority, node, with_identity=False)
        try:
            replace_file(public, node.public, "public key", mode=0o644)
            body = federation.dumps().encode()
            replace_file(kit / "federation.toml", body, "federation file", mode=0o644)
        except BaseException:
            public.unlink(missing_ok=True)
            shutil.rmtree(home, ignore_errors=True)
            raise
    return SiteAdded(federation, home, compose)
