"""A hospital's rooms as the compose file makes them: who reaches the data, the socket, the network.

The worker and what stands in for the executor run in namespaces of their own, with the mounts,
users and networks of docker/compose.yaml. There the executor's container is as good as code that
a hostile bundle brought: it asks what it likes.
"""

import os

import pytest

from fedmvc_client.frames import FrameStatus
from fedmvc_server.synthesize import synthesize_cardio
from tests.docker.federation_from_compose import ComposeFederation
from tests.docker.namespaces import unavailable

pytestmark = [
    pytest.mark.drill("code-in-executor"),
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "namespaces work here"),
]

WORKER, EXECUTOR, SUPERNODE = "st-anna-worker", "st-anna-executor", "st-anna-supernode"
SOCKET = "/run/fedmvc/worker.sock"
ASK = f"""
from configs.errors import TransportError
from fedmvc_client.relay import SocketRelay
try:
    SocketRelay("{SOCKET}").ask(b"no request", 60.0)
    print("answered")
except TransportError as error:
    print(error.public_message)
"""
FORBIDDEN = FrameStatus.FORBIDDEN.sentence
CLOSED = "the worker of this site is not running or its socket is closed to this user"


@pytest.fixture(scope="module")
def rooms():
    with ComposeFederation("namespaces") as federation:
        services = federation.compose["services"]
        synthesize_cardio(federation.volume("federation", "sites"), sites=3, n=600, partition="iid")
        site = federation.volume("federation", "sites/st-anna")
        for folder in ("plans", "results"):
            (site / folder).mkdir()
        federation.volume("federation", "kits/st-anna/state/flower").mkdir(parents=True)
        for path in [federation.volume("federation"), *federation.volume("federation").rglob("*")]:
            os.chown(path, 10001, 10001)
        for name in (WORKER, EXECUTOR, SUPERNODE):
            services[name]["depends_on"] = {}
        for name in (EXECUTOR, SUPERNODE):
            services[name].update(entrypoint=["sleep"], command=["infinity"])
            del services[name]["healthcheck"]
        federation.up(WORKER, EXECUTOR, SUPERNODE)
        yield federation


def run(rooms, name, *argv, user=None):
    service = rooms.compose["services"][name]
    own = service["user"]
    service["user"] = user or own
    try:
        return rooms.probe(name, *argv)
    finally:
        service["user"] = own


def test_the_worker_answers_its_executor(rooms):
    # a refusal in words, which is a message
    assert run(rooms, EXECUTOR, "python", "-c", ASK).stdout == "answered\n"


@pytest.mark.parametrize(
    ("user", "answer"),
    [
        # of the group, and another user: the worker asks the kernel who it is
        ("10003:10002", FORBIDDEN),
        ("10003:10003", CLOSED),
        ("10002:10003", CLOSED),
    ],
)
def test_the_worker_answers_nobody_else(rooms, user, answer):
    assert run(rooms, EXECUTOR, "python", "-c", ASK, user=user).stdout.startswith(answer)


def test_the_executor_cannot_put_another_socket_there(rooms):
    done = run(rooms, EXECUTOR, "rm", "-f", SOCKET)

    assert done.returncode != 0
    assert "Read-only file system" in done.stderr
    assert "x" not in run(rooms, EXECUTOR, "sh", "-c", f"touch {SOCKET}x; ls /run/fedmvc").stdout


def test_the_executor_finds_nothing_of_the_site(rooms, seen):
    site = rooms.volume("federation", "sites/st-anna")
    patient = (site / "ecg.csv").read_text().splitlines()[1]
    folders = "/federation /home /mnt /opt /run /site /srv /tmp /var"
    search = f"grep -rlsF -e '{patient}' {folders} --exclude-dir=site-packages"
    look = f"ls -d /site {rooms.folder} /proc/[0-9]*/root/site"

    assert run(rooms, EXECUTOR, "sh", "-c", search).stdout == ""
    assert run(rooms, EXECUTOR, "sh", "-c", look).stdout == ""
    # and the same would find it where it is
    assert run(rooms, WORKER, "sh", "-c", search).stdout == "/site/ecg.csv\n"
    assert "/site\n" in run(rooms, WORKER, "sh", "-c", look).stdout
    seen("in its container no row of a patient, no folder of the site")


def test_the_executor_has_no_way_out(rooms, seen):
    routes = run(rooms, EXECUTOR, "ip", "route").stdout.splitlines()
    proxy = rooms.engine.addresses["proxy", "outside"]
    knock = f"import socket; socket.create_connection(('{proxy}', 8443), 5)"

    assert len(routes) == 1
    assert "scope link" in routes[0]
    assert "unreachable" in run(rooms, EXECUTOR, "python", "-c", knock).stderr
    # the SuperNode has one: nobody listens there, and it is told so by that network
    assert "unreachable" not in run(rooms, SUPERNODE, "python", "-c", knock).stderr
    seen("no route out")


def test_the_worker_has_no_network_and_its_data_are_read_only(rooms):
    names = run(rooms, WORKER, "ls", "/sys/class/net", "/proc/sys/net/ipv4/conf").stdout.split()
    script = "for f in /site/x /site/ecg.csv /site/site.toml; do : >> $f; done"
    refused = run(rooms, WORKER, "bash", "-c", script)

    assert set(names) - {"all", "default", "/proc/sys/net/ipv4/conf:"} <= {"lo"}
    assert "lo" in names
    assert refused.stderr.count("Read-only file system") == 3
    for folder in ("state", "plans", "results"):
        assert run(rooms, WORKER, "touch", f"/site/{folder}/written").returncode == 0


def test_the_supernode_sees_neither_data_nor_socket(rooms):
    found = run(rooms, SUPERNODE, "sh", "-c", "ls /site /run; find /site -name '*.csv'")

    assert found.stdout.split() == ["/site:", "state"]
    assert run(rooms, SUPERNODE, "python", "-c", ASK).stdout.startswith(CLOSED)


@pytest.mark.parametrize("name", [WORKER, EXECUTOR, SUPERNODE])
def test_nobody_has_a_capability(rooms, name):
    status = run(rooms, name, "cat", "/proc/self/status").stdout
    rights = dict(line.split(":\t") for line in status.splitlines() if "\t" in line)

    assert {rights[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert rights["NoNewPrivs"] == "1"
    assert rights["Uid"].split() == [rooms.compose["services"][name]["user"].split(":")[0]] * 4
