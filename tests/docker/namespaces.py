"""Containers of a compose file without an engine: namespaces of Linux, by ``unshare`` and ``ip``.

Each service gets what its compose entry gives it and nothing else: a read-only root with this
machine's programs, its mounts at their own paths, its networks, its user, no capability. It needs
root; nothing is left behind, since one process holds all of it.
"""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docker.compose_files import DOCKER, ROOT, mounts, networks
from tests.docker.proxies import nginx

_TOOLS = ("unshare", "nsenter", "ip", "mount", "setpriv", "chroot")
#: docker-init's part: pass the end on to the command, and end as it does.
_INIT = '"$@" & child=$!; trap "kill -TERM $child" TERM INT; wait $child || :; wait $child'


@functools.cache
def unavailable():
    """Say why this machine cannot do it; "" where it can."""
    if os.geteuid() != 0:
        return "namespaces with users of their own need root"
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    tried = subprocess.run(
        [
            *("unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c"),
            "mount -t tmpfs tmpfs /mnt && ip link add br0 type bridge"
            " && ip link add v0 type veth peer name v1",
        ],
        capture_output=True,
        text=True,
    )
    return f"this kernel refuses namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def image_environment():
    """Return the variables that the Dockerfile sets, and the paths of this machine's programs."""
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^ENV (.*)", text.rsplit("\nFROM ", 1)[1], re.MULTILINE)
    found = dict(pair.split("=", 1) for line in lines for pair in line.split())
    system = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    found["PATH"] = f"/opt/fedmvc/bin:{Path(sys.executable).parent}:{system}"
    found["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, _python_path())])
    found["OMP_NUM_THREADS"] = "1"
    return found


def _python_path():
    return os.environ.get("PYTHONPATH", "").split(os.pathsep)


class Namespaces:
    """Run a compose file's services in namespaces.

    Parameters
    ----------
    compose : dict
        From `compose_files.load`.
    folder : Path
        For volumes and roots; others must be able to enter it.
    programs : Path
        A folder with ``fedmvc-server`` and ``fedmvc-client``, seen as /opt/fedmvc/bin.
    """

    def __init__(self, compose, folder, programs):
        self.compose, self.folder, self.programs = compose, folder, programs
        self.addresses = {}
        holding = ["unshare", "--mount", "--net", "--propagation", "private"]
        self._holder = subprocess.Popen(
            [*holding, "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE
        )
        self._holder.stdout.readline()
        self._inside = ["nsenter", "--target", str(self._holder.pid), "--mount", "--net"]
        # a folder of its own for their names, seen by the holder only
        lines = ["mkdir -p /run/netns", "mount -t tmpfs tmpfs /run/netns"]
        for number, name in enumerate(compose["networks"]):
            lines += [f"ip link add br{number} type bridge", f"ip link set br{number} up"]
            self._wire(number, name, lines)
        for name, service in compose["services"].items():
            if service.get("network_mode") == "none":
                lines += [f"ip netns add {name}", f"ip -n {name} link set lo up"]
        for name, settings in compose["volumes"].items():
            path = self.volume(name)
            path.mkdir(parents=True)
            os.chown(path, 10001, 10001)  # as the image's mount points are
            options = (settings or {}).get("driver_opts")
            if options:
                kind = shlex.quote(options["type"])
                lines.append(f"mount -t {kind} -o {shlex.quote(options['o'])} {kind} {path}")
        done = subprocess.run(
            [*self._inside, "sh", "-euc", "\n".join(lines)], capture_output=True, text=True
        )
        if done.returncode:
            self.close()
            raise RuntimeError(done.stderr)

    def _wire(self, number, network, lines):
        members = [n for n, s in self.compose["services"].items() if network in networks(s)]
        for host, name in enumerate(members, start=2):
            if not any(line == f"ip netns add {name}" for line in lines):
                lines += [f"ip netns add {name}", f"ip -n {name} link set lo up"]
            address = f"10.77.{number}.{host}"
            self.addresses[name, network] = address
            lines += [
                f"ip link add v{number}.{host} type veth peer name eth{number} netns {name}",
                f"ip link set v{number}.{host} master br{number} up",
                f"ip -n {name} addr add {address}/24 dev eth{number}",
                f"ip -n {name} link set eth{number} up",
            ]

    def volume(self, name, subpath=""):
        """Folder of a named volume on this machine."""
        return self.folder / "volumes" / name / subpath

    def spawn(self, name, argv, log):
        """Start a service's command (its entry point included) and return the process."""
        service = self.compose["services"][name]
        root = self.folder / "roots" / name
        root.mkdir(parents=True, exist_ok=True)
        script = "\n".join([*self._root(name, service, root), self._enter(service, root, argv)])
        return subprocess.Popen(
            [
                *self._inside[:-1],
                f"--net=/proc/{self._holder.pid}/root/run/netns/{self._network(name)}",
                *("unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "sh", "-euc", script),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def probe(self, name, process, argv):
        """Run a command in a running service, as its user; return what it came to."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if not children:
            return subprocess.CompletedProcess(argv, 1, "", "the service has ended")
        service = self.compose["services"][name]
        entering = ["nsenter", "--target", children[0], "--mount", "--net", "--pid", "--root"]
        return subprocess.run(
            [*entering, *self._as_user(service), *argv],
            capture_output=True,
            text=True,
            timeout=60,
        )

    def close(self):
        """Let go of everything; the services must have ended."""
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()

    def _network(self, name):
        mode = self.compose["services"][name].get("network_mode", "")
        return mode.removeprefix("service:") if mode.startswith("service:") else name

    def _hosts(self, name):
        network_of = self._network(name)
        lines = ["127.0.0.1 localhost"]
        for network in networks(self.compose["services"][network_of]):
            for other, service in self.compose["services"].items():
                if network in networks(service):
                    names = [other, *networks(service)[network]]
                    lines.append(f"{self.addresses[other, network]} {' '.join(names)}")
        return "\n".join(lines) + "\n"

    def _root(self, name, service, root):
        yield f"mount -t tmpfs -o mode=755,size=1m tmpfs {root}"
        for link in ("bin", "sbin", "lib", "lib32", "lib64"):
            if (Path("/") / link).is_symlink():
                yield f"ln -s {os.readlink(f'/{link}')} {root}/{link}"
            elif (Path("/") / link).is_dir():
                yield from _bind(f"/{link}", f"{root}/{link}")
        for each in service["tmpfs"]:
            target, _, options = each.partition(":")
            yield f"mkdir -p {root}{target}"
            yield f"mount -t tmpfs -o {options},noexec,nosuid,nodev tmpfs {root}{target}"
        image = {"/usr", "/etc", sys.prefix, sys.base_prefix, str(ROOT), *_python_path(), nginx()}
        for path in sorted(filter(None, image)):
            yield from _bind(path, f"{root}{path}")
        yield from _bind(self.programs, f"{root}/opt/fedmvc/bin")
        hosts = self.folder / f"{name}.hosts"
        hosts.write_text(self._hosts(name))
        yield f"mount --bind {hosts} {root}/etc/hosts"
        yield f"mkdir {root}/proc {root}/dev"
        yield f"mount -t proc -o nosuid,nodev,noexec proc {root}/proc"
        yield f"mkdir -m 1777 {root}/dev/shm && mount -t tmpfs -o size=64m tmpfs {root}/dev/shm"
        for device in ("null", "zero", "full", "random", "urandom"):
            yield f"touch {root}/dev/{device} && mount --bind /dev/{device} {root}/dev/{device}"
        for number, stream in enumerate(("stdin", "stdout", "stderr")):
            yield f"ln -s /proc/self/fd/{number} {root}/dev/{stream}"
        for mount in mounts(self.compose, service):
            source = self.volume(mount.source, mount.subpath)
            if mount.kind == "bind":
                source = (DOCKER / mount.source).resolve()
            if mount.target == "/etc/nginx/fedmvc.conf":
                source = self._proxy_configuration(source)
                yield f"mount -t tmpfs tmpfs {root}/etc && mkdir {root}/etc/nginx"
            yield from _bind(source, f"{root}{mount.target}", mount.read_only)
        yield f"mount -o remount,ro {root}"

    def _proxy_configuration(self, path):
        # No name server here: the one name that nginx looks up becomes an address.
        text = path.read_text(encoding="utf-8")
        (address,) = [a for (name, _), a in self.addresses.items() if name == "server"]
        assert "$superlink server:8443;" in text
        mapped = self.folder / "nginx.conf"
        mapped.write_text(text.replace("$superlink server:8443;", f"$superlink {address}:8443;"))
        return mapped

    def _as_user(self, service):
        user, group = service["user"].split(":")
        rights = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        variables = {**image_environment(), **service.get("environment", {})}
        return [
            *("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *rights),
            *("env", "-i", "-C", service.get("working_dir", "/tmp")),
            *(f"{key}={value}" for key, value in variables.items()),
        ]

    def _enter(self, service, root, argv):
        argv = [nginx() if argv[0] == "nginx" else argv[0], *argv[1:]]
        as_user = [*self._as_user(service), "sh", "-c", _INIT, "init", *argv]
        return shlex.join(["exec", "chroot", str(root), *as_user])


def _bind(source, target, read_only=True):
    make = f"mkdir -p {target}"
    if Path(source).is_file():
        make = f"mkdir -p {Path(target).parent} && touch {target}"
    # Where it lies in another mount, it is there already, and may be read-only.
    yield f"test -e {target} || {{ {make}; }}"
    yield f"mount --bind {source} {target}"
    if read_only:
        yield f"mount -o remount,bind,ro {target}"
