"""The transport over real Flower processes: TLS, node keys, a worker process at each site."""

import json

import pytest

from configs.errors import InternalError, TransportError
from fedmvc_server.deployment import check_reachable, run_deployed
from tests.network.federation import NAMES

pytestmark = [pytest.mark.network, pytest.mark.slow]

ECHO = {"server_app": "tests.network.echo_server:app"}


def _plan(folder, *, max_rounds=1, n_clusters=2):
    path = folder / "plan.toml"
    path.write_text(
        f'method = "fedhk-mvfc"\nmax_rounds = {max_rounds}\nn_clusters = {n_clusters}\n'
        "[quorum]\nmin_sites = 3\n"
    )
    return path


@pytest.mark.usefixtures("rarely_asked")
def test_every_site_answers_under_its_registered_name(echoing, tmp_path):
    plan, out, rounds = _plan(tmp_path, max_rounds=2), tmp_path / "out", []

    code = run_deployed(plan, echoing.address, echoing.ca, out, on_progress=rounds.append, **ECHO)

    assert code == 0
    result = json.loads((out / "result.json").read_text())
    assert result["failures"] == {}
    assert result["answers"] == [{name: f"echo:{name}:{name}" for name in NAMES}] * 2
    assert [row["round"] for row in rounds] == ["0", "1"]
    print(f"\nseconds a round: {', '.join(f'{s:.1f}' for s in result['seconds'])}")


@pytest.mark.usefixtures("rarely_asked")
def test_a_site_without_its_worker_sends_a_typed_refusal(echoing, tmp_path):
    plan, out = _plan(tmp_path), tmp_path / "out"
    echoing.kill("worker-riverside")
    try:
        code = run_deployed(plan, echoing.address, echoing.ca, out, **ECHO)
    finally:
        echoing.start_worker("riverside")

    assert code == 0
    answers = json.loads((out / "result.json").read_text())["answers"][0]
    assert answers["st-anna"] == "echo:st-anna:st-anna"
    assert answers["riverside"].startswith(
        'Refusal(code=7, message="the worker of this site is not'
    )
    assert str(echoing.sockets) not in answers["riverside"]
    assert str(echoing.sockets) in echoing.log("executor-riverside")  # at the site it is logged


def test_a_server_app_that_raises_is_an_internal_error(echoing, tmp_path):
    plan = _plan(tmp_path, n_clusters=13)

    with pytest.raises(InternalError, match="failed before it left a result") as caught:
        run_deployed(plan, echoing.address, echoing.ca, tmp_path / "out", **ECHO)

    assert "4711" not in caught.value.public_message


def test_the_superlink_is_reached_with_its_ca_only(echoing, tmp_path):
    from tests.network.credentials import write_credentials

    write_credentials(tmp_path, ())
    host, port = check_reachable(echoing.address, echoing.ca)

    assert (host, port) == ("127.0.0.1", echoing.port)
    with pytest.raises(TransportError, match="did not sign"):
        check_reachable(echoing.address, tmp_path / "ca.crt")
