"""Run a plan on a SuperLink that is already up, and end as the run ended.

``flwr run`` exits 0 even when the run fails, so the outcome comes from the ServerApp's own
``result.json``, and from Flower's status where there is none. The ServerApp runs beside the
SuperLink: the plan travels as text, the output folder is a path of that machine.
"""

from __future__ import annotations

import logging
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from configs.connection import parse_address
from configs.endpoint import load_trust, untrusted
from configs.errors import ConfigError, InternalError, TransportError
from configs.plan import RunPlan
from fedmvc_server.artefacts import FOLDER as CHECKPOINT
from fedmvc_server.artefacts import replace_file, unwritable
from fedmvc_server.checkpoint import RUN_FILE, RunFile
from fedmvc_server.flower_cli import (
    CLIENT_APP,
    SERVER_APP,
    FlowerCli,
    RunStatus,
    write_app_folder,
)
from fedmvc_server.run_results import Progress, RunResults

__all__ = ["FAST_POLL_S", "check_reachable", "resume_deployed", "run_deployed"]

CONNECT_TIMEOUT = 5.0
"""Seconds to try to reach the SuperLink."""
START_TIMEOUT = 180.0
"""Seconds until a submitted run must be running."""
FAST_POLL_S = 0.01
"""Seconds between two looks for replies with ``--fast-poll``, at first."""
SILENCE_TIMEOUT = 120.0
"""Seconds the SuperLink may be silent before the run is given up."""
log = logging.getLogger("fedmvc")

# Seconds between two questions for Flower's status, which cost a process each; fewer once it runs.
_STATUS_PERIOD, _RUNNING_PERIOD = 5.0, 20.0
_FAST_LOOK_S = 0.1
_RESULT_GRACE = 5.0
_PROBE, _ROOM = ".room", 16_384  # a file as large as a result
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")
_PROBE_S = 0.5
_RESUME = "'fedmvc-server resume' goes on after its last exchange"
_WORD_EVERY = 20.0  # seconds between two words on a run that waits


def run_deployed(
    plan_path: str | Path,
    server: str,
    ca: str | Path | None,
    out: str | Path,
    *,
    poll_s: float = 1.0,
    fast_poll: bool = False,
    on_progress: Progress | None = None,
    server_app: str = SERVER_APP,
    client_app: str = CLIENT_APP,
) -> int:
    """Run a plan on a SuperLink and wait for its end.

    Parameters
    ----------
    plan_path : str or Path
        The plan, a file of this machine.
    server : str
        The SuperLink's ``HOST:PORT``.
    ca : str, Path or None
        CA certificate of the SuperLink; None only for one on this machine without TLS.
    out : str or Path
        Where the ServerApp writes its results, as the SuperLink's machine sees it.
    poll_s : float
        Seconds between two looks at `out`.
    fast_poll : bool
        Look for the sites' replies, and at `out`, more often.
    on_progress : callable, optional
        Called with each new row of ``rounds.csv`` (column name to text).
    server_app, client_app : str
        ``module:attribute`` of the apps to run.

    Returns
    -------
    int
        Exit code of the run: 0 if it completed, else the code in ``result.json``.

    Raises
    ------
    ConfigError
        If the plan, the address or the CA certificate is unusable.
    TransportError
        If the SuperLink cannot be reached, stops answering, never starts the run, somebody
        stopped the run, or it was lost after it had begun.
    InternalError
        If the run failed and left nothing at all.
    KeyboardInterrupt
        After Ctrl-C, when the run has been stopped.
    """
    plan = RunPlan.load(Path(plan_path)).canonical()
    config = {"plan": plan, "data": "", "resume": ""}
    if fast_poll:
        poll_s, config["poll"] = min(poll_s, _FAST_LOOK_S), str(FAST_POLL_S)
    return _deploy(config, server, ca, out, poll_s, on_progress, server_app, client_app)


