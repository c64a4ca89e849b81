"""Files a run leaves at the server: result, rounds, and the model or the selected features."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import ConfigError
from strategies.feature_selection import FeatureSelection
from strategies.model import ClusterModel
from strategies.run_state import RoundRecord

__all__ = [
    "FOLDER",
    "Unwritable",
    "prepare_folder",
    "read_result",
    "refuse_taken",
    "replace_file",
    "unwritable",
    "versions",
    "write_model",
    "write_result",
    "write_rounds",
    "write_selection",
]

#: Folder of an unfinished run's checkpoint, in its results folder.
FOLDER = "checkpoint"
_PACKAGES = ("fedmvc", "flwr", "numpy", "scipy", "scikit-learn", "torch")


class Unwritable(ConfigError):
    """The results folder takes nothing more; what was written before is whole."""


def unwritable(out: Path, error: OSError) -> Unwritable:
    """Return the one sentence for a results folder that cannot be written."""
    reason = error.strerror or type(error).__name__
    return Unwritable(
        f"results folder '{out.name}' cannot be written ({reason}): make room or name another; "
        "'fedmvc-server resume' goes on with a deployed run that had begun",
        local_detail=f"{out}: {error}",
    )


def refuse_taken(out: Path) -> None:
    """Refuse a results folder that already holds a run.

    A run that was refused before its first round left nothing else: it may be tried again.

    Raises
    ------
    ConfigError
    """
    path = out / "result.json"
    status, rounds = _ended(path)
    if (out / FOLDER).is_dir() and status != "completed":
        raise ConfigError(
            f"folder '{out.name}' holds a run that is not finished: go on with it by "
            "'fedmvc-server resume', or name another folder with --out",
            local_detail=str(out),
        )
    if path.exists() and (status, rounds) != ("failed", 0):
        raise ConfigError(
            f"folder '{out.name}' already holds the result of a run: name another with --out",
            local_detail=str(out),
        )


def _ended(path: Path) -> tuple[str, int]:
    """Return status and rounds of a ``result.json``; of one that cannot be read, nothing."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        return str(result["status"]), int(result["rounds"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", -1


def prepare_folder(out: Path) -> None:
    """Create the results folder; refuse one that already holds a run (see `refuse_taken`).

    Raises
    ------
    ConfigError
        Where a result is there already or the folder cannot be written.
    """
    refuse_taken(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"folder '{out.name}' cannot be written: name another with --out",
            local_detail=f"{out}: {error}",
        ) from error


def replace_file(path: Path, body: bytes, out: Path | None = None, *, mode: int = 0o666) -> None:
    """Write whole or not at all: to a draft beside the target, fsync, rename.

    Parameters
    ----------
    path : Path
    body : bytes
    out : Path, optional
        The results folder; by default that of the file.
    mode : int
        Who may read it, where it is new.

    Raises
    ------
    Unwritable
        Where it cannot be written; what was there before still is.
    """
    draft = path.with_name(path.name + ".part")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise unwritable(out or path.parent, error) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_result(out: Path) -> dict[str, Any]:
    """Read ``result.json`` of a results folder; empty where a run left none."""
    path = out / "result.json"
    if not path.is_file():
        return {}
    written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return written


def write_result(out: Path, result: dict[str, Any]) -> None:
    """Write ``result.json``; a number that is not finite becomes null."""
    body = json.dumps(_finite(result), indent=2, allow_nan=False) + "\n"
    replace_file(out / "result.json", body.encode())


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def write_model(out: Path, model: ClusterModel) -> None:
    """Write ``model.npz`` (no pickle) and ``model.json``."""
    buffer = io.BytesIO()
    np.savez(buffer, **model.arrays())  # type: ignore[arg-type]
    replace_file(out / "model.npz", buffer.getvalue())
    replace_file(out / "model.json", (json.dumps(model.description(), indent=2) + "\n").encode())


def write_selection(out: Path, selection: FeatureSelection) -> None:
    """Write ``features.csv``, ``selection.npz`` (no pickle) and ``selection.json``."""
    for name, body in selection.files().items():
        replace_file(out / name, body)


def write_rounds(out: Path, history: Iterable[RoundRecord]) -> None:
    """Write ``rounds.csv``: one row a round, lists joined by a blank."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = [
        "round",
        "objective",
        "view_weights",
        "site_weights",
        "bytes_up",
        "bytes_down",
        "seconds",
        "sites",
    ]
    writer.writerow(names)
    for record in history:
        writer.writerow(
            [
                record.round,
                "" if math.isnan(record.objective) else repr(record.objective),
                " ".join(f"{w:.6f}" for w in record.view_weights),
                " ".join(f"{site}={w:.6f}" for site, w in record.site_weights.items()),
                record.bytes_up,
                record.bytes_down,
                f"{record.seconds:.4f}",
                " ".join(record.sites),
            ]
        )
    replace_file(out / "rounds.csv", buffer.getvalue().encode())


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
