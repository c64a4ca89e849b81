"""Apps of `benchmarks.deployed_round`: FedHK-MVFC with an empty exchange after each round."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid, ServerApp

from configs.plan import RunPlan
from fedmvc_client.app import app as client
from fedmvc_server.runner import new_run_id
from strategies.exchange import collect
from strategies.fedhk_mvfc import FedHKStrategy
from strategies.journal import Heard
from strategies.records import to_record
from strategies.run_state import Exchange

__all__ = ["client", "server"]

server = ServerApp()


@client.train("empty")
def empty(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Reply at once: what is left is Flower's own time."""
    return FlowerMessage(message.content, reply_to=message)


class Interleaved(FedHKStrategy):
    """Times each round, and an empty exchange right after it."""

    times: dict[str, list[float]]

    def _ask(self, grid: Grid, exchange: Exchange) -> Heard:
        began = time.perf_counter()
        heard = super()._ask(grid, exchange)
        if exchange.action != "round":
            return heard
        middle = time.perf_counter()
        timeout = self.plan.quorum.timeout_s
        messages = [
            FlowerMessage(to_record(b"empty"), node, "train.empty", ttl=timeout)
            for node in self._admission.nodes.values()
        ]
        replies, _ = collect(grid, messages, timeout)
        assert len(replies) == len(messages)
        self.times["round"].append(middle - began)
        self.times["empty"].append(time.perf_counter() - middle)
        return heard


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the plan and write the seconds of every exchange to ``OUT/times.json``."""
    strategy = Interleaved(RunPlan.parse(json.loads(str(context.run_config["plan"]))), new_run_id())
    strategy.times = {"round": [], "empty": []}
    strategy.start(grid)
    Path(str(context.run_config["out"]), "times.json").write_text(json.dumps(strategy.times))
