"""The compose files are well-formed, refer to what exists, and keep the rooms apart."""

import copy
import subprocess
import sys
import tomllib
from pathlib import PurePosixPath

import pytest

from configs.federation import FederationConfig
from fedmvc_server.provision import provision
from privacy.identity import PASSPHRASE
from tests.docker.compose_files import (
    DOCKER,
    FILES,
    FILLED_BY_THE_SITE,
    LAPTOP,
    ROOT,
    SERVER,
    SERVER_KIT,
    SITE,
    SITE_KIT,
    load,
    mounts,
    networks,
    problems,
)

KIT = "/srv/kits/server"
KITS = {
    LAPTOP: set(),
    SERVER: {KIT, *(f"{KIT}/{name}" for name in SERVER_KIT), "../results", "../plans"},
    SITE: SITE_KIT | FILLED_BY_THE_SITE,
}
COMPOSED = {path: load(path, FEDMVC_KIT=KIT) for path in FILES}
SERVICES = [
    pytest.param(path, name, id=f"{path.name}-{name}")
    for path in FILES
    for name in COMPOSED[path]["services"]
]
SITES = ("st-anna", "charite-nord", "riverside")
# The three services of each hospital: (file, worker, executor, supernode).
HOSPITALS = [
    pytest.param(SITE, "worker", "executor", "supernode", id="site"),
    *(pytest.param(LAPTOP, f"{s}-worker", f"{s}-executor", f"{s}-supernode", id=s) for s in SITES),
]


def validate(*paths):
    return subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema"),
            *("--builtin-schema", "vendor.compose-spec", *map(str, paths)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_files_follow_the_compose_specification():
    done = validate(*FILES)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_mistyped_key_is_found(tmp_path):
    path = tmp_path / "compose.yaml"
    path.write_text(SITE.read_text().replace("restart: unless-stopped", "restrat: unless-stopped"))

    done = validate(path)

    assert done.returncode == 1
    assert "restrat" in done.stdout


def test_provision_makes_what_the_kits_are_said_to_hold(tmp_path):
    fields = tomllib.loads((DOCKER / "federation.toml").read_text())
    provision(FederationConfig.model_validate(fields), tmp_path / "kits", with_identity_keys=True)
    kits = [(tmp_path / "kits" / "server", SERVER_KIT)]
    kits += [(tmp_path / "kits" / site, SITE_KIT | FILLED_BY_THE_SITE) for site in SITES]
    for kit, names in kits:
        assert [name for name in sorted(names) if not (kit / name).exists()] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_named_exists(path):
    assert problems(COMPOSED[path], DOCKER, KITS[path]) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c["services"].pop("worker"), "executor depends on worker"),
        (lambda c: c["services"]["worker"].pop("healthcheck"), "which has no health check"),
        (lambda c: c["secrets"].pop("node_key"), "node_key is used and not defined"),
        (lambda c: c["networks"].pop("inside"), "inside is used and not defined"),
        (lambda c: c["volumes"].update(other={}), "other is defined and not used"),
        (lambda c: c["services"]["worker"].update(network_mode="service:x"), "of x, which is no"),
        (lambda c: c["services"]["worker"].update(networks=["inside"]), "mode and networks"),
        (
            lambda c: c["services"]["supernode"]["volumes"][0].update(source="./site.tml"),
            "supernode: ./site.tml is in no kit",
        ),
        (
            lambda c: c["services"]["supernode"]["volumes"][0].update(target="/site/ca.crt"),
            "supernode: two mounts at /site/ca.crt",
        ),
    ],
)
def test_a_dangling_reference_is_found(change, sentence):
    compose = copy.deepcopy(COMPOSED[SITE])
    change(compose)

    assert any(sentence in found for found in problems(compose, DOCKER, KITS[SITE]))


@pytest.mark.parametrize(("path", "name"), SERVICES)
def test_every_service_is_confined(path, name):
    service = COMPOSED[path]["services"][name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] > 0
    assert service["mem_limit"]
    assert service["user"].split(":")[0] not in ("", "0", "root")
    assert service["init"] is True
    assert all(mount.kind in ("bind", "volume") for mount in mounts(COMPOSED[path], service))
    assert service.get("network_mode", "none") in ("none", "service:server")


@pytest.mark.parametrize(("path", "name"), SERVICES)
def test_what_runs_for_ever_is_watched_and_started_again(path, name):
    service = COMPOSED[path]["services"][name]
    once = name in ("init", "register", "operator")

    assert (service["restart"] == "unless-stopped") is not once
    assert ("healthcheck" in service) is not once


@pytest.mark.parametrize(("path", "worker", "executor", "supernode"), HOSPITALS)
def test_the_worker_has_data_and_no_network(path, worker, executor, supernode):
    service = COMPOSED[path]["services"][worker]
    seen = {mount.target: mount for mount in mounts(COMPOSED[path], service)}

    assert service["network_mode"] == "none"
    written = {target for target, mount in seen.items() if not mount.read_only}
    assert written == {"/site/state", "/site/plans", "/site/results", "/run/fedmvc"}
    assert seen["/site"].read_only
    if path == SITE:
        assert seen["/site/data"].read_only


@pytest.mark.parametrize(("path", "worker", "executor", "supernode"), HOSPITALS)
def test_the_executor_sees_the_socket_and_nothing_else(path, worker, executor, supernode):
    compose = COMPOSED[path]
    service = compose["services"][executor]
    (mount,) = mounts(compose, service)
    (socket,) = [m for m in mounts(compose, compose["services"][worker]) if m.kind == "volume"][-1:]

    assert (mount.source, mount.target) == (socket.source, "/run/fedmvc")
    assert mount.read_only
    (network,) = networks(service)
    assert compose["networks"][network] == {"internal": True}
    assert "ports" not in service


