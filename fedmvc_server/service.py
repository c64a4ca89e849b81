"""``fedmvc-server start``: the SuperLink and its executor, kept running until stopped.

Each is started again when it dies, the other meanwhile goes on: a run survives a SuperLink that is
back within seconds. SIGTERM or Ctrl-C ends both and all that they started.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.errors import ConfigError, TransportError
from configs.flower_version import check_flower
from configs.ports import listens, refuse_taken_port
from configs.processes import Child, StopSignals, end_all, only_one
from fedmvc_server.kit import ServerKit
from fedmvc_server.superlink import Listening, environment, superexec_command, superlink_command

__all__ = ["Service", "start", "supervise"]

log = logging.getLogger("fedmvc")

#: Seconds that the children get to end.
END_S = 8.0
#: Seconds before a child that died is started again: doubled each time, up to the last.
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 30.0
#: A child that ran so many seconds was up: the pause is short again.
UP_S = 10.0
#: Starts in a row that ended before that until the service gives up.
MOST_FALSE_STARTS = 5
_LOOK_S = 0.2


@dataclass(frozen=True)
class Service:
    """One child to keep running.

    Parameters
    ----------
    name : str
        What messages call it.
    command : sequence of str
    environment : mapping of str to str
    folder : Path
        Its working folder.
    when : callable
        Says whether it may be started now.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    when: Callable[[], bool] = lambda: True


def start(kit: ServerKit, host: str, port: int | None, *, behind_proxy: bool = False) -> None:
    """Run the SuperLink of a kit and its executor until SIGTERM or SIGINT.

    Parameters
    ----------
    kit : ServerKit
        The server's kit; its folder ``state`` is made.
    host, port, behind_proxy
        As `Listening.choose` takes them.

    Raises
    ------
    ConfigError
        If the kit or the address is unusable, or the port is taken.
    TransportError
        If another ``start`` runs with this kit, or a child ends at once each time.
    """
    check_flower()
    certificate = kit.certificate_facts()
    kit.check_secrets()
    if certificate.days_left < 0:
        raise ConfigError(
            f"the server's certificate expired on {certificate.not_after:%Y-%m-%d}, and no site "
            "would connect: renew it with 'fedmvc-server renew'"
        )
    listening = Listening.choose(kit, certificate, host, port, behind_proxy)
    taken = (
        "another 'fedmvc-server start' runs with this kit (process {pid}): stop it first, or use "
        "another kit"
    )
    with only_one(kit.state / "start.lock", taken):
        way_out = "give another --host or --port, or stop what listens there"
        refuse_taken_port(listening.host, listening.port, "the SuperLink", way_out)
        surroundings = environment(kit, listening)
        supervise(
            [
                Service("SuperLink", superlink_command(kit, listening), surroundings, kit.folder),
                Service(
                    "executor",
                    superexec_command(kit, listening),
                    surroundings,
                    kit.folder,
                    lambda: listens(listening.local, listening.port),
                ),
            ],
            ready=lambda: log.info(
                "the SuperLink answers at %s, for the sites of federation '%s'; Ctrl-C ends it",
                *(listening.address, kit.federation().name),
            ),
        )


def supervise(services: Sequence[Service], *, ready: Callable[[], None] = lambda: None) -> None:
    """Keep children running until SIGTERM or SIGINT, then end them and what they started.

    Parameters
    ----------
    services : sequence of Service
        Started in this order.
    ready : callable
        Called once, when the last of them was started.

    Raises
    ------
    TransportError
        If one of them ends too soon `MOST_FALSE_STARTS` times in a row.
    """
    kept = [_Kept(service) for service in services]
    try:
        with StopSignals() as stop:
            while not stop.given:
                for each in kept:
                    each.look()
                if ready is not None and all(each.child is not None for each in kept):
                    ready()
                    ready = _nothing
                stop.wait(_LOOK_S)
    finally:
        end_all([each.child for each in kept if each.child is not None], END_S)
    log.info("%s ended", " and ".join(service.name for service in services))


class _Kept:
    """A service and its present child."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.child: Child | None = None
        self._pause = FIRST_PAUSE_S
        self._not_before = 0.0
        self._false_starts = 0

    def look(self) -> None:
        """Start the child where there is none, and note where it ended."""
        if self.child is None:
            if time.monotonic() >= self._not_before and self.service.when():
                service = self.service
                self.child = Child(
                    service.name, service.command, service.environment, service.folder
                )
            return
        status = self.child.ended()
        if status is not None:
            up = time.monotonic() - self.child.started
            self.child.clear_away()
            self.child = None
            self._put_off(status, up)

    def _put_off(self, status: int, up_s: float) -> None:
        name = self.service.name
        if up_s >= UP_S:
            self._pause, self._false_starts = FIRST_PAUSE_S, 0
        else:
            self._false_starts += 1
        if self._false_starts == MOST_FALSE_STARTS:
            raise TransportError(
                f"the {name} ended {MOST_FALSE_STARTS} times within {UP_S:g} s of its start (last "
                f"with {_ending(status)}): its own words above say why"
            )
        log.warning(
            "the %s ended (%s) after %.0f s: it is started again in %.1f s",
            *(name, _ending(status), up_s, self._pause),
        )
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LAST_PAUSE_S)


def _ending(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _nothing() -> None:
    return None
