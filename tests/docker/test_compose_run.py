"""One FedHK run on the federation of compose.yaml, its proxy before its server."""

import json

import pytest

from tests.docker.federation_from_compose import ComposeFederation
from tests.docker.namespaces import unavailable
from tests.docker.proxies import needs_nginx
from tests.network.runs import fedhk_plan

pytestmark = [
    pytest.mark.drill("proxy"),
    pytest.mark.network,
    pytest.mark.slow,
    needs_nginx,
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "namespaces work here"),
]

PLAN = fedhk_plan(max_rounds=3, min_sites=3, timeout_s=300, n_init=1)
SUPERNODE = "st-anna-supernode"
#: As a site would ask: over TLS, by the name that its kit has.
ASK = """
import ssl, sys, urllib.error, urllib.request
trust = ssl.create_default_context(cafile="/site/ca.crt")
for path in sys.argv[1:]:
    try:
        urllib.request.urlopen(
            urllib.request.Request(f"https://proxy:8443{path}", b"x"), timeout=20, context=trust
        )
        print(path, "was answered")
    except urllib.error.HTTPError as error:
        print(path, error.code)
"""
PATHS = (
    "/v1/control/start-run",
    "/v1/control/list-runs",
    "/v1/runtime/acquire-task",
    "/v1/runtime/list-apps-to-launch",
)


@pytest.fixture(scope="module")
def federation():
    with ComposeFederation("namespaces") as running:
        running.up()
        yield running


def test_a_run_through_the_proxy_completes(federation, seen):
    (federation.volume("federation", "results") / "plan.toml").write_text(PLAN)

    done = federation.once(
        "operator",
        *("fedmvc-server", "run", "/results/plan.toml", "--server", "localhost:8443"),
        *("--ca", "/kit/ca.crt", "--out", "/results/first"),
    )

    assert done.returncode == 0, done.stdout
    result = json.loads(
        (federation.volume("federation", "results") / "first" / "result.json").read_text()
    )
    assert (result["status"], result["rounds"]) == ("completed", 3)
    assert result["sites"] == ["charite-nord", "riverside", "st-anna"]
    seen(f"{len(federation.processes)} services; 3 sites, 3 rounds, completed")


def test_a_site_reaches_neither_control_nor_runtime(federation, seen):
    found = federation.probe(SUPERNODE, "python", "-c", ASK, *PATHS)

    assert found.returncode == 0, found.stderr
    codes = dict(line.split(" ", 1) for line in found.stdout.splitlines())
    assert set(codes) == set(PATHS)
    assert set(codes.values()) <= {"403", "404"}
    seen(f"{len(PATHS)} control and runtime paths: {', '.join(sorted(set(codes.values())))}")


def test_no_site_reaches_the_server_past_the_proxy(federation):
    knock = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
    (server,) = (
        address for (name, _), address in federation.engine.addresses.items() if name == "server"
    )

    for name in (SUPERNODE, "st-anna-executor"):
        assert federation.probe(name, "python", "-c", knock, server, "8443").returncode != 0
    # the proxy does
    assert federation.probe("proxy", "python", "-c", knock, server, "8443").returncode == 0


def test_a_worker_has_no_network(federation):
    found = federation.probe("st-anna-worker", "cat", "/proc/net/dev")

    devices = {line.split(":")[0].strip() for line in found.stdout.splitlines() if ":" in line}
    assert devices == {"lo"}
