"""The service commands from outside: what is refused, what is printed, how they end."""

import json
import shutil
import socket

import pytest

from fedmvc_client.cli import app as client
from fedmvc_server.cli import app as server
from tests.cli.commands import call, run_script
from tests.transport.kits import answering, make_kits


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return make_kits(tmp_path_factory.mktemp("kits") / "kits")


@pytest.fixture(scope="module")
def away(kits):
    """Give an address where nobody answers any more."""
    with answering(kits / "server") as address:
        pass
    return address


def fill(site):
    (site / "site.toml").write_text(f'name = "{site.name}"\n[data]\necg = "ecg.csv"\n')
    return site


def test_start_is_refused_where_others_reach_it(kits):
    ended = call(server, "start", "--kit", kits / "server", "--host", "0.0.0.0")

    assert ended.code == 2
    assert "'0.0.0.0', which other machines reach" in ended.sentence
    assert "--behind-proxy" in ended.sentence
    assert not (kits / "server" / "state" / "state.db").exists()


def test_the_folder_above_a_kit_is_named(kits):
    ended = call(server, "start", "--kit", kits)

    assert ended.code == 2
    assert ended.sentence == f"--kit is '{kits.name}', which holds kits and is none: give its " + (
        "folder 'server'"
    )


@pytest.mark.parametrize("command", ["start", "doctor"])
def test_a_kit_that_is_none(tmp_path, command):
    ended = call(server, command, "--kit", tmp_path / "nowhere")

    assert ended.code == 2
    assert ended.sentence.startswith("--kit is 'nowhere', which is no folder: make the kit with")


def test_start_names_what_the_kit_lacks(tmp_path):
    (tmp_path / "server").mkdir()

    ended = call(server, "start", "--kit", tmp_path / "server")

    assert ended.code == 2
    assert "server certificate 'server.pem' does not exist" in ended.sentence


def test_the_servers_doctor_prints_a_line_a_check(kits):
    ended = run_script("fedmvc-server", "doctor", "--kit", kits / "server")

    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert all(line.split()[0] in ("ok", "warning") for line in lines)
    assert any(line.startswith("ok       certificate     for ") for line in lines)


def test_a_doctors_exit_code_is_that_of_the_worst(kits, away):
    ended = call(server, "doctor", "--kit", kits / "server", "--server", away, "--json")

    found = json.loads(ended.out)
    assert (ended.code, ended.err) == (7, "")
    assert (found["ok"], found["exit_code"]) == (False, 7)
    assert found["checks"][-1]["check"] == "reachability"
    assert set(found["checks"][-1]) == {"check", "status", "finding", "code"}


def test_the_sites_doctor_speaks_json_too(kits):
    ended = call(client, "doctor", "--site", fill(kits / "st-anna"), "--json")

    found = {each["check"]: each["status"] for each in json.loads(ended.out)["checks"]}
    assert ended.code == 7
    assert found["node key"] == "ok"
    assert found["reachability"] == "problem"


def test_status_without_a_server(kits, away):
    ended = call(server, "status", "--server", away, "--ca", kits / "server" / "ca.crt")

    assert ended.code == 7
    assert f"the SuperLink at {away} does not answer" in ended.sentence


def test_status_of_a_server_with_another_ca(kits, tmp_path):
    others = make_kits(tmp_path / "others")
    with answering(kits / "server") as address:
        ended = call(server, "status", "--server", address, "--ca", others / "server" / "ca.crt")

    assert ended.code == 7
    assert "that this CA did not sign" in ended.sentence


def test_status_through_the_sites_proxy_says_why_not(kits):
    with answering(kits / "server", handler=lambda path: (403, b"forbidden")) as address:
        ended = call(server, "status", "--server", address, "--ca", kits / "server" / "ca.crt")

    assert ended.code == 7
    assert "does not tell its nodes (HTTP 403)" in ended.sentence


def test_status_of_a_folder_without_a_run(kits, away, tmp_path):
    arguments = ("--server", away, "--ca", kits / "server" / "ca.crt", "--out", tmp_path)

    ended = call(server, "status", *arguments, "--json")

    assert ended.code == 2
    assert json.loads(ended.out)["exit_code"] == 2


def test_join_without_a_kit(tmp_path):
    ended = call(client, "join", "--site", tmp_path)

    assert ended.code == 2
    assert "'site.toml' does not exist" in ended.sentence


def test_join_names_a_clock_that_is_off(kits):
    with answering(kits / "server", clock_s=-600) as address:
        ended = call(client, "join", "--site", fill(kits / "st-anna"), "--server", address)

    assert ended.code == 7
    assert f"clock is 600 s ahead of the server's at {address}" in ended.sentence


def test_join_refuses_an_address_that_is_none(kits):
    ended = call(client, "join", "--site", fill(kits / "st-anna"), "--server", "https://x")

    assert ended.code == 2
    assert "'https://x' is not HOST:PORT" in ended.sentence


@pytest.mark.parametrize("command", ["join", "doctor"])
def test_a_site_with_another_name_than_its_kit_is_told_both(kits, tmp_path, command):
    site = shutil.copytree(kits / "st-anna", tmp_path / "st-anna")
    (site / "site.toml").write_text('name = "anna"\n[data]\necg = "ecg.csv"\n')

    ended = call(client, command, "--site", site)

    said = ended.sentence if command == "join" else ended.out
    assert ended.code == (2 if command == "join" else 7)  # nobody answers the doctor either
    assert "site.toml calls this site 'anna', but the operator made this kit for site 'st-a" in said


def test_join_names_a_taken_port_before_flower_stumbles_over_it(kits):
    """Flower's SuperNode ended with a traceback there, printed above the sentence."""

    def activation(path):
        return 200, b""

    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        answering(kits / "server", handler=activation) as address,
    ):
        runtime = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run_script(
            *("fedmvc-client", "join", "--site", fill(kits / "st-anna")),
            *("--server", address, "--runtime", runtime),
        )

    assert ended.code == 2
    assert ended.err == (
        f"error: the SuperNode of site 'st-anna' cannot listen at {runtime} (Address already in "
        "use): give another --runtime to 'join' and to 'executor', or stop what listens there\n"
    )
