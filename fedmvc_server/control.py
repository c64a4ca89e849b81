"""What a SuperLink says of its nodes and runs, by the Control API itself.

``flwr supernode ls`` tells neither a node's name nor when it was heard of last, so the API's own
client is used here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from configs.endpoint import reach, unusable
from configs.errors import ProtocolError, TransportError
from configs.flower_version import check_flower
from configs.processes import go_direct

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.proto.run_pb2 import Run

__all__ = ["Node", "RunNow", "Seen", "look"]

_PATIENCE = 2  # heartbeats that a SuperLink waits for before it calls a node offline
_OTHER_RELEASE = 1001  # Flower's code of a peer of another release
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Node:
    """A registered SuperNode.

    Parameters
    ----------
    node_id : str
        A number as text.
    name : str
        The site's name that it was registered under.
    status : str
        ``registered`` (never connected), ``online``, ``offline`` or ``unregistered`` (revoked).
    heartbeat_age_s : float or None
        Seconds since the SuperLink heard of it last, of an offline one since it counts as offline;
        None where it never connected.
    since : str or None
        When it became what it is, ISO time in UTC.
    """

    node_id: str
    name: str
    status: str
    heartbeat_age_s: float | None
    since: str | None


@dataclass(frozen=True)
class RunNow:
    """A run that is not finished.

    Parameters
    ----------
    flower_run_id : str
        Flower's id of it.
    status : str
        ``pending``, ``starting`` or ``running``.
    since : str or None
        When it was submitted, ISO time.
    """

    flower_run_id: str
    status: str
    since: str | None


@dataclass(frozen=True)
class Seen:
    """What a SuperLink says at one moment, by its own clock."""

    now: str
    nodes: tuple[Node, ...]
    runs: tuple[RunNow, ...]


def look(server: str, ca: Path) -> Seen:
    """Ask a SuperLink for its nodes and its runs.

    Parameters
    ----------
    server : str
        ``HOST:PORT`` of the SuperLink itself: a proxy does not let this through.
    ca : Path
        The CA certificate.

    Raises
    ------
    ConfigError
        If the address, the CA certificate or a proxy of this environment is unusable.
    TransportError
        If it does not answer, its certificate is not right, or something before it refuses.
    ProtocolError
        If it is of another release of flwr, or flwr of this machine is another than ours.
    """
    check_flower()  # before its inner names are used
    import httpx
    from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest
    from flwr.supercore.control import ControlHttpClient

    host = reach(server, ca, direct=True).host
    go_direct([host])
    try:
        client = ControlHttpClient.from_server_address(server, False, ca.read_bytes(), [_Release()])
    except (httpx.InvalidURL, ImportError, ValueError) as error:
        # it reads the settings of all proxies, whether it uses one or not
        raise unusable(error, server) from error
    with client:
        nodes = _ask(server, lambda: client.ListNodes(ListNodesRequest()))
        runs = _ask(server, lambda: client.ListRuns(ListRunsRequest()))
    now = datetime.fromisoformat(nodes.now)
    unfinished = [run for run in runs.run_dict.values() if run.status.status != "finished"]
    return Seen(
        nodes.now,
        tuple(_node(info, now) for info in nodes.nodes_info),
        tuple(_run(run) for run in sorted(unfinished, key=lambda run: run.pending_at)),
    )


class _Release:
    """Say which release of flwr asks, so that the answer is a refusal and no guess."""

    def intercept(self, context, call_next):
        from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

        metadata = RuntimeVersionMetadata.from_local_component("fedmvc-server status")
        context.request.headers.update(dict(metadata.as_metadata()))
        return call_next(context)


def _ask(server: str, call: Callable[[], _Answer]) -> _Answer:
    import httpx
    from flwr.supercore.error import FlowerError

    try:
        return call()
    except httpx.HTTPStatusError as error:
        refusal = FlowerError.from_json(error.response.text)
        if refusal is not None and refusal.code == _OTHER_RELEASE:
            raise ProtocolError(
                f"the SuperLink at {server} runs another release of flwr: install the same here",
                local_detail=refusal.message,
            ) from None
        code = error.response.status_code
        raise TransportError(
            f"the SuperLink at {server} does not tell its nodes (HTTP {code}): ask it itself, from "
            "a machine that reaches its control API, and not through the sites' proxy",
            local_detail=error.response.text[:500],
        ) from None
    except (httpx.HTTPError, RuntimeError) as error:
        raise TransportError(
            f"the SuperLink at {server} did not answer: check that 'fedmvc-server start' runs "
            "there",
            local_detail=str(error),
        ) from None


def _node(info: NodeInfo, now: datetime) -> Node:
    age = None
    if info.HasField("online_until") and info.status in ("online", "offline"):
        # what the SuperLink keeps is until when it waits: two heartbeats on, while a node is online
        waits = _PATIENCE * info.heartbeat_interval if info.status == "online" else 0.0
        age = round(max(0.0, now.timestamp() - (info.online_until - waits)), 1)
    since = {
        "online": info.last_activated_at,
        "offline": info.last_deactivated_at,
        "unregistered": info.unregistered_at,
    }.get(info.status, info.registered_at)
    return Node(str(info.node_id), info.name, info.status, age, since or None)


def _run(run: Run) -> RunNow:
    return RunNow(str(run.run_id), run.status.status, run.pending_at or None)
