"""What an app bundle (FAB) of a server may hold: one ``pyproject.toml`` and Flower's listing of it.

A bundle is a zip that the server sends with every run. Ours carries no code: it names modules that
the site has installed. Whatever else it holds is refused before anything is unpacked.
"""

from __future__ import annotations

import hashlib
import io
import stat
import tomllib
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from configs.errors import PolicyRefused, ProtocolError

__all__ = ["CLIENT_APP", "MAX_BUNDLE_BYTES", "MAX_FILE_BYTES", "SERVER_APPS", "check_bundle"]

CLIENT_APP = "fedmvc_client.app:app"
"""The one ClientApp that a site runs."""
SERVER_APPS = {"fedmvc_server.app:app"}
"""ServerApps that a bundle may name; a site runs none of them."""
MAX_BUNDLE_BYTES = 2**18
"""Largest bundle; ours has less than 1 KiB."""
MAX_FILE_BYTES = 2**16
"""Largest file of a bundle, unpacked."""

_PROJECT, _LISTING = "pyproject.toml", ".info/CONTENT"
_LONGEST_NAME = 60
_PYTHON = (".py", ".pyc", ".pyd", ".pyi", ".pyo", ".pyw", ".pth", ".so")
#: Ways of packing that need no more memory than the sizes above say.
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: What zipfile raises; an offset may be too large for this machine (OverflowError).
_UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, EOFError),
    *(ValueError, OverflowError, NotImplementedError),
)


def check_bundle(fab: bytes) -> None:
    """Refuse a bundle that is not exactly what `fedmvc-server run` sends.

    Parameters
    ----------
    fab : bytes
        The bundle as the SuperNode got it.

    Raises
    ------
    ProtocolError
        Code 8, what a peer said is malformed: no zip, too large, encrypted, a name twice or one
        that leads elsewhere, a link, a file larger than it may be, no listing that fits, no TOML.
    PolicyRefused
        Code 4, well formed and yet nothing that a site runs: a Python file, any file other than
        the two, or other components.
    """
    if len(fab) > MAX_BUNDLE_BYTES:
        raise ProtocolError(
            f"the app bundle has {len(fab)} bytes and at most {MAX_BUNDLE_BYTES} are taken: "
            "start the run with 'fedmvc-server run'"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as archive:
            members = archive.infolist()
            _check_members(members)
            files = {member.filename: _read(archive, member) for member in members}
    except _UNREADABLE as error:
        raise ProtocolError(
            "the app bundle is no zip that can be read: start the run with 'fedmvc-server run'",
            local_detail=str(error),
        ) from error
    _check_listing(files)
    _check_components(_project(files[_PROJECT]))


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    """Look at names, kinds and sizes; nothing is unpacked yet."""
    counts = Counter(member.filename for member in members)
    for member in members:
        name = _shown(member)
        if _leads_elsewhere(member):
            raise ProtocolError(
                f"the app bundle holds {name}, whose name leads out of its folder: find out who "
                "sent it"
            )
        if counts[member.filename] > 1:
            raise ProtocolError(
                f"the app bundle holds {name} {counts[member.filename]} times and once is enough: "
                "find out who sent it"
            )
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ProtocolError(
                f"the app bundle holds {name}, a link or device and no file: find out who sent it"
            )
        if member.flag_bits & 0x1:
            raise ProtocolError(
                f"the app bundle's {name} is encrypted, so nobody can look at it: send it in plain"
            )
        if member.filename.lower().endswith(_PYTHON):
            raise PolicyRefused(
                f"the app bundle carries code ({name}) and a site runs only what it installed: "
                "start the run with 'fedmvc-server run'"
            )
        if member.filename not in (_PROJECT, _LISTING):
            raise PolicyRefused(
                f"the app bundle holds {name} beside '{_PROJECT}' and Flower's listing, the two "
                "that a site takes: start the run with 'fedmvc-server run'"
            )
        if member.file_size > MAX_FILE_BYTES:
            raise ProtocolError(
                f"the app bundle's {name} has {member.file_size} bytes unpacked and at most "
                f"{MAX_FILE_BYTES} are taken: find out who sent it"
            )
        if member.compress_type not in _PACKINGS:
            raise ProtocolError(
                f"the app bundle's {name} is packed in way {member.compress_type}, which Flower "
                "does not use: build it with Flower"
            )
    for wanted in (_PROJECT, _LISTING):
        if wanted not in counts:
            raise ProtocolError(
                f"the app bundle lacks '{wanted}': start the run with 'fedmvc-server run'"
            )


def _leads_elsewhere(member: zipfile.ZipInfo) -> bool:
    # orig_filename: what stands in the archive, before zipfile cuts it at a NUL
    names = (member.filename, member.orig_filename)
    return any(
        name.startswith("/")
        or "\\" in name
        or "\0" in name
        or ":" in name
        or ".." in name.split("/")
        for name in names
    )


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Unpack one file; a size that the archive lied about ends the reading."""
    with archive.open(member) as file:
        body = file.read(MAX_FILE_BYTES + 1)
    if len(body) > MAX_FILE_BYTES:
        raise ProtocolError(
            f"the app bundle's {_shown(member)} has more than {MAX_FILE_BYTES} bytes unpacked: "
            "find out who sent it"
        )
    return body


def _check_listing(files: Mapping[str, bytes]) -> None:
    digest = hashlib.sha256(files[_PROJECT]).hexdigest()
    expected = f"{_PROJECT},{digest},{len(files[_PROJECT]) * 8}"
    if files[_LISTING].decode("utf-8", "replace").strip() != expected:
        raise ProtocolError(
            f"the app bundle's listing does not fit its '{_PROJECT}': it was changed after it was "
            "built"
        )


def _project(body: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(body.decode("utf-8"))
    # ValueError: no UTF-8, no TOML, or a number with more digits than Python reads
    except (ValueError, RecursionError) as error:
        raise ProtocolError(
            f"the app bundle's '{_PROJECT}' is no TOML: start the run with 'fedmvc-server run'",
            local_detail=str(error),
        ) from error


def _check_components(project: Mapping[str, Any]) -> None:
    found: Any = project
    for key in ("tool", "flwr", "app", "components"):
        found = found.get(key) if isinstance(found, dict) else None
    named = found if isinstance(found, dict) else {}
    unknown = sorted(set(named) - {"serverapp", "clientapp"})
    if unknown:
        raise PolicyRefused(
            f"the app bundle names a component {_cut(unknown[0])} beside serverapp and clientapp: "
            "start the run with 'fedmvc-server run'"
        )
    for kind, allowed in (("clientapp", {CLIENT_APP}), ("serverapp", SERVER_APPS)):
        name = _text(named.get(kind))
        if name not in allowed:
            raise PolicyRefused(
                f"the app bundle names {_cut(name)} as {kind} and a site takes "
                f"'{min(allowed)}' only: start the run with 'fedmvc-server run'"
            )


def _text(value: object) -> str:
    """Return a TOML value as text; its kind, where it is too long or too deep for that."""
    try:
        return str(value)
    except (ValueError, RecursionError):
        return type(value).__name__


def _shown(member: zipfile.ZipInfo) -> str:
    return _cut(member.orig_filename)


def _cut(name: str) -> str:
    """Return a name that a stranger chose, fit for one line of a log."""
    return ascii(name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}...")
