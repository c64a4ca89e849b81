"""What `status` makes of a SuperLink's answer and of a run's own files."""

import json
from datetime import UTC, datetime

import pytest
from flwr.proto.node_pb2 import NodeInfo

from configs import flower_version
from configs.errors import ConfigError, ProtocolError
from fedmvc_server import status as statuses
from fedmvc_server.control import Node, RunNow, Seen, _node, look
from tests.transport.kits import answering, make_kits

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
PROGRESS = {
    "run_id": "r-1",
    "phase": "round",
    "round": 7,
    "asked": ["riverside", "st-anna"],
    "waiting_for": ["riverside"],
    "since": "2026-03-01T11:59:30+00:00",
    "updated_at": "2026-03-01T11:59:40+00:00",
}


def info(status, online_in_s, **times):
    return NodeInfo(
        node_id=7,
        name="st-anna",
        status=status,
        registered_at="2026-02-01T00:00:00+00:00",
        online_until=NOW.timestamp() + online_in_s,
        heartbeat_interval=30.0,
        **times,
    )


def test_the_age_of_a_heartbeat_comes_from_until_when_the_superlink_waits():
    activated = "2026-03-01T11:00:00+00:00"

    found = _node(info("online", 48.0, last_activated_at=activated), NOW)

    assert found == Node("7", "st-anna", "online", 12.0, activated)


def test_an_offline_node_counts_from_when_it_was_called_so():
    ended = "2026-03-01T11:55:00+00:00"

    found = _node(info("offline", -300.0, last_deactivated_at=ended), NOW)

    assert (found.heartbeat_age_s, found.since) == (300.0, ended)


def test_a_node_that_never_connected_has_no_age():
    found = _node(NodeInfo(node_id=7, name="a", status="registered", registered_at="2026"), NOW)

    assert (found.heartbeat_age_s, found.since) == (None, "2026")


@pytest.fixture
def seen(monkeypatch):
    answer = Seen(
        NOW.isoformat(),
        (
            Node("1", "st-anna", "unregistered", None, "2026-02-01T00:00:00+00:00"),
            Node("2", "st-anna", "online", 12.0, "2026-03-01T11:00:00+00:00"),
            Node("3", "gone", "unregistered", None, "2026-02-01T00:00:00+00:00"),
        ),
        (RunNow("42", "running", "2026-03-01T11:00:00+00:00"),),
    )
    monkeypatch.setattr(statuses, "look", lambda server, ca: answer)


@pytest.mark.usefixtures("seen")
def test_sites_by_name_with_the_newest_key_and_the_missing_ones(tmp_path):
    kits = make_kits(tmp_path / "kits")

    found = statuses.status("here:1", kits / "server" / "ca.crt", kit=kits / "server")

    assert {site.name: site.status for site in found.sites} == {
        "gone": "revoked",
        "riverside": "not registered",
        "st-anna": "online",
    }
    assert statuses.as_text(found).splitlines() == [
        "SuperLink at here:1, 3 sites",
        "  gone       revoked                                 since 2026-02-01 00:00:00 UTC",
        "  riverside  not registered",
        "  st-anna    online          heard 12 s ago          since 2026-03-01 11:00:00 UTC",
        "run 42 of Flower's: running, submitted 2026-03-01 11:00:00 UTC",
    ]


@pytest.mark.parametrize("ids", ["123", "132", "213", "231", "312", "321"])
def test_of_two_keys_of_a_site_the_one_on_record_counts(monkeypatch, tmp_path, ids):
    """A rotation that was cut off may leave another."""
    kits = make_kits(tmp_path / "kits")
    record = {"node_id": "2", "public_key_sha256": "SHA256:x", "registered_at": "2026-03-01"}
    (kits / "server" / "nodes.json").write_text(json.dumps({"st-anna": record}))
    states = {"1": "unregistered", "2": "online", "3": "registered"}
    nodes = tuple(Node(number, "st-anna", states[number], None, None) for number in ids)
    monkeypatch.setattr(statuses, "look", lambda server, ca: Seen(NOW.isoformat(), nodes, ()))

    found = statuses.status("here:1", kits / "server" / "ca.crt", kit=kits / "server")

    assert [(s.name, s.node_id, s.status) for s in found.sites if s.name == "st-anna"] == [
        ("st-anna", "2", "online")
    ]


def test_another_release_of_flower_is_one_sentence(monkeypatch, tmp_path):
    """Its inner names are used, which another release may not have."""
    monkeypatch.setattr(flower_version, "installed", lambda distribution: "1.41.0")

    with pytest.raises(ProtocolError, match=r"flwr 1\.41\.0 is installed and fedmvc needs"):
        look("127.0.0.1:1", tmp_path / "ca.crt")


def test_a_proxy_that_is_none_is_a_setting_and_no_defect(monkeypatch, tmp_path):
    """Flower's client reads the settings of a proxy that it does not use."""
    kits = make_kits(tmp_path / "kits")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")

    with (
        answering(kits / "server") as server,
        pytest.raises(ConfigError, match=r"settings of this environment \(ALL_PROXY, .*SOCKS"),
    ):
        look(server, kits / "server" / "ca.crt")


@pytest.mark.usefixtures("seen")
def test_a_runs_progress_says_whom_it_waits_for(tmp_path):
    (tmp_path / "progress.json").write_text(json.dumps(PROGRESS))

    found = statuses.status("here:1", tmp_path, out=tmp_path)

    assert statuses.as_dict(found)["progress"] == PROGRESS
    assert statuses.as_text(found).splitlines()[-1] == (
        "run r-1: round, round 7, waiting for riverside since 2026-03-01 11:59:30 UTC"
    )


def test_a_run_that_has_ended_says_how(tmp_path):
    (tmp_path / "progress.json").write_text(json.dumps(PROGRESS))
    result = {
        "run_id": "r-1",
        "status": "stopped",
        "exit_code": 6,
        "stop_reason": "lost",
        "rounds": 8,
    }
    (tmp_path / "result.json").write_text(json.dumps(result))

    found = statuses.read_progress(tmp_path)

    assert (found["phase"], found["round"], found["waiting_for"]) == ("ended", 8, [])
    assert found["result"] == {"status": "stopped", "exit_code": 6, "stop_reason": "lost"}
    assert statuses._progress(found) == "run r-1: stopped after 8 rounds (exit code 6): lost"


def test_the_result_of_an_earlier_run_is_not_this_ones(tmp_path):
    (tmp_path / "progress.json").write_text(json.dumps(PROGRESS))
    (tmp_path / "result.json").write_text('{"run_id": "r-0", "status": "completed"}')

    assert statuses.read_progress(tmp_path) == PROGRESS


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no folder of this machine"):
        statuses.read_progress(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"has no 'progress\.json'"):
        statuses.read_progress(tmp_path)
