"""Files of keys and papers: written whole or not at all, and secrets for their owner only."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from pathlib import Path

from configs.errors import ConfigError

__all__ = [
    "KEY_BYTES",
    "make_secret",
    "own_secret",
    "read_private",
    "read_secret",
    "replace_file",
    "sync_folder",
    "write_new",
]

#: Length of a site's own symmetric keys.
KEY_BYTES = 32
#: No key file is longer.
_MOST_BYTES = 16_384


def write_new(path: Path, body: bytes, what: str, way_out: str, *, mode: int = 0o600) -> None:
    """Write a file that does not exist yet, durably; missing folders above it are made.

    Parameters
    ----------
    path : Path
        File to make.
    body : bytes
    what : str
        What the file is, for messages: ``"identity key"``.
    way_out : str
        What to do where the file is there already.
    mode : int, default 0o600
        Who may read it.

    Raises
    ------
    ConfigError
        If the file exists or cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # a temporary file has mode 0600 from its first moment
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=".draft-") as draft:
            draft.write(body)
            draft.flush()
            os.fchmod(draft.fileno(), mode)
            os.fsync(draft.fileno())
            os.link(draft.name, path)  # unlike a rename it fails where the name is taken
        sync_folder(path.parent)
    except OSError as error:
        fault = f"cannot be written: {error.strerror}"
        if isinstance(error, FileExistsError) and os.path.lexists(path):
            fault = f"already exists and is not overwritten: {way_out}"
        raise ConfigError(f"{what} '{path.name}' {fault}", local_detail=str(path)) from None


def replace_file(path: Path, body: bytes, what: str, *, mode: int = 0o600) -> None:
    """Write a file, or another in its place, durably and whole; missing folders are made.

    Parameters
    ----------
    path : Path
    body : bytes
    what : str
        What the file is, for messages.
    mode : int, default 0o600
        Who may read it.

    Raises
    ------
    ConfigError
        If it cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
        try:
            with open(handle, "wb") as file:
                file.write(body)
                file.flush()
                os.fchmod(handle, mode)
                os.fsync(handle)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(
            f"{what} '{path.name}' cannot be written: {error.strerror}", local_detail=str(path)
        ) from None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_private(path: Path, what: str, way_out: str) -> bytes:
    """Read a file that nobody but its owner may read.

    Parameters
    ----------
    path : Path
    what : str
        What the file is, for messages.
    way_out : str
        What to do where there is no such file.

    Returns
    -------
    bytes
        At most 16 KiB of it.

    Raises
    ------
    ConfigError
        If there is no such file, or other users may read it; with the way out.
    """
    path = Path(path)
    named, detail = f"{what} '{path.name}'", str(path)
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            body = file.read(_MOST_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"{named} does not exist: {way_out}", local_detail=detail) from None
    except OSError as error:
        raise ConfigError(
            f"{named} cannot be read: {error.strerror}", local_detail=detail
        ) from None
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(
            f"{named} is open to other users of this machine (mode {mode:04o}): run chmod 600 "
            "on it",
            local_detail=detail,
        )
    return body


def make_secret(path: Path, what: str, way_out: str) -> None:
    """Draw a symmetric key and write it as 64 hexadecimal digits, for its owner only.

    Parameters
    ----------
    path : Path
        File to make.
    what : str
        What the file is, for messages.
    way_out : str
        What to do where the file is there already.

    Raises
    ------
    ConfigError
        If the file exists or cannot be written.
    """
    write_new(path, secrets.token_hex(KEY_BYTES).encode() + b"\n", what, way_out)


def read_secret(path: Path, what: str, if_missing: str, if_damaged: str) -> bytes:
    """Read what `make_secret` wrote.

    Parameters
    ----------
    path : Path
    what : str
        What the file is, for messages.
    if_missing, if_damaged : str
        What to do then.

    Returns
    -------
    bytes
        32 bytes.

    Raises
    ------
    ConfigError
        If there is no such file, other users may read it, or it holds no key; with the way out.
    """
    body = read_private(path, what, if_missing)
    try:
        key = bytes.fromhex(body.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{what} '{Path(path).name}' is damaged (it is not {2 * KEY_BYTES} hexadecimal "
            f"digits): {if_damaged}",
            local_detail=str(path),
        )
    return key


def own_secret(path: Path, what: str, way_out: str) -> bytes:
    """Return a secret that never leaves this machine; the first call draws it.

    Parameters
    ----------
    path : Path
    what : str
        What the file is, for messages.
    way_out : str
        What to do where the file is damaged.

    Returns
    -------
    bytes
        32 bytes.

    Raises
    ------
    ConfigError
        If the file cannot be made, other users may read it, or it holds no key.
    """
    if not path.exists():
        try:
            make_secret(path, what, way_out)
        except ConfigError:
            if not path.exists():  # else another process was first, and its key counts
                raise
    return read_secret(path, what, way_out, way_out)
