"""Folders of kits: their owner's alone, complete or not there, and never overwritten."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.errors import ConfigError
from privacy.key_files import sync_folder

__all__ = ["make_folder", "refuse_taken", "whole_or_nothing"]


def make_folder(path: Path) -> Path:
    """Make a folder that its owner alone may enter; one that is there is left as it is."""
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def refuse_taken(out: Path, way_out: str) -> None:
    """Refuse a folder to make that is a link, a file, or not empty.

    Raises
    ------
    ConfigError
        With the way out.
    """
    if not os.path.lexists(out):
        return
    try:
        empty = not any(out.iterdir())
    except OSError:
        empty = False
    if out.is_symlink() or not empty:
        raise ConfigError(
            f"'{out.name}' already exists and is no empty folder, and keys are never overwritten: "
            f"{way_out}",
            local_detail=str(out),
        )


@contextmanager
def whole_or_nothing(out: Path, way_out: str) -> Iterator[Path]:
    """Give a folder that becomes `out` when the block ends, and vanishes where it raises.

    Raises
    ------
    ConfigError
        If it cannot be written; with the way out.
    """
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))  # mode 0700
        try:
            yield draft
            os.rename(draft, out)  # fails where somebody filled `out` meanwhile
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_folder(out.parent)
    except OSError as error:
        raise ConfigError(
            f"folder '{out.name}' cannot be written: {error.strerror}; {way_out}",
            local_detail=f"{out}: {error}",
        ) from error
