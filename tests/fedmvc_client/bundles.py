"""App bundles, good and bad."""

import hashlib
import io
import warnings
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.cli.build import build_fab_from_disk

from fedmvc_server.flower_cli import write_app_folder

PROJECT, LISTING = "pyproject.toml", ".info/CONTENT"


@cache
def ours():
    """Return the bundle that `fedmvc-server run` sends, as Flower builds it."""
    with TemporaryDirectory() as folder:
        return built(write_app_folder(Path(folder)))


def built(folder):
    """Return what Flower builds of an app folder."""
    with warnings.catch_warnings():
        # Flower 1.42 uses a name that pathspec deprecates
        warnings.filterwarnings("ignore", "GitWildMatchPattern", DeprecationWarning)
        return build_fab_from_disk(folder)


def project():
    """Return the text of our bundle's pyproject.toml."""
    with zipfile.ZipFile(io.BytesIO(ours())) as archive:
        return archive.read(PROJECT).decode()


def listing(*files):
    """Return Flower's listing of (name, body) pairs."""
    return "\n".join(f"{n},{hashlib.sha256(b).hexdigest()},{len(b) * 8}" for n, b in files) + "\n"


def packed(*members, packing=zipfile.ZIP_STORED):
    """Return a zip of (name or ZipInfo, bytes) pairs, as they are."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", packing) as archive:
        for name, body in members:
            archive.writestr(name, body)
    return buffer.getvalue()


def bundle(text=None, *extra):
    """Return a bundle with this pyproject.toml and further members, all in its listing."""
    body = (project() if text is None else text).encode()
    files = [(PROJECT, body), *extra]
    return packed(*files, (LISTING, listing(*files)))
