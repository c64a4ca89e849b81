"""What the process of a message does with a bundle, without a SuperNode."""

import hashlib
import importlib
import logging
import sys
from pathlib import Path

import pytest
from flwr.clientapp.client_app import LoadClientAppError

from fedmvc_client import clientapp
from fedmvc_client.app import app
from strategies.messages import BundleRefused, from_bytes
from tests.fedmvc_client.bundles import bundle, ours

TASK = ["--runtime-api-address", "127.0.0.1:9094", "--token", "ab"]


class Recorder:
    site = "st-anna"

    def __init__(self):
        self.asked = []

    def handle(self, body):
        self.asked.append(from_bytes(body))
        return body


@pytest.fixture
def flower(monkeypatch):
    """Give Flower's module; what `run` replaces in it is put back afterwards."""
    module = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    for name in clientapp.REPLACED:
        monkeypatch.setattr(module, name, getattr(module, name))
    module.run = []
    monkeypatch.setattr(module, "run_clientapp", lambda **given: module.run.append(given))
    monkeypatch.setattr(clientapp, "set_up_logging", lambda: None)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    return module


def test_a_bundle_is_read_and_the_installed_app_runs(flower, serve, tmp_path, monkeypatch):
    worker = Recorder()
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    before = list(sys.path)
    clientapp.run(str(serve(worker)), [*TASK, "--insecure", "--parent-pid", "7"])

    flower.install_from_fab(ours(), skip_prompt=True)
    load = flower.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)

    assert load("../../etc/x", "1", "0" * 64) is app  # whatever the server calls it
    assert flower.run == [
        {
            "runtime_api_address": "127.0.0.1:9094",
            "token": "ab",
            "insecure": True,
            "parent_pid": 7,
        }
    ]
    assert worker.asked == []
    assert not (tmp_path / "home").exists()
    assert sys.path == before


def test_a_refused_bundle_is_reported_and_leaves_nothing(
    flower, serve, tmp_path, monkeypatch, caplog
):
    worker, fab = Recorder(), bundle(None, ("evil.py", b"print('here')"))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    clientapp.run(str(serve(worker)), TASK)

    with pytest.raises(LoadClientAppError) as caught:
        flower.install_from_fab(fab, skip_prompt=True)

    (report,) = worker.asked
    assert report.sha256 == hashlib.sha256(fab).hexdigest()
    assert (type(report), report.code) == (BundleRefused, 4)
    assert "carries code ('evil.py')" in report.sentence
    assert report.sentence in caplog.text
    assert "evil" not in str(caught.value)  # what Flower may tell the server
    assert not (tmp_path / "home").exists()


def test_a_worker_that_is_away_changes_no_refusal(flower, folder, caplog):
    clientapp.run(str(Path(folder) / "none.sock"), TASK)

    with pytest.raises(LoadClientAppError):
        flower.install_from_fab(b"no zip", skip_prompt=True)

    assert "is no zip that can be read" in caplog.text
    assert "is not running" in caplog.text
