"""Options that every command of ``fedmvc-client`` has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["JsonOption", "SiteOption"]

SiteOption = Annotated[Path, typer.Option("--site", help="The site's folder (with site.toml).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
