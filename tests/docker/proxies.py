"""The reverse proxy on loopback, as docker/nginx.conf has it, with paths and ports of this machine.

nginx is no Python package: it comes from the system (Debian: ``apt install nginx``), or from the
file that FEDMVC_NGINX names.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from configs.ports import listens
from fedmvc_server.local_federation import free_port
from tests.docker.compose_files import DOCKER

TEXT = (DOCKER / "nginx.conf").read_text(encoding="utf-8")


def nginx():
    """Path of nginx on this machine, or None."""
    named = os.environ.get("FEDMVC_NGINX")
    return named or shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


needs_nginx = pytest.mark.skipif(
    nginx() is None,
    reason="nginx is not installed (Debian: apt install nginx; or name it by FEDMVC_NGINX)",
)


def configuration(folder, kit, port, health_port, superlink):
    """Text of nginx.conf for this machine; fails where a line to be replaced is not there."""
    text = TEXT
    for old, new in (
        (" /tmp/", f" {folder}/"),
        (" /kit/", f" {kit}/"),
        ("listen 8443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("set $superlink server:8443;", f"set $superlink {superlink};"),
        ("listen 127.0.0.1:8081;", f"listen 127.0.0.1:{health_port};"),
        ("access_log /dev/stdout", f"access_log {folder}/access.log"),
    ):
        assert old in text, f"nginx.conf no longer holds '{old}'"
        text = text.replace(old, new)
    return text


class Proxy:
    """nginx in front of `superlink` (HOST:PORT), with the certificate and CA of folder `kit`."""

    def __init__(self, folder: Path, kit: Path, superlink: str):
        self.folder = folder
        self.port, self.health_port = free_port(), free_port()
        path = folder / "nginx.conf"
        path.write_text(configuration(folder, kit, self.port, self.health_port, superlink))
        # nginx as root gives its workers to another user, who may not enter a test's folder
        as_root = ["-g", "user root;"] if os.getuid() == 0 else []
        self.command = [nginx(), "-p", str(folder), "-e", "stderr", "-c", str(path), *as_root]

    def check(self):
        """Let nginx read its configuration and say what is wrong with it."""
        return subprocess.run([*self.command, "-t"], capture_output=True, text=True, timeout=60)

    def __enter__(self):
        with (self.folder / "nginx.log").open("wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not listens("127.0.0.1", self.port):
            ended = self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError((self.folder / "nginx.log").read_text())
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
