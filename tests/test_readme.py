"""The README's commands and snippets run as written."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from fedmvc_client.cli import app as client
from fedmvc_server.cli import app as server
from tests.cli.commands import call

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS = {"fedmvc-server": server, "fedmvc-client": client}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


#: What of a preset only takes time; the commands are the same.
LESS = {
    "plus.toml": [("link_cost = 12", "link_cost = 1"), ("max_rounds = 150", "max_rounds = 20")],
    "gated.toml": [("max_rounds = 5", "max_rounds = 2"), ("local_sweeps = 8", "local_sweeps = 3")],
    "robust.toml": [("n_init = 10", "n_init = 2")],
}


def quick_presets(folder):
    """Copy the presets, those that take long with less to do."""
    shutil.copytree(ROOT / "configs" / "presets", folder)
    for name, changes in LESS.items():
        text = (folder / name).read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_console_commands_run_in_order_in_one_folder(tmp_path, monkeypatch):
    """In this process, where imports are paid once; tests/cli runs the installed scripts."""
    quick_presets(tmp_path / "configs" / "presets")
    monkeypatch.chdir(tmp_path)
    commands = [
        line.removeprefix("$ ")
        for block in blocks("console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    assert len(commands) >= 4
    for command in commands:
        script, *arguments = shlex.split(command)
        ended = call(SCRIPTS[script], *arguments)
        assert ended.code == 0, f"{command}\n{ended.out}\n{ended.err}"
    assert (tmp_path / "run" / "result.json").is_file()
    assert (tmp_path / "labelled.csv").is_file()


@pytest.mark.parametrize("snippet", blocks("python"))
def test_python_snippets_run(snippet, capsys):
    exec(compile(snippet, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out


def test_the_plan_shown_is_a_plan():
    import tomllib

    from configs.plan import RunPlan

    for block in blocks("toml"):
        RunPlan.parse(tomllib.loads(block))


def test_every_link_and_benchmark_named_exists():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).is_file(), target
    named = re.search(r"benchmarks\.NAME.*?for (.*?); real data", README, re.DOTALL)
    for name in re.findall(r"`([a-z_]+)`", named.group(1)):
        assert (ROOT / "benchmarks" / f"{name}.py").is_file(), name


def test_make_targets_named_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake ([a-z]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_exit_codes_are_those_of_the_error_tree():
    from configs import errors

    documented = {int(row) for row in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    classes = [getattr(errors, name) for name in errors.__all__]
    codes = {c.code for c in classes if isinstance(c, type)}
    assert documented == {0, errors.INTERRUPTED} | codes


@pytest.mark.slow
def test_the_output_shown_is_what_the_demo_prints(tmp_path):
    from configs.plan import RunPlan
    from fedmvc_server.report_text import summary
    from fedmvc_server.simulation import score_folders, simulate_folders
    from fedmvc_server.synthesize import synthesize_cardio

    sites, plan = tmp_path / "sites", RunPlan.load(ROOT / "configs" / "presets" / "paper.toml")
    synthesize_cardio(sites)
    result = simulate_folders(plan, sites, out=tmp_path / "run")
    printed = summary(
        result, tmp_path / "run", score_folders(plan, sites, result, sites / "truth.csv")
    ).splitlines()

    shown, _ = blocks("text")  # the other: tests/network/test_local.py
    first, *others = shown.splitlines()
    assert re.sub(r"[\d.]+ s:", "S s:", first) == re.sub(r"[\d.]+ s:", "S s:", printed[0])
    for line in others:
        if line.startswith("bytes"):  # numbers in the headers have a digit more or less
            line, printed = re.sub(r"\d", "", line), [re.sub(r"\d", "", p) for p in printed]
        assert line in printed
