"""The files of a checkpoint: whole or refused in one sentence, one process at a time, bounded."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError, QuorumLost
from fedmvc_server import app as server_app
from fedmvc_server import artefacts, checkpoint, cli
from fedmvc_server.checkpoint import Checkpoint, RunFile, note_server, unfinished
from fedmvc_server.cli_resume import end_deployed, resumable
from fedmvc_server.progress_file import ProgressFile, phase_of
from fedmvc_server.runner import new_run_id
from strategies.exchange import Failure
from strategies.journal import Heard, Waiting
from tests.cli.commands import call
from tests.federation.harness import plan_of, workers_of
from tests.federation.protected_harness import clustered_sites
from tests.federation.resume_harness import play

PLAN = plan_of(max_rounds=3, tol=0.0)
SITES, _ = clustered_sites(3, 60)
HEARD = Heard(
    "round",
    3,
    {"anna": "ab" * 32},
    {"anna": b"\x00\xff\n", "mercy": b""},
    {"north": "a message has 0 bytes"},
    {"west": Failure("did not reply in 5 s", missing=True)},
    3,
    70,
    0.25,
)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Play a run whose server is lost in round 2; no test writes here."""
    out, workers = tmp_path_factory.mktemp("interrupted") / "out", workers_of(SITES)
    result = play(PLAN, workers, out, new_run_id(), lost=(4, True))
    assert (result.exit_code, result.rounds) == (70, 1)
    return out


@pytest.fixture
def out(interrupted, tmp_path):
    return shutil.copytree(interrupted, tmp_path / "out")


def refused(call_, *arguments):
    with pytest.raises(ConfigError) as caught:
        call_(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_kept_is_read_back(tmp_path):
    kept = Checkpoint.begin(tmp_path, PLAN, new_run_id())
    run_id = kept.run.run_id
    kept.append(HEARD)
    kept.close()
    again = Checkpoint.reopen(tmp_path, PLAN, run_id, "7")
    assert again.recorded() == [HEARD]
    again.resumed(2)
    assert RunFile.read(tmp_path).resumed[0]["after_round"] == 2
    assert RunFile.read(tmp_path).flower_run_id == "7"
    again.close()
    assert oct((tmp_path / "checkpoint").stat().st_mode)[-3:] == "700"
    (file,) = (tmp_path / "checkpoint").iterdir()
    assert oct(file.stat().st_mode)[-3:] == "600"


def test_the_server_is_noted_beside_what_is_there(out):
    note_server(out, "localhost:8443", out / "ca.crt")
    known = RunFile.read(out)
    assert (known.server, known.ca) == ("localhost:8443", str(out / "ca.crt"))
    assert known.plan_id == PLAN.plan_id


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_checkpoint_cut_at_any_byte_goes_on_or_says_one_sentence(interrupted, data, tmp_path):
    out = tmp_path / new_run_id()
    shutil.copytree(interrupted, out)
    paths = sorted((out / "checkpoint").iterdir())
    path = data.draw(st.sampled_from(paths))
    size = path.stat().st_size
    os.truncate(path, data.draw(st.integers(0, size - 1)))
    known = RunFile.read(out)
    if path != paths[-1]:
        assert "is damaged" in refused(unfinished, out)
        return
    assert unfinished(out) == known
    result = play(PLAN, workers_of(SITES), out, known.run_id, resume=True)
    assert (result.status, result.rounds) != ("completed", 0)


@pytest.mark.parametrize("damage", ["gap", "flip", "foreign"])
def test_other_damage_is_refused(out, damage):
    paths = sorted((out / "checkpoint").iterdir())
    if damage == "gap":
        paths[1].unlink()
    elif damage == "flip":
        body = bytearray(paths[0].read_bytes())
        body[40] ^= 1
        paths[0].write_bytes(body)
    else:
        shutil.copy(paths[2], paths[1])
        assert unfinished(out)  # whole, but not what the run asked
        known = RunFile.read(out)
        result = play(PLAN, workers_of(SITES), out, known.run_id, resume=True)
        assert (result.exit_code, "leads elsewhere" in result.stop_reason) == (2, True)
        return
    assert "is damaged" in refused(unfinished, out)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda out: (out / "run.json").unlink(), "holds no run.json"),
        (lambda out: (out / "run.json").write_text("{"), "run.json in folder 'out' is damaged"),
        (lambda out: edit(out, plan={"method": "fedhk-mvfc", "n_clusters": 9}), "is damaged"),
        (lambda out: edit(out, versions={"numpy": "1.0"}), "start another run"),
        (lambda out: finish(out, "completed", 3), "is complete"),
        (lambda out: finish(out, "failed", 0), "was refused before its first round"),
        (lambda out: finish(out, "stopped", 2), "its sites were told that it is over"),
    ],
)
def test_what_cannot_go_on_is_one_sentence_and_2(out, change, words):
    change(out)
    ended = call(cli.app, "resume", out, "--server", "127.0.0.1:1")
    assert ended.code == 2
    assert words in ended.sentence


