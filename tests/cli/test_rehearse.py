"""What ``fedmvc-server rehearse`` refuses before it writes or starts anything."""

import shutil
import socket

import pytest

from fedmvc_server.cli import app as server
from tests.cli.commands import PLAN, call, edit_text, write_plan


@pytest.fixture
def refused(tmp_path):
    """Run the command to its refusal; nothing may be left of it."""

    def refuse(*arguments, plan=None, code=2):
        out = tmp_path / "out"
        ended = call(server, "rehearse", plan or write_plan(tmp_path), "--out", out, *arguments)
        assert ended.code == code
        assert not out.exists()
        return ended.sentence

    return refuse


def test_a_plan_that_is_not_there(refused, tmp_path):
    assert "'nowhere.toml'" in refused(plan=tmp_path / "nowhere.toml")


def test_a_folder_that_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").touch()

    ended = call(server, "rehearse", write_plan(tmp_path), "--out", tmp_path / "out")

    assert ended.code == 2
    assert "'out' already exists and is not an empty folder" in ended.sentence
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kept"]


def test_data_without_a_site(refused, tmp_path):
    (tmp_path / "empty").mkdir()

    assert "'empty' holds 0 site folders" in refused("--data", tmp_path / "empty")


def test_two_folders_of_one_name(refused, sites):
    shutil.copytree(sites / "st-anna", sites / "copy")

    assert "2 site folders are named 'st-anna'" in refused("--data", sites)


def test_a_site_that_is_named_as_a_folder_of_the_kits(refused, sites):
    edit_text(sites / "st-anna" / "site.toml", 'name = "st-anna"', 'name = "server"')

    assert "folder 'server' of the kits is the operator's own" in refused("--data", sites)


def test_data_with_a_number_of_synthetic_sites(refused, sites):
    assert "--sites asks for 4 synthetic ones" in refused("--data", sites, "--sites", 4)


def test_a_port_in_use(refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        assert f"cannot listen at 127.0.0.1:{port}" in refused("--port", port)


def test_fewer_sites_than_the_plan_asks_for(refused, tmp_path):
    plan = write_plan(tmp_path, f"{PLAN}[quorum]\nmin_sites = 2\n", name="two.toml")

    sentence = refused("--sites", 1, plan=plan, code=6)

    assert sentence.startswith("the federation has 1 sites but quorum.min_sites is 2")


def test_a_vertical_plan_without_data(refused, tmp_path):
    plan = write_plan(tmp_path, 'method = "tensor-fmvc"\nn_clusters = 3\n', name="vertical.toml")

    assert "fedmvc-server synthesize vertical" in refused(plan=plan)
