"""The federation of docker/compose.yaml without an engine: its services as processes here.

The same argument lists, mounts, users, networks, orders of start and health checks; what stands in
for the engine is `namespaces` where this machine allows it, and `loopback` elsewhere. To try it:

    python -m tests.docker.federation_from_compose PLAN.toml
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.docker.compose_files import DOCKER, LAPTOP, load
from tests.docker.loopback import Loopback
from tests.docker.namespaces import Namespaces, unavailable

_ENTRYPOINT = DOCKER / "entrypoint.sh"
_PROGRAM = """#!/bin/sh
exec {python} -c 'import sys; from {module}.cli import main; sys.exit(main())' "$@"
"""


class Failed(RuntimeError):
    """A service ended badly or did not become healthy; the message ends with its log."""


class ComposeFederation:
    """The services of a compose file, started in their order and stopped together.

    Parameters
    ----------
    engine : "namespaces", "loopback" or None
        None takes namespaces where they are to be had.
    path : Path
        The compose file.
    """

    def __init__(self, engine=None, path=LAPTOP):
        self.compose = load(path)
        # Short, because a socket's path has at most 100 bytes; entered by several users.
        self.folder = Path(tempfile.mkdtemp(prefix="fm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.processes = {}
        programs = self.folder / "bin"
        programs.mkdir()
        for name in ("fedmvc-server", "fedmvc-client"):
            module = name.replace("-", "_")
            (programs / name).write_text(_PROGRAM.format(python=sys.executable, module=module))
            (programs / name).chmod(0o755)
        self.why_loopback = unavailable() if engine is None else ""
        chosen = engine or ("loopback" if self.why_loopback else "namespaces")
        kind = {"namespaces": Namespaces, "loopback": Loopback}[chosen]
        try:
            self.engine = kind(self.compose, self.folder, programs)
        except BaseException:
            shutil.rmtree(self.folder)
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def up(self, *names):
        """Start services (all but the operator's where none is named) and what they depend on."""
        services = self.compose["services"]
        for name in names or [n for n, s in services.items() if not s.get("profiles")]:
            self._start(name)
        for name in list(self.processes):
            if "healthcheck" in services[name]:
                self.await_health(name)

    def once(self, name, *argv, timeout=900.0):
        """Run a service with another command to its end (``docker compose run --rm``)."""
        process = self._spawn(name, list(argv))
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            words = f"{name} did not end in {timeout:g} s\n{self.log(name)}"
            raise Failed(words) from None
        finally:
            _signal_group(process, signal.SIGKILL)
            process.wait()
        return subprocess.CompletedProcess(argv, code, self.log(name), "")

    def stop(self):
        """End every service, as an engine would, and remove everything."""
        for process in reversed(self.processes.values()):
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + 20
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        for process in self.processes.values():
            _signal_group(process, signal.SIGKILL)
            process.wait()
        self.engine.close()
        shutil.rmtree(self.folder)

    def kill(self, name):
        """Kill a service with everything that it started."""
        process = self.processes.pop(name)
        _signal_group(process, signal.SIGKILL)
        process.wait()

    def log(self, name):
        """Return what a service has written so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def probe(self, name, *argv):
        """Run a command in a running service, as its user."""
        return self.engine.probe(name, self.processes[name], argv)

    def volume(self, name, subpath=""):
        """Folder of a volume on this machine."""
        return self.engine.volume(name, subpath)

    def await_health(self, name, timeout=120.0):
        """Wait until a service's own health check says yes."""
        check = self.compose["services"][name]["healthcheck"]["test"]
        assert check[0] == "CMD"
        deadline = time.monotonic() + timeout
        while True:
            found = self.probe(name, *check[1:])
            if found.returncode == 0:
                return
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{name} is not healthy: {found.stderr}\n{self.log(name)}")
            time.sleep(0.5)

    def _start(self, name):
        if name in self.processes:
            return
        service = self.compose["services"][name]
        for other, how in service.get("depends_on", {}).items():
            self._start(other)
            if how["condition"] == "service_healthy":
                self.await_health(other)
            elif how["condition"] == "service_completed_successfully":
                code = self.processes[other].wait(300)
                if code:
                    raise Failed(f"{other} ended with {code}\n{self.log(other)}")
        self.processes[name] = self._spawn(name, list(service["command"]))

    def _spawn(self, name, argv):
        service = self.compose["services"][name]
        if "entrypoint" in service:
            argv = [*service["entrypoint"], *argv]
        elif "build" in service:
            argv = [str(_ENTRYPOINT), *argv]
        path = self.folder / f"{name}.log"
        path.touch()
        path.chmod(0o666)  # the service's user opens it again by /dev/stdout
        with path.open("ab") as log:
            return self.engine.spawn(name, argv, log)


def _signal_group(process, number):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def main():
    """Start the federation, run a plan on it as the operator would, and stop it."""
    plan = Path(sys.argv[1])
    with ComposeFederation() as federation:
        print(f"engine: {type(federation.engine).__name__} {federation.why_loopback}")
        federation.up()
        done = federation.once(
            "operator",
            *("fedmvc-server", "run", f"/plans/{plan.name}", "--server", "localhost:8443"),
            *("--ca", "/kit/ca.crt", "--out", "/results/first"),
        )
        print(done.stdout)
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())
