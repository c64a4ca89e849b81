"""Services of a compose file as plain processes: every path and host name mapped to this machine.

The ports stay as they are; each host has a loopback address of its own instead. Nothing separates
the services but their arguments. For machines where `namespaces` are not to be had.
"""

import os
import re
import subprocess

from tests.docker.compose_files import DOCKER, mounts, networks
from tests.docker.namespaces import image_environment
from tests.docker.proxies import nginx

_SERVER, _PROXY = "127.0.0.11", "127.0.0.1"


class Loopback:
    """Run a compose file's services beside each other (parameters as of `Namespaces`)."""

    def __init__(self, compose, folder, programs):
        self.compose, self.folder, self.programs = compose, folder, programs
        self._environment = image_environment()
        self._environment["PATH"] = f"{programs}:{self._environment['PATH']}"
        inside = [name for name in compose["networks"] if name not in ("server-inside", "outside")]
        self._runtimes = {name: f"127.0.0.{20 + i}" for i, name in enumerate(inside)}
        for name in compose["volumes"]:
            self.volume(name).mkdir(parents=True)
            self.volume(name).chmod(0o750)

    def volume(self, name, subpath=""):
        """Folder of a named volume on this machine."""
        return self.folder / "volumes" / name / subpath

    def spawn(self, name, argv, log):
        """Start a service's command and return the process."""
        service = self.compose["services"][name]
        argv = [nginx() if argv[0] == "nginx" else argv[0], *argv[1:]]
        own = self.folder / "own" / name
        own.mkdir(parents=True, exist_ok=True)
        environment = {**self._environment, **service.get("environment", {})}
        for variable in ("HOME", "FLWR_HOME", "NUMBA_CACHE_DIR"):
            environment[variable] = str(own)
        return subprocess.Popen(
            [self.mapped(name, each) for each in argv],
            cwd=self.mapped(name, service.get("working_dir", str(own))),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def probe(self, name, process, argv):
        """Run a health check's command; return what it came to."""
        if process.poll() is not None:
            return subprocess.CompletedProcess(argv, 1, "", "the service has ended")
        return subprocess.run(
            [self.mapped(name, each) for each in argv],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def close(self):
        """Let go of everything (nothing is held)."""

    def mapped(self, name, text):
        """Replace a service's paths and host names by this machine's."""
        service = self.compose["services"][name]
        found = sorted(mounts(self.compose, service), key=lambda m: -len(m.target))
        for mount in found:
            source = self.volume(mount.source, mount.subpath)
            if mount.kind == "bind":
                source = (DOCKER / mount.source).resolve()
            if mount.target == "/etc/nginx/fedmvc.conf":
                source = self._proxy_configuration(name, source)
            if mount.target == "/federation.toml":
                source = self._federation(source)
            text = re.sub(rf"(?<![\w/.-]){re.escape(mount.target)}(?![\w-])", str(source), text)
        if name.endswith("-supernode"):
            # It names the socket to the executor, and does not see it itself.
            socket = self.volume(name.replace("-supernode", "-socket"))
            text = text.replace("/run/fedmvc", str(socket))
        address = _SERVER if service.get("network_mode") == "service:server" else None
        if name == "server":
            text, address = text.replace("0.0.0.0", _SERVER), _SERVER
        if address:
            text = text.replace("localhost:8443", f"{address}:8443")
        for network in networks(service):
            if network in self._runtimes:
                text = text.replace("runtime:9094", f"{self._runtimes[network]}:9094")
        return text

    def _proxy_configuration(self, name, path):
        text = path.read_text(encoding="utf-8")
        for old, new in (
            (" /tmp/", f" {self.folder}/own/{name}/"),
            (" /kit/", f" {self.volume('federation', 'proxy')}/"),
            ("$superlink server:8443;", f"$superlink {_SERVER}:8443;"),
            ("listen 8443 ssl", f"listen {_PROXY}:8443 ssl"),
            ("/dev/stdout", f"{self.folder}/own/{name}/access.log"),
        ):
            assert old in text, f"nginx.conf no longer holds '{old}'"
            text = text.replace(old, new)
        if os.geteuid() == 0:
            text = f"user root;\n{text}"
        mapped = self.folder / "nginx.conf"
        mapped.write_text(text)
        return mapped

    def _federation(self, path):
        # No name server here: the sites reach the proxy as localhost.
        text = path.read_text(encoding="utf-8")
        for old, new in (
            ('names = ["proxy", "localhost"]', 'names = ["localhost"]'),
            ('addresses = ["127.0.0.1"]', f'addresses = ["{_PROXY}", "{_SERVER}"]'),
        ):
            assert old in text, f"federation.toml no longer holds '{old}'"
            text = text.replace(old, new)
        mapped = self.folder / "federation.toml"
        mapped.write_text(text)
        return mapped
