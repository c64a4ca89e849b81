"""A ServerApp that exchanges echoes and writes what it saw.

Of the plan it takes ``max_rounds`` and ``quorum.min_sites``; for 13 clusters it raises.
"""

import json
import time
from pathlib import Path

from flwr.serverapp import ServerApp

from strategies.exchange import wait_for_nodes
from strategies.messages import from_bytes
from tests.transport.asking import exchange

app = ServerApp()


@app.main()
def main(grid, context):
    plan = json.loads(context.run_config["plan"])
    if plan["n_clusters"] == 13:
        raise RuntimeError("patient 4711 weighs 82 kg")
    names = wait_for_nodes(grid, plan["quorum"]["min_sites"], 60.0)
    out = Path(context.run_config["out"])
    out.mkdir(parents=True, exist_ok=True)
    result = {"status": "completed", "exit_code": 0, "seconds": [], "answers": [], "failures": {}}
    with (out / "rounds.csv").open("w") as rounds:
        print("round,seconds", file=rounds, flush=True)
        for number in range(plan["max_rounds"]):
            began = time.monotonic()
            requests = {node: names[node].encode() for node in names}
            replies, failed = exchange(grid, requests, "train.round", 60.0, group_id=str(number))
            seconds = time.monotonic() - began
            result["seconds"].append(seconds)
            result["answers"].append({names[k]: _show(reply) for k, reply in replies.items()})
            result["failures"].update({names[k]: reason for k, reason in failed.items()})
            print(f"{number},{seconds:.3f}", file=rounds, flush=True)
    partial = out / "result.json.partial"
    partial.write_text(json.dumps(result))
    partial.rename(out / "result.json")


def _show(reply):
    if reply.startswith(b"echo:"):
        return reply.decode()
    return repr(from_bytes(reply))  # a refusal by the ClientApp
