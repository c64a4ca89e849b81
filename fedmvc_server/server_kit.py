"""The server's kit as `provision` made it, and its record of registered nodes, ``nodes.json``.

The record is ``{site: {"node_id", "public_key_sha256", "registered_at"}}``, and ``"revoked_at"``
where a site was shut out.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from configs.errors import ConfigError
from configs.federation import FederationConfig
from configs.tables import Table, parse_table
from privacy.key_files import replace_file

__all__ = ["NODES_FILE", "NodeRecord", "alone", "load_server_kit", "read_nodes", "write_nodes"]

#: The record in the server's kit.
NODES_FILE = "nodes.json"


class NodeRecord(Table):
    """What is known of one site's node key."""

    node_id: str = Field(pattern=r"^[0-9]{1,20}$", description="a number as text")
    public_key_sha256: str = Field(description="a fingerprint, 'SHA256:...'")
    registered_at: str = Field(description="a time")
    revoked_at: str | None = Field(None, description="a time")


def load_server_kit(kit: Path) -> FederationConfig:
    """Read the federation of a server's kit.

    Raises
    ------
    ConfigError
        If the folder is no such kit.
    """
    missing = [name for name in ("federation.toml", "ca.crt") if not (kit / name).is_file()]
    if missing:
        raise ConfigError(
            f"folder '{kit.absolute().name}' is no server kit (it has no {missing[0]}): give the "
            "folder 'server' that `fedmvc-server provision` made",
            local_detail=str(kit),
        )
    return FederationConfig.load(kit / "federation.toml")


def read_nodes(kit: Path) -> dict[str, NodeRecord]:
    """Read the record of a server's kit; empty where nothing was registered yet.

    Raises
    ------
    ConfigError
        If the file is damaged.
    """
    path = kit / NODES_FILE
    if not path.exists():
        return {}
    try:
        fields = json.loads(path.read_bytes())
        if not isinstance(fields, dict):
            raise ValueError("no object")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the record '{NODES_FILE}' of the server kit cannot be read as JSON: restore it from "
            "a copy",
            local_detail=f"{path}: {error}",
        ) from None
    return {
        name: parse_table(NodeRecord, value, f"{NODES_FILE}, site '{name[:64]}'")
        for name, value in fields.items()
    }


def write_nodes(kit: Path, nodes: Mapping[str, NodeRecord]) -> None:
    """Replace the record of a server's kit, whole.

    Raises
    ------
    ConfigError
        If it cannot be written.
    """
    body = {name: nodes[name].model_dump(exclude_none=True) for name in sorted(nodes)}
    text = json.dumps(body, indent=2) + "\n"
    replace_file(kit / NODES_FILE, text.encode(), "record of nodes", mode=0o644)


@contextmanager
def alone(kit: Path) -> Iterator[None]:
    """Hold a server's kit against another command that would change it.

    Raises
    ------
    ConfigError
        If one does so now.
    """
    handle = os.open(kit, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "another command is changing this server kit: wait until it has ended"
            ) from None
        yield
    finally:
        os.close(handle)
