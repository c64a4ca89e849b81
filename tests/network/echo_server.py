"""A ServerApp that exchanges echoes and writes what it saw.

``plan`` is the number of rounds or "fail"; ``data`` the number of sites to wait for.
"""

import json
import time
from pathlib import Path

from flwr.serverapp import ServerApp

from strategies.exchange import exchange, wait_for_nodes

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    if config["plan"] == "fail":
        raise RuntimeError("server boom")
    started = time.time()
    names = wait_for_nodes(grid, int(config["data"]), 60.0)
    seconds, answers, failures = [], {}, {}
    for number in range(int(config["plan"])):
        began = time.monotonic()
        requests = {node: names[node].encode() for node in names}
        replies, failed = exchange(grid, requests, "train.round", 60.0, group_id=str(number))
        seconds.append(time.monotonic() - began)
        answers.update({names[node]: reply.decode() for node, reply in replies.items()})
        failures.update({names[node]: reason for node, reason in failed.items()})
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    result = {
        "status": "completed",
        "exit_code": 0,
        "stop_reason": "",
        "started": started,
        "seconds": seconds,
        "answers": answers,
        "failures": failures,
    }
    (out / "result.json").write_text(json.dumps(result))