def resume_deployed(
    out: str | Path,
    server: str,
    ca: str | Path | None,
    *,
    poll_s: float = 1.0,
    on_progress: Progress | None = None,
    server_app: str = SERVER_APP,
    client_app: str = CLIENT_APP,
) -> int:
    """Go on with the run in a results folder and wait for its end.

    What Flower still holds for its last part is ended first: the sites would wait for it.

    Parameters are those of `run_deployed`, and so is what it returns and raises.
    """
    config = {"plan": "", "data": "", "resume": "yes"}
    before = RunFile.read(Path(out)).flower_run_id
    return _deploy(config, server, ca, out, poll_s, on_progress, server_app, client_app, before)


def _deploy(
    config: dict[str, str],
    server: str,
    ca: str | Path | None,
    out: str | Path,
    poll_s: float,
    on_progress: Progress | None,
    server_app: str,
    client_app: str,
    before: str | None = None,
) -> int:
    ca_path = None if ca is None else Path(ca).absolute()
    check_reachable(server, ca_path)
    results = RunResults(Path(out).absolute(), on_progress, (server, ca_path))
    with tempfile.TemporaryDirectory(prefix="fedmvc-run-") as temporary:
        home, app_folder = Path(temporary) / "home", Path(temporary) / "app"
        home.mkdir()
        app_folder.mkdir()
        write_app_folder(app_folder, server_app=server_app, client_app=client_app)
        flower = FlowerCli(home, server, ca_path)
        if before is not None:
            _end_last_part(flower, before)
        run_id = None
        try:
            with _held_back():  # a run without an id could not be stopped
                run_id = flower.run(app_folder, {**config, "out": str(results.folder)})
            status = _await_end(flower, run_id, server, results, poll_s)
        except KeyboardInterrupt:
            if run_id is not None:
                with suppress(TransportError):  # a SuperLink that is down stops nothing
                    flower.stop(run_id)
            raise
    code = results.exit_code()
    return code if code is not None else _explain(status, results.folder, server)


