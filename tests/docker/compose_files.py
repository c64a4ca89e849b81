"""Compose files read as far as their services are concerned: variables, mounts, references."""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
LAPTOP, SERVER, SITE = (
    DOCKER / name for name in ("compose.yaml", "compose.server.yaml", "compose.site.yaml")
)
FILES = (LAPTOP, SERVER, SITE)

#: What `fedmvc-server provision` makes in the two kinds of kits, and what a site fills.
SERVER_KIT = {
    "ca.crt",
    "server.pem",
    "server.key",
    "superexec.secret",
    "federation.toml",
    "nodes",
    "state",
}
SITE_KIT = {
    "site.toml",
    "schema.toml",
    "ca.crt",
    "connection.toml",
    "roster.json",
    "state",
    "state/node.key",
}
FILLED_BY_THE_SITE = {"plans", "results", "data"}

_VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(?::([-?])([^}]*))?\})")


@dataclass(frozen=True)
class Mount:
    """What a service sees at `target`; `source` is a path (bind) or a volume's name."""

    kind: str
    source: str
    target: str
    read_only: bool = False
    subpath: str = ""


def load(path, **variables):
    """Read a compose file, its variables replaced by those given or by their defaults."""
    return _interpolate(yaml.safe_load(path.read_text(encoding="utf-8")), variables)


def _interpolate(value, variables):
    if isinstance(value, dict):
        return {key: _interpolate(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [_interpolate(each, variables) for each in value]
    if not isinstance(value, str):
        return value

    def replace(found):
        name, kind, rest = found.groups()
        if name is None:
            return "$"
        if variables.get(name):
            return str(variables[name])
        if kind == "?":
            raise KeyError(f"{name}: {rest}")
        return rest or ""

    return _VARIABLE.sub(replace, value)


def mounts(compose, service):
    """Every mount of a service, secrets among them."""
    found = [
        Mount(
            each["type"],
            each["source"],
            each["target"],
            each.get("read_only", False),
            each.get("volume", {}).get("subpath", ""),
        )
        for each in service.get("volumes", ())
    ]
    for each in service.get("secrets", ()):
        file = compose["secrets"][each["source"]]["file"]
        found.append(Mount("bind", file, each["target"], True))
    return found


def networks(service):
    """Networks of a service, with its aliases there."""
    named = service.get("networks", {})
    if isinstance(named, list):
        named = dict.fromkeys(named)
    return {name: (settings or {}).get("aliases", []) for name, settings in named.items()}


def command_lines(service):
    """Commands of ours that a service runs: its own, or those in its shell script."""
    if service.get("entrypoint", [""])[0] != "/bin/sh":
        return [list(service["command"])]
    (script,) = service["command"]
    lines = [line.strip() for line in script.splitlines()]
    return [line.split() for line in lines if line.startswith("fedmvc-")]


def problems(compose, folder, kits=frozenset()):
    """Say in a sentence each what a compose file names and does not hold.

    A bind mount's source must be a file of the repository (relative to `folder`) or one of `kits`.
    """
    services = compose["services"]
    found, used = [], {"networks": set(), "volumes": set(), "secrets": set()}
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            if other not in services:
                found.append(f"{name} depends on {other}, which is no service")
                continue
            awaited = services[other]
            if how["condition"] == "service_healthy" and "healthcheck" not in awaited:
                found.append(f"{name} waits for {other} to be healthy, which has no health check")
            ends = awaited["restart"] == "no" or awaited["restart"].startswith("on-failure")
            if how["condition"] == "service_completed_successfully" and not ends:
                found.append(f"{name} waits for the end of {other}, which is started for ever")
        kind, _, other = service.get("network_mode", "").partition(":")
        if kind == "service" and other not in services:
            found.append(f"{name} is in the network of {other}, which is no service")
        if kind and networks(service):
            found.append(f"{name} has a network mode and networks")
        used["networks"] |= set(networks(service))
        used["secrets"] |= {each["source"] for each in service.get("secrets", ())}
        volumes = service.get("volumes", ())
        used["volumes"] |= {each["source"] for each in volumes if each["type"] == "volume"}
    for kind, names in used.items():
        defined = set(compose.get(kind, {}))
        found += [f"{kind}: {each} is used and not defined" for each in sorted(names - defined)]
        found += [f"{kind}: {each} is defined and not used" for each in sorted(defined - names)]
    if not found:
        for name, service in services.items():
            found += [f"{name}: {each}" for each in _misplaced(compose, service, folder, kits)]
    return found


def _misplaced(compose, service, folder, kits):
    targets = [mount.target for mount in mounts(compose, service)]
    for target in sorted({each for each in targets if targets.count(each) > 1}):
        yield f"two mounts at {target}"
    for mount in mounts(compose, service):
        if mount.kind != "bind":
            continue
        path = mount.source.removeprefix("./")
        held = path in kits or (path == "." and kits) or (folder / path).resolve().exists()
        if not held:
            yield f"{mount.source} is in no kit and not in the repository"
