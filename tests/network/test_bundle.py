"""No code travels, and code that slipped in all the same finds nothing."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from configs.plan import RunPlan
from fedmvc_client.relay import SocketRelay
from fedmvc_server.flower_cli import write_app_folder
from fedmvc_server.synthesize import synthesize_cardio
from privacy.audit import AuditLog
from strategies.messages import HelloRequest, Refusal, from_bytes, to_bytes
from tests.fedmvc_client.bundles import built
from tests.network.federation import CLIENT, NAMES, ROOT

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.drill]

NOBODY = 65534
PLAN = """
method = "fedhk-mvfc"
profile = "paper"
n_clusters = 4
max_rounds = 2
[quorum]
min_sites = 3
timeout_s = 200
"""


def refusals(site):
    log = AuditLog(site / "state" / "audit.jsonl")
    return [entry.facts for entry in log.entries() if entry.event == "bundle refused"]


@pytest.mark.drill("bundle-with-code")
def test_a_bundle_with_code_is_refused_at_every_site_before_anything_of_it_is_used(
    federation, tmp_path, seen
):
    """At one site Python starts for the message, at the others it is forked."""
    data, plan, out = tmp_path / "data", tmp_path / "plan.toml", tmp_path / "out"
    app, ran = tmp_path / "app", tmp_path / "ran"
    synthesize_cardio(data, sites=3, n=600, partition="iid")
    federation.serve_folders(data)
    plan.write_text(PLAN)
    app.mkdir()
    write_app_folder(app)
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace('["pyproject.toml"]', '["*.toml", "*.py"]'))
    (app / "fedmvc_evil.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    expected = hashlib.sha256(built(app)).hexdigest()

    run_id = federation.cli.run(
        app, {"plan": RunPlan.load(plan).canonical(), "data": "", "out": str(out)}
    )
    deadline = time.monotonic() + 300
    while not (out / "result.json").exists():
        assert time.monotonic() < deadline, federation.cli.status(run_id)
        time.sleep(0.5)

    result = json.loads((out / "result.json").read_text())
    assert result["status"] == "failed"
    assert result["exit_code"] == 6
    assert "could not load its ClientApp" in json.dumps(result["dropped"])
    for name in NAMES:
        (facts,) = refusals(data / name)
        assert (facts["sha256"], facts["code"]) == (expected, 4)
        assert "carries code ('fedmvc_evil.py')" in facts["sentence"]
        assert facts["sentence"] in federation.log(f"executor-{name}")
        left = {path.name for path in federation.home(f"executor-{name}").rglob("*")}
        assert left <= {"source"}  # a random id that Flower draws for reports, which are off
        assert not (federation.home(f"node-{name}") / "apps").exists()
    assert not ran.exists()
    seen(f"refused at {len(NAMES)} sites with code 4, one audit line each; run ended with 6")


@pytest.fixture
def short():
    """Make a short folder that others may enter, as a socket's path must be."""
    folder = Path(tempfile.mkdtemp(prefix="fm-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def site(short):
    """Write a site of its own user, which asks for approvals."""
    synthesize_cardio(short / "sites", sites=1, n=600)
    (site,) = (path for path in (short / "sites").iterdir() if path.is_dir())
    config = site / "site.toml"
    config.write_text(config.read_text().replace('approval = "auto"', 'approval = "required"'))
    assert 'approval = "required"' in config.read_text()
    site.chmod(0o700)
    return site


@pytest.fixture
def worker(short, site):
    """Start the site's worker, which also answers the executor's user."""
    folder = short / "run"
    folder.mkdir()
    os.chown(folder, -1, NOBODY)
    folder.chmod(0o2750)  # the socket gets the folder's group
    command = [sys.executable, "-c", CLIENT, "worker", "--socket", str(folder / "w.sock")]
    process = subprocess.Popen(
        [*command, "--site", str(site), "--allow-uid", str(NOBODY)], cwd=ROOT
    )
    try:
        deadline = time.monotonic() + 120
        while not (folder / "w.sock").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, folder / "w.sock"
    finally:
        process.terminate()
        process.wait(20)


def namespaces(hidden):
    """Return the command of a place with no network, no other process and no folder `hidden`."""
    inside = f'mount -t tmpfs none {hidden} && exec "$@"'
    kinds = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private"]
    command = ["unshare", *kinds, "sh", "-c", inside, "sh"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    return command if tried.returncode == 0 else []


@pytest.mark.drill("code-in-executor")
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become the executor's user")
@pytest.mark.parametrize("contained", [False, True], ids=["user", "namespaces"])
def test_code_inside_the_executor_reaches_nothing_but_typed_refusals(
    short, site, worker, contained, seen
):
    process, path = worker
    prefix = namespaces(short / "sites") if contained else []
    if contained and not prefix:
        pytest.skip("this machine gives no namespaces: separate users are checked alone")
    plan = RunPlan.parse({"method": "fedhk-mvfc", "n_clusters": 4})
    control = short / "readable"
    control.write_text("found")
    control.chmod(0o644)
    state = site / "state"
    state.mkdir(exist_ok=True)
    secrets = [site, site / "ecg.csv", site / "site.toml", state / "audit.jsonl", state]
    ours = [f"/proc/{process.pid}/{name}" for name in ("mem", "environ", "root/etc/passwd")]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        given = {
            "socket": str(path),
            "plan": plan.fields(),
            "files": [*map(str, secrets), *ours],
            "control": str(control),
            "port": port,
        }
        probe = [sys.executable, "-m", "tests.network.slipped_in", str(NOBODY), json.dumps(given)]
        done = subprocess.run(
            [*prefix, *probe],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    refused = {"PermissionError", "FileNotFoundError", "ProcessLookupError"}
    assert {name for name, got in found["files"].items() if got not in refused} == set()
    assert bytes.fromhex(found["control"]) == b"found"  # it can read, and finds nothing to read
    assert (found["network"] == "connected") is not contained
    assert (found["garbage"], found["too large"], found["cut short"]) == (3, 2, None)
    hello, prepare, pickled, report = found["asked"]
    assert hello.startswith("Refusal(code=4")
    assert "approve" in hello
    assert prepare.startswith("Refusal(code=8")
    assert pickled.startswith("Refusal(code=8")
    assert report.startswith("BundleRefused(")
    line = (site / "ecg.csv").read_text().splitlines()[1]
    for cell in (*line.split(","), str(site)):
        assert cell not in hello + prepare + pickled
    # all of it stands in the audit log, and the worker goes on
    events = [entry.event for entry in AuditLog(state / "audit.jsonl").entries()]
    assert events.count("request refused") == 3
    assert events.count("bundle refused") == 1
    again = HelloRequest("1" * 32, plan.plan_id, plan.canonical())
    assert isinstance(from_bytes(SocketRelay(path).ask(to_bytes(again), 60.0)), Refusal)
    seen(f"{len(given['files'])} files tried, none opened; 3 requests, 3 refusals")
