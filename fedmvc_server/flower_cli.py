"""Flower's own command line, run with a home and an app folder that are ours and temporary.

The app folder holds one ``pyproject.toml`` that names modules of the installed packages, so that no
code travels. The user's ``~/.flwr`` is neither read nor written.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import InternalError, TransportError
from configs.processes import flower_environment
from configs.version import own_version

__all__ = ["CLIENT_APP", "SERVER_APP", "FlowerCli", "RunStatus", "write_app_folder"]

SERVER_APP = "fedmvc_server.app:app"
CLIENT_APP = "fedmvc_client.app:app"
_CONNECTION = "fedmvc"
_CONFIG_KEYS = ("plan", "data", "out", "poll", "resume")
_COMMAND_TIMEOUT = 60.0


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands, in Flower's words.

    Parameters
    ----------
    phase : str
        ``pending``, ``starting``, ``running`` or ``finished``.
    outcome : str
        ``completed``, ``failed`` or ``stopped`` once finished, else "".
    details : str
        Flower's explanation; it may hold an exception's text, so it stays on this machine.
    """

    phase: str
    outcome: str
    details: str


def write_app_folder(
    folder: Path, *, server_app: str = SERVER_APP, client_app: str = CLIENT_APP
) -> Path:
    """Write an app folder that names installed modules and carries no code.

    Parameters
    ----------
    folder : Path
        An existing folder.
    server_app, client_app : str
        ``module:attribute`` of the two apps.

    Returns
    -------
    Path
        The folder.
    """
    values = dict.fromkeys(_CONFIG_KEYS, "")
    config = "\n".join(f"{key} = {_toml(value)}" for key, value in values.items())
    (folder / "pyproject.toml").write_text(
        f"""[project]
name = "fedmvc"
version = {_toml(own_version())}
description = "Federated multi-view clustering"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedmvc"
fab-include = ["pyproject.toml"]

[tool.flwr.app.components]
serverapp = {_toml(server_app)}
clientapp = {_toml(client_app)}

[tool.flwr.app.config]
{config}
""",
        encoding="utf-8",
    )
    return folder


class FlowerCli:
    """Commands against one SuperLink.

    Parameters
    ----------
    home : Path
        An existing folder for Flower's configuration.
    address : str
        ``HOST:PORT``.
    ca : Path or None
        The CA certificate; None for a SuperLink without TLS.
    """

    def __init__(self, home: Path, address: str, ca: Path | None) -> None:
        self._home = home
        self._address = address
        trust = "insecure = true" if ca is None else f"root-certificates = {_toml(str(ca))}"
        (home / "config.toml").write_text(
            f"[superlink]\ndefault = {_toml(_CONNECTION)}\n\n"
            f"[superlink.{_CONNECTION}]\naddress = {_toml(address)}\n{trust}\n",
            encoding="utf-8",
        )

    def environment(self) -> dict[str, str]:
        """Environment of a command: our home, no usage report, no proxy to the SuperLink."""
        return flower_environment(self._home, [self._address.rpartition(":")[0].strip("[]")])

    def run(self, app_folder: Path, run_config: Mapping[str, str]) -> int:
        """Submit a run (``flwr run``); return Flower's run id."""
        # As a file: on the command line Flower 1.42 splits a value at an escaped quote.
        config = self._home / "run-config.toml"
        lines = [f"{key} = {_toml(value)}\n" for key, value in run_config.items()]
        config.write_text("".join(lines), encoding="utf-8")
        answer = self._command("run", str(app_folder), _CONNECTION, "--run-config", str(config))
        try:
            return int(answer["run-id"])
        except (KeyError, ValueError, TypeError) as error:
            raise InternalError(
                "Flower took the run but gave no run id: check that flwr 1.42 is installed",
                local_detail=json.dumps(answer),
            ) from error

    def status(self, run_id: int) -> RunStatus:
        """Ask where a run stands (``flwr ls``)."""
        answer = self._command("ls", _CONNECTION, "--run-id", str(run_id))
        try:
            found = next(run for run in answer["runs"] if str(run["run-id"]) == str(run_id))
            phase, _, outcome = str(found["status"]).partition(":")
            return RunStatus(phase, outcome, str(found.get("status-details") or ""))
        except (KeyError, StopIteration) as error:
            raise InternalError(
                "Flower does not list the run that it took: check that flwr 1.42 is installed",
                local_detail=json.dumps(answer),
            ) from error

    def stop(self, run_id: int) -> None:
        """End a run (``flwr stop``)."""
        self._command("stop", str(run_id), _CONNECTION)

    def register(self, public_key: Path, name: str) -> str:
        """Register a SuperNode's key under a name; return its node id.

        Runs ``flwr supernode register``.
        """
        answer = self._command(
            "supernode", "register", str(public_key), _CONNECTION, "--name", name
        )
        return str(answer["node-id"])

    def unregister(self, node_id: str) -> None:
        """End a SuperNode's registration; its key is never taken again.

        Runs ``flwr supernode unregister``.
        """
        self._command("supernode", "unregister", node_id, _CONNECTION)

    def nodes(self) -> dict[str, str]:
        """List the registered SuperNodes: status by node id.

        Runs ``flwr supernode ls``, which does not tell the names.
        """
        answer = self._command("supernode", "ls", _CONNECTION)
        return {str(node["node-id"]): str(node["status"]) for node in answer["nodes"]}

    def _command(self, *arguments: str) -> dict[str, Any]:
        # In a session of its own: Ctrl-C is for us, who then stop the run.
        try:
            done = subprocess.run(
                [sys.executable, "-m", "flwr.cli.app", *arguments, "--format", "json"],
                env=self.environment(),
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise TransportError(
                f"the SuperLink at {self._address} did not answer in {_COMMAND_TIMEOUT:g} s: "
                "check that it is running"
            ) from error
        answer = _parse(done.stdout)
        if done.returncode != 0 or not answer.get("success", False):
            raise TransportError(
                f"the SuperLink at {self._address} did not accept 'flwr {arguments[0]}': "
                "check its address, its CA certificate and its log",
                local_detail=" ".join(str(answer.get("error-message", "")).split())
                or done.stdout + done.stderr,
            )
        return answer


def _parse(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _toml(value: str) -> str:
    # A JSON string is a TOML basic string, except that TOML has no escaped surrogate pairs.
    return json.dumps(value, ensure_ascii=False)