@pytest.mark.parametrize(("path", "worker", "executor", "supernode"), HOSPITALS)
def test_the_supernode_sees_neither_data_nor_socket(path, worker, executor, supernode):
    compose = COMPOSED[path]
    service = compose["services"][supernode]
    seen = mounts(compose, service)

    (own,) = [mount for mount in seen if not mount.read_only]
    assert own.target == "/site/state/flower"
    if path == SITE:
        assert own.source == "flower"
        files = {mount.target for mount in seen if mount.read_only}
        targets = {"site.toml", "connection.toml", "ca.crt", "state/node.key"}
        assert files == {f"/site/{name}" for name in targets}
    else:
        kit = f"kits/{supernode.removesuffix('-supernode')}"
        assert [mount.subpath for mount in seen] == [kit, f"{kit}/state/flower"]
    inside, outside = sorted(networks(service), key=lambda n: n == "outside")
    assert compose["networks"][inside] == {"internal": True}
    assert compose["networks"][outside] == {}
    # the runtime API answers whoever asks: it listens where only the executor is
    assert networks(service) == {inside: ["runtime"], outside: []}
    assert "runtime:9094" in service["command"]
    assert "ports" not in service


@pytest.mark.parametrize(("path", "worker", "executor", "supernode"), HOSPITALS)
def test_the_worker_answers_the_executor_and_no_other_user(path, worker, executor, supernode):
    compose = COMPOSED[path]
    users = {name: compose["services"][name]["user"] for name in (worker, executor, supernode)}
    command = compose["services"][worker]["command"]
    (socket,) = [mount.source for mount in mounts(compose, compose["services"][executor])]
    options = dict(
        each.split("=") for each in compose["volumes"][socket]["driver_opts"]["o"].split(",")
    )

    assert command[command.index("--allow-uid") + 1] == users[executor].split(":")[0]
    assert users[worker].split(":")[0] != users[executor].split(":")[0]
    # the folder is the worker's own, and its group and the sockets' is the executor's
    assert options["uid"] == users[worker].split(":")[0]
    assert options["gid"] == users[executor].split(":")[1]
    assert options["mode"] == "2750"


@pytest.mark.parametrize("path", [LAPTOP, SERVER], ids=lambda path: path.name)
def test_only_the_proxy_is_reached_from_outside(path):
    services, nets = COMPOSED[path]["services"], COMPOSED[path]["networks"]

    # on a laptop the hospitals are in the proxy's network: nothing is published at all
    published = [name for name, each in services.items() if "ports" in each]
    assert published == (["proxy"] if path == SERVER else [])
    (inside,) = networks(services["server"])
    assert nets[inside] == {"internal": True}
    assert set(networks(services["proxy"])) == {inside, "outside"}
    assert [n for n, each in services.items() if inside in networks(each)] == ["server", "proxy"]


def test_server_and_site_take_keys_as_secrets():
    server, site = COMPOSED[SERVER]["services"], COMPOSED[SITE]["services"]

    def secrets(service):
        return {each["target"] for each in service.get("secrets", ())}

    assert secrets(server["server"]) == {"/kit/server.key", "/kit/superexec.secret"}
    assert secrets(server["proxy"]) == {"/kit/server.key"}
    assert secrets(site["supernode"]) == {"/site/state/node.key"}
    assert secrets(site["executor"]) == set()


def test_a_plan_in_the_kit_lies_where_the_worker_works():
    worker = COMPOSED[SITE]["services"]["worker"]
    plan = PurePosixPath(worker["working_dir"], "plan.toml")
    seen = [m for m in mounts(COMPOSED[SITE], worker) if plan.is_relative_to(m.target)]

    assert [(mount.kind, mount.source, mount.target) for mount in seen] == [("bind", ".", "/site")]
    assert load(SITE, FEDMVC_UID="1234")["services"]["worker"]["user"].startswith("1234:")


def test_the_worker_alone_gets_the_passphrase_and_only_where_there_is_one():
    services = COMPOSED[SITE]["services"]
    given = {name for name, s in services.items() if PASSPHRASE in s.get("environment", {})}

    assert given == {"worker"}
    # with an empty value keygen would take it for a passphrase of no letters
    assert services["worker"]["environment"][PASSPHRASE] is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_mount_makes_a_folder_on_the_host(path):
    for service in COMPOSED[path]["services"].values():
        for each in service.get("volumes", ()):
            if each["type"] == "bind" and each["source"] != ".":
                assert each["bind"] == {"create_host_path": False}


def test_the_images_are_of_this_version_and_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    images = {s["image"] for c in COMPOSED.values() for s in c["services"].values()}

    assert images == {f"fedmvc:{project['version']}", "nginx:1.28-alpine"}


def test_the_laptop_federation_names_what_the_compose_file_has():
    federation = tomllib.loads((DOCKER / "federation.toml").read_text())

    assert [site["name"] for site in federation["sites"]] == list(SITES)
    assert federation["server"]["names"] == ["proxy", "localhost"]
    assert federation["server"]["proxy"] is True
    (script,) = COMPOSED[LAPTOP]["services"]["init"]["command"]
    assert f"for site in {' '.join(SITES)}; do" in script
    assert f"--sites {len(SITES)} " in script
