"""A Flower ``Grid`` in one process: the same ServerApp and ClientApp, without any network.

For tests, sweeps and ``simulate``. It follows Flower 1.42: a ClientApp that raises gives an
``Error`` with code 2, an unavailable node one with code 5. Two private names of Flower are used
(``Metadata._message_id`` and ``TaskIdentity``); a test compares this grid with the real one.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["LocalGrid"]

_FIRST_NODE_ID = 100


class LocalGrid(Grid):
    """Run a ClientApp's handlers directly, one after the other.

    Parameters
    ----------
    client_app : ClientApp
        The app that every node runs.
    node_configs : Mapping[str, Mapping[str, bool | int | float | str]]
        Node configuration by registered name; a node keeps its own ``Context``.
    run_id : int
        Flower's run id.
    run_config : Mapping, optional
        The run's configuration, as every ``Context`` shows it.
    """

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: Mapping[str, Mapping[str, bool | int | float | str]],
        *,
        run_id: int = 1,
        run_config: Mapping[str, bool | int | float | str] | None = None,
    ) -> None:
        self._client_app = client_app
        self._run = Run.create_empty(run_id=run_id)
        self._names = {_FIRST_NODE_ID + index: name for index, name in enumerate(node_configs)}
        self._contexts = {
            node_id: Context(
                run_id=run_id,
                node_id=node_id,
                node_config=dict(node_configs[name]),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for node_id, name in self._names.items()
        }
        self._disconnected: set[int] = set()
        self._numbers = itertools.count()
        self._replies: dict[str, Message] = {}
        self._identify()

    def disconnect(self, name: str) -> None:
        """Make a node unavailable, as a SuperNode that stopped."""
        self._disconnected.add(self._node_id(name))

    def reconnect(self, name: str) -> None:
        """Make a node available again, with the same node id and state."""
        self._disconnected.discard(self._node_id(name))

    def set_run(self, run: Run) -> None:
        """Set the run (see :class:`flwr.serverapp.Grid`)."""
        self._run = run
        self._identify()

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message (see :class:`flwr.serverapp.Grid`)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the available nodes."""
        return [node_id for node_id in self._contexts if node_id not in self._disconnected]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Available nodes with their registered names."""
        return [
            NodeInfo(node_id=node_id, name=self._names[node_id], status="online")
            for node_id in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the ClientApp on each message now; :meth:`pull_messages` gives the replies."""
        ids: list[str] = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            if node_id not in self._contexts:
                continue  # as Flower's in-memory grid: no id for a node it does not know
            message_id = f"local-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = message_id
            self._replies[message_id] = self._answer(message, node_id)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Give each reply once."""
        return [self._replies.pop(each) for each in list(message_ids) if each in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push and pull in one call; nothing here is ever late."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message, node_id: int) -> Message:
        if node_id in self._disconnected:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
        try:
            # A copy, as if it had travelled: neither side can change the other's arrays.
            return self._client_app(copy.deepcopy(message), self._contexts[node_id])
        except Exception as error:
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    def _node_id(self, name: str) -> int:
        return {name: node_id for node_id, name in self._names.items()}[name]

    def _identify(self) -> None:
        # What Flower's own ServerApp process sets before the app starts; Message reads it.
        TaskIdentity.run_id = self._run.run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        TaskIdentity.task_id = 1
