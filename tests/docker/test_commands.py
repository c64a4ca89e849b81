"""Every command line in compose files, docs on containers and kit pages is one of ours."""

import re
import shlex

import click
import pytest
import typer

from configs.federation import FederationConfig
from fedmvc_client.cli import app as client
from fedmvc_server.cli import app as server
from fedmvc_server.provision import provision
from tests.docker.compose_files import DOCKER, FILES, ROOT, SITE, command_lines, load

APPS = {"fedmvc-client": client, "fedmvc-server": server}
DOCS = ROOT / "docs" / "deployment.md"


def parse(argv):
    """Parse a command line as our commands would, to the last option, and run nothing."""
    name, *arguments = argv
    command = typer.main.get_command(APPS[name])
    context = click.Context(command, info_name=name)
    while isinstance(command, click.Group):  # none of our groups takes options of its own
        name, command, arguments = command.resolve_command(context, arguments)
        context = click.Context(command, info_name=name, parent=context)
    return command.make_context(name, arguments, parent=context.parent).params


def lines_of(path):
    for name, service in load(path, FEDMVC_KIT="/kit")["services"].items():
        for argv in command_lines(service):
            if argv[0] != "nginx":
                yield pytest.param(argv, id=f"{path.name}-{name}-{argv[1]}")


def commands_in(text):
    """Commands of ours in a page's indented or fenced lines; a backslash joins two lines."""
    section = text.split("\n## Containers\n", 1)[1].split("\n## ", 1)[0]
    yield from commands_in_blocks(section)


def commands_in_blocks(section):
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        found = re.search(r"\bfedmvc-(?:server|client) .*", line.split(" #")[0])
        if found:
            yield shlex.split(found.group())


@pytest.mark.parametrize("argv", [line for path in FILES for line in lines_of(path)])
def test_a_service_runs_a_command_that_exists(argv):
    parse(argv)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_image_of_ours_is_given_a_command(path):
    for service in load(path, FEDMVC_KIT="/kit")["services"].values():
        names = {argv[0] for argv in command_lines(service)}
        assert names <= ({"nginx"} if "nginx" in service["image"] else set(APPS))
        assert names


def test_the_docs_give_commands_that_exist():
    commands = list(commands_in(DOCS.read_text(encoding="utf-8")))

    assert len(commands) >= 4
    for argv in commands:
        parse(argv)


def test_the_docs_units_start_commands_that_exist():
    section = DOCS.read_text(encoding="utf-8").split("\n## Services of systemd\n", 1)[1]
    started = re.findall(r"^ExecStart=/opt/fedmvc/bin/(.*)$", section, re.MULTILINE)

    assert [line.split()[1] for line in started] == ["worker", "executor", "join", "start"]
    for line in started:
        parse(shlex.split(line))


@pytest.fixture(scope="module")
def kit_page(tmp_path_factory):
    """Return the page of a hospital's kit, which has a compose file."""
    kits = tmp_path_factory.mktemp("kits") / "kits"
    provision(FederationConfig.load(DOCKER / "federation.toml"), kits)
    return (kits / "st-anna" / "README.md").read_text(encoding="utf-8")


def test_a_kits_page_gives_commands_that_exist(kit_page):
    section = kit_page.split("\n## All of it in containers\n", 1)[1]
    commands = list(commands_in_blocks(section))

    assert [" ".join(argv[1:3]) for argv in commands] == [
        "keygen",
        "check",
        "doctor",
        "doctor --site",
        "plans show",
        "plans approve",
        "budget show",
        "log verify",
    ]
    for argv in commands:
        parse(argv)
    services = set(re.findall(r"^docker compose run --rm (\S+) fedmvc-", section, re.MULTILINE))
    assert services == {"worker", "supernode"} <= set(load(SITE)["services"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["fedmvc-client", "worker", "--sit", "/site"], "--sit"),
        (["fedmvc-client", "worker", "--site", "/site"], "socket"),
        (["fedmvc-client", "wroker"], "wroker"),
        (["fedmvc-server", "synthesize", "cardio", "--out", "x", "--n", "many"], "many"),
    ],
)
def test_a_renamed_command_or_option_is_found(argv, words):
    with pytest.raises(click.UsageError, match=words):
        parse(argv)
