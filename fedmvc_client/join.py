"""``fedmvc-client join``: a site's SuperNode, kept running until it is refused or stopped.

Before each start the server's certificate, this machine's clock and the node key are checked, so
that a refusal has a cause. A SuperNode that died is started again; its key is refused until the
server has missed its heartbeats for 60 s, so that is waited for.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.connection import Connection, parse_address
from configs.endpoint import Unreachable, check_clock, reach
from configs.errors import ConfigError, FedMVCError, TransportError
from configs.flower_version import check_flower
from configs.ports import refuse_taken_port
from configs.processes import Child, StopSignals, end_all, flower_environment, go_direct, only_one
from configs.site import SiteConfig
from fedmvc_client.join_refusals import (
    OTHER_RUNTIME,
    KeyRefused,
    connected_node,
    plain,
    translate,
)
from fedmvc_client.node_key import NodeKey, Standing, ask_standing

__all__ = ["RUNTIME", "JoinSettings", "join", "supernode_command"]

log = logging.getLogger("fedmvc.site")

#: Where a SuperNode serves its executor if nothing else is said.
RUNTIME = "127.0.0.1:9094"
#: Seconds for which a key may be refused as online: twice Flower's heartbeat of 30 s, and some.
KEY_WINDOW_S = 75.0
#: Seconds between two tries in that window.
KEY_RETRY_S = 4.0
#: Seconds that a SuperNode gets to sign off.
END_S = 8.0
#: Seconds before a SuperNode that died is started again: doubled each time, up to the last.
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 30.0
#: Seconds between two words on a server that does not answer.
WORD_EVERY_S = 30.0
_LINES = 40  # of a SuperNode's output, of which the last say why it ended
_TURNED_AWAY = 3  # times in a row without a cause that can be named


@dataclass(frozen=True)
class JoinSettings:
    """What a SuperNode is started with.

    Parameters
    ----------
    site : str
        The site's registered name.
    server : str
        ``HOST:PORT`` of the SuperLink, or of the proxy before it.
    ca, key : Path
        The CA certificate and the node key.
    runtime : str
        ``HOST:PORT`` at which the executor finds the SuperNode.
    socket : Path
        The worker's socket, which the executor opens.
    home : Path
        Folder for Flower's own files and ours.
    fast_poll : bool
        Start the SuperNode with a shorter idle wait.
    """

    site: str
    server: str
    ca: Path
    key: Path
    runtime: str
    socket: Path
    home: Path
    fast_poll: bool = False

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        server: str | None = None,
        runtime: str = RUNTIME,
        socket: Path | None = None,
        fast_poll: bool = False,
    ) -> JoinSettings:
        """Read ``site.toml`` and ``connection.toml`` of a site's folder.

        Parameters
        ----------
        folder : Path
            The site's folder.
        server : str, optional
            In place of the address in ``connection.toml``.
        runtime : str
            As the attribute.
        socket : Path, optional
            By default ``run/worker.sock`` in the folder.
        fast_poll : bool
            As the attribute.

        Raises
        ------
        ConfigError
            If a file or an address is unusable, or the kit is another site's.
        """
        folder = folder.absolute()
        config, connection = SiteConfig.load(folder), Connection.load(folder)
        connection.check_site(config.name)
        address = server or connection.server
        parse_address(address)
        parse_address(runtime, "the runtime address")
        path = (socket or folder / "run" / "worker.sock").absolute()
        if any(sign in str(path) for sign in '"\\\n'):
            raise ConfigError(
                "the socket's path has a quote, a backslash or a line break, which Flower cannot "
                "pass on: give another --socket",
                local_detail=str(path),
            )
        return cls(
            site=config.name,
            server=address,
            ca=folder / connection.ca,
            key=folder / config.keys.node,
            runtime=runtime,
            socket=path,
            home=folder / "state" / "flower",
            fast_poll=fast_poll,
        )


def supernode_command(settings: JoinSettings) -> list[str]:
    """Return the command of a site's SuperNode.

    Its ClientApp runs in another process (``fedmvc-client executor``), never in one that the
    SuperNode starts: that one would see the node key and have a way out of the house.
    """
    host, port = parse_address(settings.runtime)
    module = "fast_poll" if settings.fast_poll else "supernode"
    return [
        *(sys.executable, "-m", f"fedmvc_client.{module}"),
        *("--superlink", settings.server),
        *("--root-certificates", str(settings.ca)),
        *("--auth-supernode-private-key", str(settings.key)),
        *("--isolation", "process"),
        *("--host", host, "--port", str(port)),
        *("--node-config", f'worker="{settings.socket}" site="{settings.site}"'),
    ]


def join(settings: JoinSettings, *, command: Sequence[str] | None = None) -> None:
    """Keep a site's SuperNode running until SIGTERM or SIGINT.

    Parameters
    ----------
    settings : JoinSettings
        What it is started with.
    command : sequence of str, optional
        In place of `supernode_command`.

    Raises
    ------
    ConfigError
        If the key, the CA certificate or an address is unusable, or the runtime's port is taken.
    TransportError
        If the server refuses the site (exit code 7): unknown or revoked key, another SuperNode with
        it, a certificate that is not right, a clock that is off.
    ProtocolError
        If server and site have different releases of flwr (exit code 8).
    """
    check_flower()
    key = NodeKey.load(settings.key)
    taken = (
        f"another 'fedmvc-client join' of site '{settings.site}' runs with this key (process "
        "{pid}): one SuperNode a site, so stop that one first"
    )
    with only_one(settings.home / "join.lock", taken), StopSignals() as stop:
        _Joining(settings, key, stop, command or supernode_command(settings)).run()


class _Joining:
    """One ``join``: its SuperNodes one after the other, and what it knows of them."""

    def __init__(
        self, settings: JoinSettings, key: NodeKey, stop: StopSignals, command: Sequence[str]
    ) -> None:
        self._settings = settings
        self._key = key
        self._stop = stop
        self._command = command
        self._known = settings.home / "known.txt"  # the key that the server once let in
        self._environment = flower_environment(settings.home)
        go_direct()
        self._pause = FIRST_PAUSE_S
        self._busy_until: float | None = None
        self._turned_away = 0

    def run(self) -> None:
        while True:
            self._await_admission()
            if self._stop.given:
                return
            host, port = parse_address(self._settings.runtime)
            who = f"the SuperNode of site '{self._settings.site}'"
            refuse_taken_port(host, port, who, OTHER_RUNTIME)
            status, output = self._serve()
            if self._stop.given:
                return
            self._look_into(status, output)

    def _await_admission(self) -> None:
        """Return when the server would let the SuperNode in, or a stop was asked for."""
        server, pause, next_word = self._settings.server, 1.0, time.monotonic()
        while not self._stop.given:
            try:
                reached = reach(server, self._settings.ca)
            except Unreachable as error:
                if time.monotonic() >= next_word:
                    log.warning("%s; trying again", error.public_message)
                    next_word = time.monotonic() + WORD_EVERY_S
                self._stop.wait(pause)
                pause = min(2 * pause, 10.0)
                continue
            if reached.ahead_s is not None:
                check_clock(reached.ahead_s, server)
            self._check_standing()
            return

    def _check_standing(self) -> None:
        site, server = self._settings.site, self._settings.server
        standing = ask_standing(server, self._settings.ca, self._key)
        if standing is Standing.UNKNOWN:
            named = f"the node key of site '{site}' ({self._key.fingerprint})"
            if self._was_known():
                raise TransportError(
                    f"the server at {server} no longer knows {named}: the operator revoked or "
                    "replaced it, or the server lost its database; ask for the new key or to be "
                    "registered again"
                )
            raise TransportError(
                f"the server at {server} does not know {named}: let the operator register it "
                "('fedmvc-server register'), or take the key from the newest kit"
            )
        if standing is Standing.REJECTED:
            raise TransportError(
                f"the server at {server} takes no signature of site '{site}', which signs with "
                "this machine's clock: set the clocks of both machines (NTP)"
            )

    def _serve(self) -> tuple[int, str]:
        """Run one SuperNode to its end; return its exit status and its last lines."""
        settings = self._settings
        child = Child("SuperNode", self._command, self._environment, settings.home, read=True)
        lines: deque[str] = deque(maxlen=_LINES)
        try:
            while not self._stop.given:
                if not self._stop.wait(1.0, child.output):
                    if child.ended() is not None:
                        break  # a process that it left behind may keep the pipe open
                    continue
                written = child.lines()
                if written is None:
                    break
                for line in map(plain, written):
                    lines.append(line)
                    if self._busy_until is None:  # else the same words again, at each try
                        _show(line)
                    node = connected_node(line)
                    if node is not None:
                        self._note_connection(node)
        finally:
            if self._stop.given:
                log.info("site '%s': the SuperNode is signing off", settings.site)
                end_all([child], END_S)
        status = self._await_end(child)
        child.clear_away()
        return status, "\n".join(lines)

    def _await_end(self, child: Child) -> int:
        deadline = time.monotonic() + END_S
        while child.ended() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        status = child.ended()
        return -9 if status is None else status

    def _note_connection(self, node: str) -> None:
        with contextlib.suppress(OSError):  # only a later refusal's words depend on it
            self._known.write_text(self._key.fingerprint + "\n", encoding="ascii")
        self._pause, self._busy_until, self._turned_away = FIRST_PAUSE_S, None, 0
        log.info(
            "site '%s' is connected to %s as node %s",
            *(self._settings.site, self._settings.server, node),
        )

    def _was_known(self) -> bool:
        try:
            return self._known.read_text(encoding="ascii").strip() == self._key.fingerprint
        except OSError:
            return False

    def _look_into(self, status: int, output: str) -> None:
        """Raise what ended a SuperNode for good, else wait until it may be started again."""
        settings = self._settings
        refusal = translate(output, settings.site, settings.server, settings.runtime)
        if isinstance(refusal, KeyRefused):
            self._wait_for_the_key(refusal)
            return
        if self._busy_until is not None:
            for line in output.splitlines():
                _show(line)
        if refusal is not None:
            raise refusal
        self._turned_away = self._turned_away + 1 if status == 0 else 0
        if self._turned_away == _TURNED_AWAY:
            raise TransportError(
                f"the server at {settings.server} turned the SuperNode of site '{settings.site}' "
                f"away {_TURNED_AWAY} times: see its log, and run 'fedmvc-client doctor'"
            )
        log.warning(
            "site '%s': the SuperNode ended (%s): it is started again in %.0f s",
            *(settings.site, _ending(status), self._pause),
        )
        self._stop.wait(self._pause)
        self._pause = min(2 * self._pause, LAST_PAUSE_S)

    def _wait_for_the_key(self, refusal: FedMVCError) -> None:
        now = time.monotonic()
        if self._busy_until is None:
            self._busy_until = now + KEY_WINDOW_S
            log.warning(
                "site '%s': for the server another SuperNode with this key is online; one that "
                "died counts so for 60 s: trying for %.0f s",
                *(self._settings.site, KEY_WINDOW_S),
            )
        if now >= self._busy_until:
            raise TransportError(
                f"another SuperNode with the node key of site '{self._settings.site}' is online "
                f"at {self._settings.server} (tried for {KEY_WINDOW_S:.0f} s; one that died "
                "counts for 60 s): stop the other 'join', or let the operator rotate the key",
                local_detail=refusal.public_message,
            )
        self._stop.wait(KEY_RETRY_S)


def _show(line: str) -> None:
    print(f"  supernode: {line}", file=sys.stderr)


def _ending(status: int) -> str:
    if status < 0:
        return f"signal {-status}"
    return "turned away by the server" if status == 0 else f"exit status {status}"
