import pytest

from fedmvc_client.cli import app as client
from fedmvc_server.cli import app as server
from tests.cli.commands import call, run_script

COMMANDS = [
    (server, (), ["synthesize", "simulate", "run"]),
    (server, ("synthesize",), ["cardio", "vertical"]),
    (
        server,
        ("synthesize", "vertical"),
        ["--out", "--sites", "--n", "--clusters", "--overlap", "--seed", "--json", "linkage.key"],
    ),
    (
        server,
        ("synthesize", "cardio"),
        ["--out", "--sites", "--n", "--partition", "--alpha", "--seed", "--json", "truth.csv"],
    ),
    (
        server,
        ("simulate",),
        ["PLAN", "--data", "--backend", "inprocess", "ray", "--out", "--truth", "--json"],
    ),
    (
        server,
        ("run",),
        ["PLAN", "Plan file", "--server", "HOST:PORT", "--ca", "--out", "--fast-poll", "--json"],
    ),
    (
        server,
        ("start",),
        ["--kit", "--host", "127.0.0.1", "--port", "--behind-proxy", "/v1/fleet/", "SIGTERM"],
    ),
    (
        server,
        ("rehearse",),
        [
            *("PLAN", "Plan file", "--out", "--data", "plans approve", "--sites", "--port"),
            *("--fast", "--keep", "--json", "130"),
        ],
    ),
    (server, ("status",), ["--server", "--ca", "--kit", "--out", "--json", "HOST:PORT"]),
    (server, ("doctor",), ["--kit", "--server", "--json", "worst"]),
    (client, (), ["check", "worker", "predict", "keygen", "plans", "join", "doctor"]),
    (
        client,
        ("join",),
        ["--site", "--server", "--runtime", "127.0.0.1:9094", "--socket", "--fast-poll", "7", "8"],
    ),
    (client, ("doctor",), ["--site", "--json", "schema", "worst"]),
    (client, ("check",), ["PLAN", "Plan file", "--site", "--json"]),
    (client, ("worker",), ["--socket", "--site", "SuperNode"]),
    (
        client,
        ("executor",),
        ["--socket", "--runtime", "HOST:PORT", "--warm", "--fast-poll", "SHA-256", "no way out"],
    ),
    (client, ("predict",), ["--model", "--data", "--out", ".csv", ".parquet", "--site", "--json"]),
    (client, ("keygen",), ["--linkage", "--out", "--site", "--json", "tensor-fmvc", "never"]),
    (client, ("plans",), ["list", "show", "approve", "reject"]),
    (client, ("plans", "list"), ["--site", "--json", "used up", "expired"]),
    (client, ("plans", "show"), ["PLAN", "id of a plan", "--site", "--json", "learns"]),
    (
        client,
        ("plans", "approve"),
        ["PLAN", "id of a plan", "--runs", "--days", "--site", "--json"],
    ),
    (client, ("plans", "reject"), ["PLAN", "id of a plan", "--site", "--json", "cannot go on"]),
    (client, ("budget",), ["show", "verify", "separate"]),
    (client, ("budget", "show"), ["--site", "--json", "policy.epsilon_budget"]),
    (client, ("budget", "verify"), ["--certificate", "--site", "--json", "Exit code 4"]),
    (client, ("budget", "separate"), ["FIRST", "SECOND", "Name of a cohort", "--yes", "--json"]),
    (client, ("log", "verify"), ["--certificate", "--site", "--json", "Exit code 4"]),
    (client, ("abort",), ["RUN_ID", "Id of a running run", "--site", "--json", "forfeited"]),
    (server, ("roster",), ["build", "check"]),
    (server, ("roster", "build"), ["--federation", "NAME=PUBLIC_KEY", "--keys", "--out", "--json"]),
    (server, ("roster", "check"), ["FILE", "Roster file", "--site", "--json", "fingerprint"]),
]


@pytest.mark.parametrize(("app", "command", "words"), COMMANDS)
def test_help_names_every_argument(app, command, words):
    ended = call(app, *command, "--help")

    assert ended.code == 0
    assert ended.err == ""
    assert [word for word in words if word not in ended.words] == []


@pytest.mark.parametrize("name", ["fedmvc-server", "fedmvc-client"])
def test_installed_script_teaches(name):
    ended = run_script(name, "--help")

    assert ended.code == 0
    assert ended.err == ""
    assert f"Usage: {name} [OPTIONS] COMMAND" in ended.out


@pytest.mark.parametrize(
    ("app", "arguments", "words"),
    [
        (server, ("simulat",), "No such command 'simulat'"),
        (server, ("synthesize", "iris"), "No such command 'iris'"),
        (server, ("simulate", "--dat", "x"), "No such option '--dat'"),
        (server, ("simulate",), "Missing argument 'PLAN'"),
        (server, ("simulate", "plan.toml"), "Missing option '--data'"),
        (server, ("simulate", "p", "--data", "d", "--backend", "rai"), "'inprocess', 'ray'"),
        (server, ("synthesize", "cardio", "--out", "x", "--n", "0"), "0 is not in the range"),
        (server, ("synthesize", "cardio", "--out", "x", "--sites", "two"), "'two' is not a valid"),
        (client, ("joyn",), "No such command 'joyn'"),
        (client, ("predict", "--model", "m"), "Missing option '--data'"),
        (client, ("worker",), "Missing option '--socket'"),
    ],
)
def test_wrong_usage_is_said_in_words(app, arguments, words):
    ended = call(app, *arguments)

    assert ended.code == 2
    assert ended.out == ""
    assert words in ended.words
    assert "Traceback" not in ended.err


def test_script_exits_with_the_code_of_wrong_usage():
    ended = run_script("fedmvc-client", "chek")

    assert ended.code == 2
    assert ended.out == ""
    assert "No such command 'chek'" in ended.err