@contextmanager
def _held_back() -> Iterator[None]:
    """Let Ctrl-C, and SIGTERM where it does the same, wait for the end of the block."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        log.info("the run is being submitted and is stopped when that is done")

    earlier = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):  # what is ignored, or ends this process at once, stays so
                earlier[number] = handler
                signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    for given in came:
        earlier[signal.Signals(given)](given, None)


def _end_last_part(flower: FlowerCli, run_id: str) -> None:
    """Let Flower end a run whose ServerApp is gone: it would miss that after a minute only."""
    try:
        flower.stop(int(run_id))
    except (TransportError, ValueError) as error:  # it has ended, or the SuperLink is another
        log.debug("%s", error)


def check_reachable(
    server: str, ca: Path | None, *, timeout_s: float | None = None
) -> tuple[str, int]:
    """Connect to a SuperLink, with TLS where a CA is given, and close again.

    Parameters
    ----------
    server : str
        ``HOST:PORT``, ``[IPV6]:PORT``.
    ca : Path or None
        CA certificate; None only for a SuperLink on this machine without TLS.
    timeout_s : float, optional
        Seconds to try (default `CONNECT_TIMEOUT`).

    Returns
    -------
    host : str
        The host.
    port : int
        The port.

    Raises
    ------
    ConfigError
        If the address or the CA certificate is unusable, or missing for a SuperLink with TLS.
    TransportError
        If nobody answers, or its certificate has expired, is not from this CA or not for this host.
    """
    timeout_s = CONNECT_TIMEOUT if timeout_s is None else timeout_s
    host, port = parse_address(server)
    if ca is None and host not in _THIS_MACHINE:
        raise ConfigError(
            f"the SuperLink at {server} is on another machine and needs TLS: give its --ca"
        )
    trust = None if ca is None else load_trust(ca)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            _handshake(host, port, trust, max(0.1, deadline - time.monotonic()))
            if trust is None:
                _refuse_tls(host, port, server)
            return host, port
        except ssl.SSLCertVerificationError as error:
            assert ca is not None
            raise untrusted(error, server, host, ca) from error
        except OSError as error:
            if time.monotonic() >= deadline:
                raise TransportError(
                    f"no SuperLink answers at {server} (tried for {timeout_s:g} s): "
                    "check the address and that 'fedmvc-server start' runs there",
                    local_detail=str(error),
                ) from error
            time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))


def _await_end(
    flower: FlowerCli, run_id: int, server: str, results: RunResults, poll_s: float
) -> RunStatus:
    submitted = heard = time.monotonic()
    next_status, next_word = submitted, submitted + _WORD_EVERY
    while True:
        results.note_server()
        results.show_new_rounds()
        if results.exit_code() is not None:
            results.show_new_rounds()
            return RunStatus("finished", "completed", "")
        now = time.monotonic()
        if now >= next_word:
            next_word = now + _WORD_EVERY
            words = results.waiting(_WORD_EVERY)
            if not words and not results.rows_shown:
                words = (
                    f"no round after {now - submitted:.0f} s: waiting for the sites that "
                    "quorum.min_sites asks for, or for what they do before round 1"
                )
            if words:
                log.info("%s", words)
        if now >= next_status:
            try:
                status = flower.status(run_id)
                heard = time.monotonic()
            except TransportError as error:
                if time.monotonic() - heard > SILENCE_TIMEOUT:
                    raise TransportError(
                        f"the SuperLink at {server} has not answered for {SILENCE_TIMEOUT:g} s: "
                        "the run may go on without this command; look at its output folder",
                        local_detail=error.local_detail,
                    ) from error
                status = None
            if status is not None and status.phase == "finished":
                _await_result(results, poll_s)
                return status
            waiting = status is not None and status.phase in ("pending", "starting")
            if waiting and now - submitted > START_TIMEOUT:
                flower.stop(run_id)
                raise TransportError(
                    f"the SuperLink at {server} did not start the run in {START_TIMEOUT:g} s: "
                    "check that its executor is running"
                )
            running = status is not None and status.phase == "running"
            period = _RUNNING_PERIOD if running else _STATUS_PERIOD
            next_status = time.monotonic() + max(period, poll_s)
        time.sleep(poll_s)


def _await_result(results: RunResults, poll_s: float) -> None:
    # A shared folder may show the file a little later than Flower the status.
    deadline = time.monotonic() + _RESULT_GRACE
    while results.exit_code() is None and time.monotonic() < deadline:
        time.sleep(min(poll_s, 0.2))
    results.show_new_rounds()


def _explain(status: RunStatus, folder: Path, server: str) -> int:
    begun = (folder / CHECKPOINT).is_dir()
    if status.outcome == "stopped":
        raise TransportError(
            "the run was stopped from outside before it left a result: "
            + (_RESUME if begun else "start it again with 'fedmvc-server run'"),
            local_detail=status.details,
        )
    if status.outcome == "completed":
        raise TransportError(
            "the run completed but its result is not in the output folder of this machine: "
            "look for it on the SuperLink's machine",
            local_detail=str(folder),
        )
    if (folder / RUN_FILE).is_file() or parse_address(server)[0] in _THIS_MACHINE:
        _check_room(folder)
    sentence = "the run failed before it left a result: look at the SuperLink's log"
    if begun:  # its process was lost
        raise TransportError(f"{sentence}; {_RESUME}", local_detail=status.details)
    raise InternalError(
        f"{sentence}, and see that the SuperLink's user may write the results folder",
        local_detail=status.details,
    )


def _check_room(folder: Path) -> None:
    """Raise where a run could leave no result because its folder takes nothing more.

    Raises
    ------
    ConfigError
    """
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    probe = folder / _PROBE
    replace_file(probe, bytes(_ROOM))
    probe.unlink()
    if new:
        folder.rmdir()


def _handshake(host: str, port: int, trust: ssl.SSLContext | None, timeout: float) -> None:
    with socket.create_connection((host, port), timeout=timeout) as connection:
        if trust is not None:
            with trust.wrap_socket(connection, server_hostname=host):
                pass


def _refuse_tls(host: str, port: int, server: str) -> None:
    """Refuse to talk in the clear to a SuperLink that speaks TLS.

    Raises
    ------
    ConfigError
    """
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        _handshake(host, port, anybody, _PROBE_S)
    except OSError:  # it does not
        return
    raise ConfigError(
        f"the SuperLink at {server} speaks TLS: give its CA certificate with --ca (ca.crt of the "
        "server's kit)"
    )
