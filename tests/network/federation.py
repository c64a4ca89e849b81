"""A real federation on the loopback interface: SuperLink, SuperNodes, executors and workers."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from configs.ports import listens
from fedmvc_server.flower_cli import FlowerCli, write_app_folder
from fedmvc_server.local_federation import free_port
from tests.network.credentials import write_credentials

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("st-anna", "charite-nord", "riverside")
BIN = Path(sys.executable).parent
WARM = "--warm"
CLIENT = "import sys; from fedmvc_client.cli import main; sys.exit(main())"


def site_worker_command(data: Path):
    """Return the commands of workers that serve the site folders in `data`."""

    def command(name: str, worker_socket: Path) -> list[str]:
        options = ["--socket", str(worker_socket), "--site", str(data / name)]
        return [sys.executable, "-c", CLIENT, "worker", *options]

    return command


def echo_worker_command(name: str, worker_socket: Path) -> list[str]:
    """Return the command of a worker that answers what it is asked."""
    return [sys.executable, "-m", "tests.network.echo_worker", name, str(worker_socket)]


@dataclass(frozen=True)
class Service:
    """How the sites' processes are started.

    Parameters
    ----------
    node : tuple of str
        Command of the SuperNode.
    executor : tuple of str or None
        Command of the executor; None leaves it to the SuperNode, which starts Flower's own.
    environment : dict
        Of both.
    """

    node: tuple[str, ...]
    executor: tuple[str, ...] | None
    environment: dict = field(default_factory=dict)


_PRODUCT = (sys.executable, "-c", CLIENT, "executor")
_FAST_NODE = (sys.executable, "-m", "fedmvc_client.fast_poll")
SERVICES = {
    "flower": Service((str(BIN / "flower-supernode"),), None),
    "shipped": Service((str(BIN / "flower-supernode"),), _PRODUCT),
    "fast": Service(_FAST_NODE, (*_PRODUCT, "--fast-poll")),
    "warm": Service(_FAST_NODE, (*_PRODUCT, "--fast-poll", WARM)),
    # for tests: a busy machine has better things to do than to look every 0.05 s
    "tests": Service(
        (sys.executable, "-m", "tests.network.supernode"),
        (sys.executable, "-m", "tests.network.executor", "executor", WARM),
        {"FEDMVC_FAST_POLL": "1.0", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.4"},
    ),
}


class Federation:
    """One SuperLink with TLS and node authentication; a SuperNode, executor and worker a site.

    Parameters
    ----------
    folder : Path
        Where keys, state and logs go.
    names : tuple of str
        The sites.
    cold : collection of str
        Sites whose executor starts Python for each message; elsewhere it forks, which is quicker.
    service : str
        One of `SERVICES`.
    """

    def __init__(self, folder, names=NAMES, *, cold=(), service="tests"):
        self.folder = folder
        self.names = names
        self.cold = cold
        self.service = SERVICES[service]
        self.worker_command = None
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes = {}
        self.runtimes = {name: f"127.0.0.1:{free_port()}" for name in names}
        # Short, because a socket's path has at most 100 bytes.
        self.sockets = Path(tempfile.mkdtemp(prefix="fm-", dir="/tmp"))
        self.sockets.chmod(0o750)
        for name in ("keys", "logs", "superlink", "cli"):
            (folder / name).mkdir()
        write_credentials(folder / "keys", names)
        self.ca = folder / "keys" / "ca.crt"
        self.cli = FlowerCli(folder / "cli", self.address, self.ca)

    def start(self):
        """Start everything but the workers; return the seconds that it took."""
        started = time.monotonic()
        self._start_superlink()
        with ThreadPoolExecutor() as executor:
            keys = [self.folder / "keys" / f"{name}.pub" for name in self.names]
            ids = executor.map(self.cli.register, keys, self.names)
            self.node_ids = dict(zip(self.names, ids, strict=True))
        for name in self.names:
            self.start_node(name)
            self.start_executor(name)
        self.await_nodes()
        return time.monotonic() - started

    def stop(self):
        """Stop every process that this object started."""
        for process in reversed(self.processes.values()):
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + 10
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
        for process in self.processes.values():
            _signal_group(process, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.sockets)

    def serve(self, worker_command):
        """Replace every site's worker.

        ``worker_command(name, socket)`` gives the command that serves a site's worker.
        """
        self._stop_workers()
        self.worker_command = worker_command
        for name in self.names:
            self._spawn_worker(name)
        for name in self.names:
            self._await_worker(name)

    def serve_folders(self, data):
        """Replace every site's worker by one for its folder in `data`.

        They start quicker than with ``serve(site_worker_command(data))`` and end together.
        """
        self._stop_workers()
        pairs = [(self.sockets / f"{name}.sock", data / name) for name in self.names]
        paths = [str(path) for pair in pairs for path in pair]
        self._spawn("workers", [sys.executable, "-m", "tests.network.site_workers", *paths])
        for name in self.names:
            self._await_worker(name)

    def _stop_workers(self):
        killed = [name for name in self.names if f"node-{name}" not in self.processes]
        assert not killed, f"nodes {killed} were killed by an earlier test: such tests come last"
        for process_name in ("workers", *(f"worker-{name}" for name in self.names)):
            process = self.processes.pop(process_name, None)
            if process is not None:
                _signal_group(process, signal.SIGTERM)
                process.wait(20)

    def start_worker(self, name):
        """Start a site's worker and wait until it listens."""
        self._spawn_worker(name)
        self._await_worker(name)

    def _spawn_worker(self, name):
        command = self.worker_command(name, self.sockets / f"{name}.sock")
        self._spawn(f"worker-{name}", command)

    def _await_worker(self, name):
        path = self.sockets / f"{name}.sock"
        _wait(lambda: _serves(path), 180, f"worker of {name}")

    def start_node(self, name):
        """Start a site's SuperNode."""
        host, port = self.runtimes[name].split(":")
        isolation = "subprocess" if self.service.executor is None else "process"
        self._spawn(
            f"node-{name}",
            [
                *self.service.node,
                *("--superlink", self.address),
                *("--root-certificates", str(self.ca)),
                *("--auth-supernode-private-key", str(self.folder / "keys" / f"{name}.key")),
                *("--isolation", isolation, "--host", host, "--port", port),
                *("--max-retries", "20"),
                *("--node-config", f'worker="{self.sockets}/{name}.sock" site="{name}"'),
            ],
            FLWR_HOME=str(self.home(f"node-{name}")),
            **self.service.environment,
        )

    def start_executor(self, name):
        """Start a site's executor, where its SuperNode does not."""
        if self.service.executor is None:
            return
        command = [each for each in self.service.executor if name not in self.cold or each != WARM]
        where = ["--runtime", self.runtimes[name], "--socket", f"{self.sockets}/{name}.sock"]
        self._spawn(
            f"executor-{name}",
            [*command, *where],
            FLWR_HOME=str(self.home(f"executor-{name}")),
            **self.service.environment,
        )

    def home(self, process_name):
        """Return the folder that Flower may write to in a process; it exists."""
        folder = self.folder / process_name
        folder.mkdir(exist_ok=True)
        return folder

    def await_nodes(self):
        """Wait until every SuperNode is connected."""
        _wait(lambda: set(self.cli.nodes().values()) == {"online"}, 60, "SuperNode")

    def kill(self, process_name):
        """Kill ``node-NAME``, ``executor-NAME`` or ``worker-NAME`` with all that it started."""
        process = self.processes.pop(process_name)
        _signal_group(process, signal.SIGKILL)
        process.wait()

    def log(self, process_name):
        """Return what a process has written so far."""
        return (self.folder / "logs" / f"{process_name}.log").read_text()

    def run_log(self, run_id):
        """Return what a run's ServerApp has said, which Flower keeps (``flwr log``)."""
        command = [str(BIN / "flwr"), "log", str(run_id), "--show"]
        environment = self.cli.environment()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    def run(self, run_config, *, timeout=120.0, **apps):
        """Run the installed apps (or the `apps` named) to their end; return Flower's status."""
        run_id = self.submit(run_config, **apps)
        deadline = time.monotonic() + timeout
        while True:
            status = self.cli.status(run_id)
            if status.phase == "finished":
                return status
            if time.monotonic() > deadline:
                self.cli.stop(run_id)
                raise TimeoutError(f"the run did not finish in {timeout:g} s; it is {status}")
            time.sleep(1.0)

    def submit(self, run_config, **apps):
        """Submit a run and return its id."""
        app_folder = Path(tempfile.mkdtemp(dir=self.folder))
        return self.cli.run(write_app_folder(app_folder, **apps), run_config)

    def _start_superlink(self):
        home = self.folder / "superlink"
        keys = self.folder / "keys"
        self._spawn(
            "superlink",
            [
                str(BIN / "flower-superlink"),
                *("--host", "127.0.0.1", "--port", str(self.port)),
                *("--ssl-ca-certfile", str(keys / "ca.crt")),
                *("--ssl-certfile", str(keys / "server.pem")),
                *("--ssl-keyfile", str(keys / "server.key")),
                "--enable-supernode-auth",
                *("--database", str(home / "state.db")),
                "--disable-runtime-dependency-installation",
            ],
            FLWR_HOME=str(home),
        )
        _wait(lambda: listens("127.0.0.1", self.port), 60, "SuperLink")

    def _spawn(self, name, command, **environment):
        # Flower starts its parts by name, and imports this source tree even if not installed.
        environment = {
            **self.cli.environment(),
            "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", "")]),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def _serves(path):
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(str(path)) == 0


def _wait(condition, timeout, what):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not start in {timeout} s")
        time.sleep(0.05)


def _signal_group(process, number):
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