def edit(out, **fields):
    known = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(known | fields))


def finish(out, status, rounds):
    shutil.rmtree(out / "checkpoint")
    (out / "result.json").write_text(json.dumps({"status": status, "rounds": rounds}))


def test_a_run_without_a_known_server_needs_one(out):
    ended = call(cli.app, "resume", out)
    assert (ended.code, "--server" in ended.sentence) == (2, True)


def test_another_versions_run_names_the_package_and_both_versions(out):
    edit(out, versions={**artefacts.versions(), "numpy": "1.0"})
    assert "began with numpy 1.0 and here is 2" in refused(unfinished, out)


def test_another_plan_is_refused(out):
    other = plan_of(4)
    sentence = refused(Checkpoint.reopen, out, other, RunFile.read(out).run_id, None)
    assert other.plan_id[:12] in sentence and PLAN.plan_id[:12] in sentence


def test_two_processes_do_not_run_in_one_folder(out):
    script = (
        "import fcntl, os, sys, time\n"
        "f = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.flock(f, fcntl.LOCK_EX)\n"
        "os.ftruncate(f, 0); os.pwrite(f, b'4711', 0)\n"
        "print('locked', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(out / ".lock")], stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout.readline() == b"locked\n"
            ended = call(cli.app, "resume", out, "--server", "127.0.0.1:1")
            assert ended.code == 2
            assert "another process (4711) is at work" in ended.sentence
        finally:
            other.kill()
    assert unfinished(out)


def test_a_new_run_does_not_take_the_folder_of_an_unfinished_one(out):
    (out / "result.json").unlink()
    assert "is not finished" in refused(artefacts.refuse_taken, out)


def test_a_run_that_left_its_result_is_complete_even_where_its_checkpoint_still_lies_there(out):
    (out / "result.json").write_text(json.dumps({"status": "completed", "rounds": 3}))
    assert "is complete" in refused(unfinished, out)
    assert "already holds the result" in refused(artefacts.refuse_taken, out)


@pytest.mark.parametrize(("given", "meant"), [("", False), ("yes", True)])
def test_the_run_configuration_says_whether_to_resume(given, meant):
    assert server_app._resume(given) == meant


def test_other_words_in_the_run_configuration_are_refused():
    assert "run-config key 'resume' is 'perhaps'" in refused(server_app._resume, "perhaps")


def test_what_ended_the_last_part_is_no_result_while_the_run_goes_on(tmp_path):
    """The site that was away is back: status reads progress.json again."""
    out, workers, run_id, seen = tmp_path / "out", workers_of(SITES), new_run_id(), []
    play(PLAN, workers, out, run_id, lost=(4, True))
    assert (out / "result.json").exists()

    def look(state):
        seen.append((out / "result.json").exists())

    result = play(PLAN, workers, out, run_id, resume=True, observer=look)

    assert (result.status, seen) == ("completed", [False] * len(seen)), result.stop_reason
    assert seen


@pytest.mark.parametrize("kept", [True, False])
def test_a_run_that_can_go_on_says_how(tmp_path, kept, capsys):
    if kept:
        (tmp_path / "checkpoint").mkdir()
    with pytest.raises(QuorumLost) as caught:
        end_deployed(tmp_path, 6, "site 'anna' is away")
    with pytest.raises(KeyboardInterrupt), resumable(tmp_path):
        raise KeyboardInterrupt

    hint = f"fedmvc-server resume {tmp_path}"
    assert (hint in str(caught.value), hint in capsys.readouterr().err) == (kept, kept)


# -- disks that are full ---------------------------------------------------------------------


def test_a_full_disk_ends_the_run_with_2_and_it_goes_on_when_there_is_room(tmp_path, monkeypatch):
    out, workers, run_id = tmp_path / "out", workers_of(SITES), new_run_id()
    whole, left = os.fsync, [14]

    def filling(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", filling)
        result = play(PLAN, workers, out, run_id)
    assert result.exit_code == 2
    assert "No space left on device" in result.stop_reason
    assert not list(out.rglob("*.part"))
    json.loads((out / "run.json").read_text())
    for path in (out / "checkpoint").iterdir():
        checkpoint._read_entry(path.read_bytes())
    ended = play(PLAN, workers, out, run_id, resume=True)
    undisturbed = play(PLAN, workers_of(SITES), tmp_path / "other", new_run_id())
    assert ended.status == "completed", ended.stop_reason
    assert ended.model.sha256() == undisturbed.model.sha256()


def test_a_disk_that_fills_with_the_last_artefact_keeps_the_run(tmp_path, monkeypatch):
    out, workers, run_id = tmp_path / "out", workers_of(SITES), new_run_id()
    with monkeypatch.context() as patch:
        patch.setattr("fedmvc_server.runner.write_model", full)
        result = play(PLAN, workers, out, run_id)
    assert (result.status, result.exit_code) == ("failed", 2)
    stored = json.loads((out / "result.json").read_text())
    assert (stored["status"], stored["exit_code"]) == ("failed", 2)
    ended = play(PLAN, {}, out, run_id, resume=True)  # nobody is asked any more
    assert ended.status == "completed", ended.stop_reason
    assert (out / "model.npz").is_file()


def full(out, model):
    raise artefacts.unwritable(out, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def test_a_file_that_may_not_grow_leaves_what_was_there(tmp_path):
    path = tmp_path / "out" / "result.json"
    path.parent.mkdir()
    artefacts.write_result(path.parent, {"status": "stopped"})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        sentence = refused(artefacts.write_result, path.parent, {"reason": "x" * 5000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "results folder 'out' cannot be written (File too large)" in sentence
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]
    assert path.read_bytes() == before


def test_a_checkpoint_that_grows_too_large_is_given_up_and_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MOST_BYTES", 4000)
    result = play(PLAN, workers_of(SITES), tmp_path / "out", new_run_id())
    assert result.status == "completed"
    assert "the run's checkpoint grew too large and was removed" in result.warnings
    assert not (tmp_path / "out" / "checkpoint").exists()


# -- progress.json ---------------------------------------------------------------------------


def test_progress_names_whom_the_run_waits_for(tmp_path):
    now = [0.0]
    progress = ProgressFile(tmp_path, "run", clock=lambda: now[0])

    def shown():
        return json.loads((tmp_path / "progress.json").read_text())

    progress(Waiting("round", 2, ("a", "b"), ("a", "b")))
    first = shown()
    assert (first["phase"], first["round"], first["waiting_for"]) == ("round", 2, ["a", "b"])
    now[0] = 0.1
    progress(Waiting("round", 2, ("a", "b"), ("b",)))
    assert shown() == first  # not more than a few times a second
    now[0] = 0.4
    progress(Waiting("round", 2, ("a", "b"), ("b",)))
    assert (shown()["waiting_for"], shown()["since"]) == (["b"], first["since"])
    progress.close()
    assert shown()["waiting_for"] == []
    assert set(shown()) == {
        *("run_id", "phase", "round", "asked", "waiting_for", "since", "updated_at"),
    }


@pytest.mark.parametrize(
    ("action", "round_", "phase"),
    [("hello", 0, "admission"), ("keys", 0, "setup"), ("sum", 3, "round"), ("close", 3, "finish")],
)
def test_phases(action, round_, phase):
    assert phase_of(action, round_) == phase


def test_a_disk_that_takes_no_progress_does_not_end_the_run(tmp_path, caplog):
    with caplog.at_level("INFO", "fedmvc"):
        progress = ProgressFile(tmp_path / "gone", "run")
        progress(Waiting("round", 2, ("a",), ("a",)))
        progress.close()
    assert caplog.text.count("progress.json cannot be written") == 1
