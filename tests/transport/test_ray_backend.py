"""Six sites on two Ray actors: each message reaches the one worker of its site."""

import functools
import os

import pytest

from configs.errors import QuorumLost
from fedmvc_client.app import app
from fedmvc_client.socket_server import serve_sites
from fedmvc_server.hosting import host_workers
from fedmvc_server.local_grid import LocalGrid
from fedmvc_server.ray_backend import run_in_ray
from strategies.exchange import wait_for_nodes
from tests.transport import sites
from tests.transport.asking import exchange

pytestmark = pytest.mark.slow


def test_six_sites_on_two_actors_keep_their_workers_and_their_state(capfd):
    rounds, unheard = [], []
    environment = dict(os.environ)

    def server_main(grid, context):
        make = functools.partial(sites.make_echoes, 6)
        with host_workers(serve_sites, make, context.run_id):
            nodes = wait_for_nodes(grid, 6, 60.0)
            for number in range(3):
                requests = {node: str(node).encode() for node in nodes}
                rounds.append(exchange(grid, requests, "train.round", 60.0, group_id=str(number)))
            unheard.append(
                exchange(grid, dict.fromkeys([*nodes, 999], b"x"), "train.unheard", 60.0)
            )
        raise QuorumLost("1 of at least 2 sites replied: start the other")

    # what the server raises comes out
    with pytest.raises(QuorumLost, match="1 of at least 2"):
        run_in_ray(server_main, app, 6, n_actors=2)

    for number, (replies, failures) in enumerate(rounds, start=1):
        assert failures == {}
        answers = {}
        for node, reply in replies.items():
            site, pid, asked, echoed = reply.decode().split(":")
            assert int(asked) == number
            assert int(echoed) == node
            answers[node] = (site, pid)
        assert {site for site, _ in answers.values()} == {f"site-{k}" for k in range(6)}
        assert len({pid for _, pid in answers.values()}) == 1
    # The in-process grid answers the same to an action that the app does not know, and to a node
    # that does not exist.
    local = LocalGrid(app, {f"site-{k}": {} for k in range(6)})
    expected = exchange(
        local, dict.fromkeys([*local.get_node_ids(), 999], b"x"), "train.unheard", 60.0
    )
    assert unheard[0][0] == expected[0] == {}
    assert list(unheard[0][1].values()) == list(expected[1].values())
    assert os.environ.get("PYTHONPATH") == environment.get("PYTHONPATH")
    assert "deprecated" not in capfd.readouterr().err
