"""Which sites may connect: their node keys at the SuperLink, and our own record of it.

The record (`fedmvc_server.server_kit`) is written after each step, so that it never names a key
that the SuperLink does not know.
"""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from configs.errors import ConfigError, FedMVCError, TransportError
from configs.flower_version import check_flower
from fedmvc_server.deployment import check_reachable
from fedmvc_server.flower_cli import FlowerCli
from fedmvc_server.kit_folders import make_folder
from fedmvc_server.kits import NODE_KEY, NODE_PUBLIC, public_key_file
from fedmvc_server.node_keys import NodeKey, node_fingerprint
from fedmvc_server.server_kit import (
    NODES_FILE,
    NodeRecord,
    alone,
    load_server_kit,
    read_nodes,
    write_nodes,
)
from privacy.key_files import replace_file

__all__ = ["Registered", "Registry"]

_GONE = "unregistered"  # Flower's word for a node whose key is not taken any more


@dataclass
class Registered:
    """What `Registry.register` did: node ids of new sites, and who was left alone."""

    new: dict[str, str] = field(default_factory=dict)
    already: list[str] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)


class Registry:
    """The sites of one federation and their keys at its running SuperLink.

    Parameters
    ----------
    kit : Path
        The server's kit.
    server : str
        The SuperLink's ``HOST:PORT``, as this machine reaches it.

    Raises
    ------
    ConfigError
        If the folder is no server kit.
    """

    def __init__(self, kit: Path, server: str) -> None:
        self.kit = kit
        self.server = server
        self.federation = load_server_kit(kit)

    def register(self, only: str | None = None) -> Registered:
        """Register the node keys of the sites that are not registered yet.

        Parameters
        ----------
        only : str, optional
            This site alone.

        Returns
        -------
        Registered
            The node ids of those that were registered now, and which were left alone.

        Raises
        ------
        ConfigError
            If `only` is unknown or revoked, or a key file or the record is damaged.
        TransportError
            If the SuperLink cannot be reached or refuses.
        """
        if only is not None:
            self._check_known(only)
        done = Registered()
        with self._open() as (flower, nodes):
            status = flower.nodes()
            for site in self.federation.site_names if only is None else (only,):
                record = nodes.get(site)
                if record is not None and record.revoked_at is not None:
                    if only is not None:
                        raise ConfigError(
                            f"site '{site}' was revoked at {record.revoked_at} and its key is not "
                            f"taken again: `fedmvc-server rotate {site}` makes it another"
                        )
                    done.revoked.append(site)
                    continue
                public = public_key_file(self.kit, site)
                fingerprint = _fingerprint_of(public, site)
                if record is not None and status.get(record.node_id, _GONE) != _GONE:
                    if record.public_key_sha256 != fingerprint:
                        raise ConfigError(
                            f"site '{site}' is registered with key {record.public_key_sha256} and "
                            f"{public.name} holds {fingerprint}: put the first back, or revoke "
                            "the site and rotate its key"
                        )
                    done.already.append(site)
                    continue
                with self._added(flower, public, site) as node_id:
                    nodes[site] = _record(node_id, fingerprint)
                    write_nodes(self.kit, nodes)
                done.new[site] = node_id
        return done

    def rotate(self, site: str, kits: Path | None = None) -> tuple[NodeRecord, Path]:
        """Give a site a new node key and end its old one; a revoked site is let in again.

        The new key replaces the old one in the site's kit, which is made where it is gone.

        Parameters
        ----------
        site : str
        kits : Path, optional
            Folder of the sites' kits; by default the one that the server's kit is in.

        Returns
        -------
        record : NodeRecord
            Of the new key.
        path : Path
            The new key's file, to be handed to the site.

        Raises
        ------
        ConfigError
            If the site is unknown, or the kit cannot be written.
        TransportError
            If the SuperLink cannot be reached or refuses. Whatever is raised, the old key still
            counts, or the message says that the rotation must be repeated.
        """
        self._check_known(site)
        home = (kits or self.kit.absolute().parent) / site
        path, key = home / NODE_KEY, NodeKey()
        begun = False
        with self._open() as (flower, nodes):
            draft = path.with_name(f".{path.name}.new")
            try:
                # first, so that a full disk does not cost the site the key that it has
                make_folder(home)
                make_folder(path.parent)
                replace_file(draft, key.private, "node key")
                public = draft.with_suffix(".pub")
                replace_file(public, key.public, "public key", mode=0o644)
                with self._added(flower, public, site) as node_id:
                    old = nodes.get(site)
                    if old is not None and flower.nodes().get(old.node_id, _GONE) != _GONE:
                        begun = True  # also where no answer comes
                        flower.unregister(old.node_id)
                    begun = True
                    os.replace(draft, path)
                    os.replace(public, home / NODE_PUBLIC)
                    known = public_key_file(self.kit, site)
                    replace_file(known, key.public, "public key", mode=0o644)
                    nodes[site] = _record(node_id, node_fingerprint(key.public, "node key"))
                    write_nodes(self.kit, nodes)
            except (OSError, FedMVCError) as error:
                raise _rotation_failed(error, site, begun) from error
            finally:
                draft.unlink(missing_ok=True)
                draft.with_suffix(".pub").unlink(missing_ok=True)
        return nodes[site], path

    def revoke(self, site: str) -> NodeRecord:
        """Shut a site out: its key is not taken any more, now and after a restart.

        Parameters
        ----------
        site : str

        Returns
        -------
        NodeRecord
            With the time; one that was revoked before keeps its first.

        Raises
        ------
        ConfigError
            If the site is unknown or was never registered.
        TransportError
            If the SuperLink cannot be reached or refuses: the site is not shut out then.
        """
        self._check_known(site)
        with self._open() as (flower, nodes):
            record = nodes.get(site)
            if record is None:
                raise ConfigError(
                    f"site '{site}' was never registered, so there is no key to revoke: leave its "
                    "name out of `fedmvc-server register`"
                )
            if flower.nodes().get(record.node_id, _GONE) != _GONE:
                flower.unregister(record.node_id)
            if record.revoked_at is None:
                nodes[site] = record.model_copy(update={"revoked_at": _now()})
                write_nodes(self.kit, nodes)
            return nodes[site]

    def _check_known(self, site: str) -> None:
        known = self.federation.site_names
        if site not in known:
            raise ConfigError(
                f"federation '{self.federation.name}' has no site '{site[:64]}'; its sites: "
                f"{', '.join(known)}"
            )

    @contextmanager
    def _open(self) -> Iterator[tuple[FlowerCli, dict[str, NodeRecord]]]:
        """Reach the SuperLink and read the record, for this command alone."""
        ca = (self.kit / "ca.crt").absolute()
        check_flower()  # the names and answers of its commands are one release's
        with alone(self.kit), tempfile.TemporaryDirectory(prefix="fedmvc-flwr-") as home:
            nodes = read_nodes(self.kit)
            check_reachable(self.server, ca)
            yield FlowerCli(Path(home), self.server, ca), nodes

    @contextmanager
    def _added(self, flower: FlowerCli, public: Path, site: str) -> Iterator[str]:
        """Register a key; take it back where the block raises."""
        try:
            node_id = flower.register(public, site)
        except TransportError as error:
            if "already in use" not in error.local_detail:
                raise
            raise ConfigError(
                f"the SuperLink knows the key of site '{site}' already, and {NODES_FILE} does not "
                f"say so: `fedmvc-server rotate {site}` makes it another",
                local_detail=error.local_detail,
            ) from error
        try:
            yield node_id
        except BaseException:
            with suppress(FedMVCError):
                flower.unregister(node_id)
            raise


def _rotation_failed(error: OSError | FedMVCError, site: str, begun: bool) -> FedMVCError:
    """Say what a rotation failed of; where it had begun to end the old key, the way out."""
    again = (
        f"; the old key may not be taken any more: run 'fedmvc-server rotate {site}' again"
        if begun
        else ""
    )
    if isinstance(error, FedMVCError):
        return type(error)(error.public_message + again, local_detail=error.local_detail)
    return ConfigError(
        f"the kit of site '{site}' cannot be written: {error.strerror}; name another folder with "
        f"--kits{again}",
        local_detail=str(error),
    )


def _fingerprint_of(public: Path, site: str) -> str:
    what = f"the key '{public.name}' of site '{site}'"
    try:
        body = public.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{what} cannot be read: {error.strerror}", local_detail=str(public)
        ) from None
    return node_fingerprint(body, what)


def _record(node_id: str, fingerprint: str) -> NodeRecord:
    return NodeRecord(node_id=node_id, public_key_sha256=fingerprint, registered_at=_now())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
