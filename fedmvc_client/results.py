"""Files that a run leaves at a site: memberships and models. They never leave it again."""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.errors import ConfigError, ProtocolError
from fedmvc_client.outcomes import Outcome, SelectionResult, SiteResult, VerticalResult
from strategies.messages import ClusterModel, FeatureSelection

__all__ = ["membership_table", "read_model", "read_results", "read_selection", "write_results"]

#: What reading a damaged file can end in.
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile, zlib.error)


def membership_table(result: Outcome) -> pa.Table:
    """Return columns ``id``, ``u_1`` .. ``u_c`` and ``label`` (0 .. c-1, as in the model).

    A vertical run adds ``aligned_vote`` and ``view_label``; there -1 is a row without a label.
    """
    columns: dict[str, object] = {"id": list(result.ids)}
    membership = result.membership
    for k in range(membership.shape[1]):
        columns[f"u_{k + 1}"] = membership[:, k]
    columns["label"] = result.labels
    if isinstance(result, VerticalResult):
        columns["aligned_vote"] = result.vote_labels
        columns["view_label"] = result.view_labels
    return pa.table(columns)


def write_results(
    folder: Path, result: Outcome, certificate: Mapping[str, object] | None = None
) -> None:
    """Write ``membership.parquet``, and the models, selection and certificate where there are any.

    Everything is written beside the target first and moved there whole, so an interrupted write
    leaves the earlier results, or none.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".writing-") as name:
        draft = Path(name) / "results"
        draft.mkdir(mode=0o750)  # of patients: not for every user of the machine
        pq.write_table(membership_table(result), draft / "membership.parquet")
        if isinstance(result, SiteResult):
            np.savez(draft / "personal_model.npz", **result.personal_model.arrays())  # type: ignore[arg-type]
            np.savez(draft / "model.npz", **result.model.arrays())  # type: ignore[arg-type]
            (draft / "model.json").write_text(
                json.dumps(result.model.description(), indent=2) + "\n", encoding="utf-8"
            )
        if isinstance(result, SelectionResult):
            for file, body in result.selection.files().items():
                (draft / file).write_bytes(body)
        if certificate is not None:
            text = json.dumps(certificate, indent=2) + "\n"
            (draft / "certificate.json").write_text(text, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        draft.rename(folder)


def read_model(description: Path, arrays: Path) -> ClusterModel:
    """Read a model from its ``model.json`` and ``model.npz``.

    Raises
    ------
    ConfigError
        Where a file is missing, damaged, or does not belong to the other.
    """
    try:
        fields = json.loads(description.read_text(encoding="utf-8"))
        with arrays.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return ClusterModel.from_parts({key: stored[key] for key in stored.files}, fields)
    except _UNREADABLE as error:
        raise ConfigError(
            f"{description.name} and {arrays.name} are not a readable model: give the model.json "
            "of a finished run with its model.npz beside it",
            local_detail=f"{description}: {error}",
        ) from error


def read_selection(description: Path, arrays: Path) -> FeatureSelection:
    """Read a selection from its ``selection.json`` and ``selection.npz``.

    Raises
    ------
    ConfigError
        Where a file is missing, damaged, or does not belong to the other.
    """
    try:
        fields = json.loads(description.read_text(encoding="utf-8"))
        with arrays.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return FeatureSelection.from_parts({key: stored[key] for key in stored.files}, fields)
    except (*_UNREADABLE, ProtocolError) as error:
        raise ConfigError(
            f"{description.name} and {arrays.name} are not a readable selection: give the "
            "selection.json of a finished run with its selection.npz beside it",
            local_detail=f"{description}: {error}",
        ) from error


def read_results(folder: Path) -> Outcome | None:
    """Read what `write_results` wrote; None where the folder is not there."""
    if not folder.is_dir():
        return None
    table = pq.read_table(folder / "membership.parquet")
    columns = [name for name in table.column_names if name.startswith("u_")]
    ids = tuple(table["id"].to_pylist())
    if "view_label" in table.column_names:
        return VerticalResult(
            ids,
            table["label"].to_numpy(),
            table["aligned_vote"].to_numpy(),
            table["view_label"].to_numpy(),
            len(columns),
        )
    if (folder / "selection.json").is_file():
        selection = read_selection(folder / "selection.json", folder / "selection.npz")
        return SelectionResult(ids, table["label"].to_numpy(), selection, len(columns))
    return SiteResult(
        ids,
        table["label"].to_numpy(),
        np.stack([table[name].to_numpy() for name in columns], axis=1),
        read_model(folder / "model.json", folder / "model.npz"),
        read_model(folder / "model.json", folder / "personal_model.npz"),
    )
