"""``fedmvc-server provision``, ``add``, ``renew``, ``register``, ``rotate``, ``revoke``: nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.console import print_json
from configs.federation import FederationConfig
from configs.values import counted

__all__ = ["provisioning"]

provisioning = typer.Typer()

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
SiteArgument = Annotated[str, typer.Argument(help="Name of a site, as in federation.toml.")]
KitOption = Annotated[Path, typer.Option(help="The server's kit: folder 'server' of the kits.")]
ServerOption = Annotated[
    str,
    typer.Option(help="Address of the running SuperLink, HOST:PORT, as this machine reaches it."),
]
KitsOption = Annotated[
    Path | None,
    typer.Option(help="Folder of the sites' kits; by default the one that --kit is in."),
]
DaysOption = Annotated[
    int, typer.Option(min=1, help="Days that the server's certificate is valid, at most 3650.")
]


@provisioning.command()
def provision(
    federation: Annotated[
        Path,
        typer.Argument(
            help="Federation file (TOML): name, [server] names, addresses, port; sites."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to make, with one kit a site.")],
    days: DaysOption = 365,
    with_identity_keys: Annotated[
        bool,
        typer.Option(
            "--with-identity-keys",
            help="For trials: also make the sites' identity keys and the roster. In earnest each "
            "site makes its own key (`fedmvc-client keygen`).",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the keys, certificates and start kits of a new federation.

    OUT/server goes to the SuperLink's machine; OUT/ca holds the authority's key, which belongs
    offline; OUT/SITE goes to that hospital, by a safe channel: it holds the key that lets it
    connect, and a README with the commands to run. Nothing is ever overwritten.
    """
    from fedmvc_server.provision import provision as make_kits

    read = FederationConfig.load(federation)
    made = make_kits(read, out, days=days, with_identity_keys=with_identity_keys)
    if as_json:
        print_json(
            {
                "out": str(out),
                "federation": read.name,
                "server": made.address,
                "sites": list(read.site_names),
                "certificate_expires": made.expires.isoformat(),
                "identity_keys": with_identity_keys,
                "compose": made.compose,
            }
        )
        return
    sites = counted(len(read.sites), "site")
    print(f"federation '{read.name}', server {made.address}, {sites}: {out}")
    print(f"  server  the SuperLink's machine; its certificate ends on {made.expires:%Y-%m-%d}")
    print("  ca      the authority's key: take it offline")
    for name in read.site_names:
        print(f"  {name}  that hospital, by a safe channel; README.md says what it runs")
    if not made.compose:
        print("no compose.yaml in the kits: this installation has no folder docker")
    if not with_identity_keys:
        print(
            "next: each hospital sends identity.pub (`fedmvc-client keygen`) for `fedmvc-server "
            "roster build`"
        )
    print(
        f"next: start the SuperLink, then fedmvc-server register --kit {out}/server --server "
        f"127.0.0.1:{read.server.own_port}"
    )


@provisioning.command()
def add(
    site: Annotated[str, typer.Argument(help="Name of the new site, as yet unknown.")],
    kit: KitOption,
    kits: KitsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a site to a federation: make its start kit and tell the server's kit about it.

    The kit is like those of `provision`, with a node key of its own; the other sites' kits and the
    authority's key are not touched or needed. federation.toml in the server's kit then names the
    site, and `register` lets it connect. Runs with secure aggregation need a new roster as well.
    """
    from fedmvc_server.new_site import add_site

    added = add_site(kit, site, kits)
    name, sites = added.federation.name, len(added.federation.sites)
    if as_json:
        print_json(
            {"federation": name, "site": site, "kit": str(added.kit), "compose": added.compose}
        )
        return
    print(f"federation '{name}' has {sites} sites now; the kit of '{site}': {added.kit}")
    if not added.compose:
        print("no compose.yaml in the kit: this installation has no folder docker")
    inside = " (in the operator's container localhost:8443)"  # the server there has 8443
    print(
        f"next: fedmvc-server register --kit {kit} --server 127.0.0.1:"
        f"{added.federation.server.own_port}{inside if added.federation.server.proxy else ''}, and "
        "hand the kit to the hospital by a safe channel"
    )
    print(
        "next: for runs with secure aggregation let it send identity.pub (`fedmvc-client keygen`), "
        f"build a new roster of all {sites} sites (`fedmvc-server roster build`) and hand that to "
        "every site"
    )


@provisioning.command()
def renew(
    kit: KitOption,
    ca: Annotated[Path, typer.Option(help="Folder with ca.key, from its offline place.")],
    days: DaysOption = 365,
    as_json: JsonOption = False,
) -> None:
    """Replace the server's certificate before it ends; the sites need nothing new.

    Start the SuperLink again afterwards. The names and addresses are those of federation.toml in
    the kit.
    """
    from fedmvc_server.provision import renew as certify
    from fedmvc_server.server_kit import load_server_kit

    expires = certify(load_server_kit(kit), kit, ca, days=days)
    if as_json:
        print_json({"kit": str(kit), "certificate_expires": expires.isoformat()})
    else:
        print(f"the server's certificate in {kit} ends on {expires:%Y-%m-%d}")
        print("next: start the SuperLink again")


@provisioning.command()
def register(
    kit: KitOption,
    server: ServerOption,
    site: Annotated[
        str | None, typer.Option(help="This site alone; by default all that are not registered.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Register the sites' node keys at the SuperLink, each under its site's name.

    A site is let in by its key alone and is known by the name registered here. What was registered
    stays as it is, and so does a revoked site. nodes.json in the kit keeps the record. Exit code 7
    where the SuperLink cannot be reached.
    """
    from fedmvc_server.registration import Registry

    registry = Registry(kit, server)
    done = registry.register(site)
    if as_json:
        print_json(
            {
                "server": server,
                "registered": done.new,
                "already": done.already,
                "revoked": done.revoked,
            }
        )
        return
    for name, node_id in done.new.items():
        print(f"registered site '{name}' as node {node_id}")
    for name in done.already:
        print(f"site '{name}' is registered already")
    for name in done.revoked:
        print(f"site '{name}' was revoked and stays out")


@provisioning.command()
def rotate(
    site: SiteArgument,
    kit: KitOption,
    server: ServerOption,
    kits: KitsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a site a new node key; its old one is not taken any more, from now on.

    For a key that was lost or seen by others, or to let a revoked site in again. The new key is
    written into the site's kit, which is made where it is gone: hand it over, then start the
    site's SuperNode again.
    """
    from fedmvc_server.registration import Registry

    record, path = Registry(kit, server).rotate(site, kits)
    if as_json:
        print_json(
            {
                "site": site,
                "node_id": record.node_id,
                "key": str(path),
                "public_key_sha256": record.public_key_sha256,
            }
        )
        return
    print(f"site '{site}' has a new node key, {record.public_key_sha256}: {path}")
    print(
        "next: hand the file to the site by a safe channel, where keys.node in its site.toml says "
        "with mode 600, and delete it here; the old key is not taken any more"
    )


@provisioning.command()
def revoke(
    site: SiteArgument, kit: KitOption, server: ServerOption, as_json: JsonOption = False
) -> None:
    """Shut a site out: its node key is not taken any more, from now on.

    A SuperNode that is connected is cut off as well, and its key can never be registered again;
    `rotate` gives the site another. A roster that names the site needs to be built anew.
    """
    from fedmvc_server.registration import Registry

    record = Registry(kit, server).revoke(site)
    if as_json:
        print_json({"site": site, "node_id": record.node_id, "revoked_at": record.revoked_at})
    else:
        print(f"site '{site}' is shut out since {record.revoked_at} (node {record.node_id})")
