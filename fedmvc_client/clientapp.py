"""The process of one message: Flower's ``flwr-clientapp`` that looks at the bundle first.

Flower would unpack the bundle, put it on ``sys.path`` and import what it names. Here it is only
read: one that `fedmvc_client.bundle.check_bundle` takes names the installed `fedmvc_client.app`, so
that is what runs, and nothing of the bundle is ever written or imported. Of another the server gets
an error without a text, the site's worker a line for its audit log.

Run as ``python -P -m fedmvc_client.clientapp SOCKET ARGUMENTS...``, or forked with `run`.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.supernode.runtime import run_clientapp

from configs.console import set_up_logging
from configs.errors import FedMVCError
from configs.flower_version import check_flower
from configs.flower_waits import ask_again_soon
from fedmvc_client.app import app
from fedmvc_client.bundle import check_bundle
from fedmvc_client.relay import SocketRelay
from strategies.messages import BundleRefused, to_bytes

__all__ = ["REPLACED", "run"]

REPLACED = ("install_from_fab", "get_load_client_app_fn")
"""What is replaced in Flower's module `run_clientapp`.

Its command ``flwr-clientapp`` is left out: it lies in a package that imports the whole SuperNode,
which takes as long as everything else here.
"""

log = logging.getLogger("fedmvc.site")

_REPORT_S = 20.0  # the worker may be computing for another run


def run(socket: str, arguments: Sequence[str]) -> None:
    """Answer one message; ends this process as Flower does.

    Parameters
    ----------
    socket : str
        The worker's, for the report of a refused bundle.
    arguments : sequence of str
        As ``flwr-clientapp`` takes them.

    Raises
    ------
    SystemExit
        At the end.
    ProtocolError
        Where Flower is another version.
    """
    check_flower()
    set_up_logging()
    logging.getLogger("flwr").propagate = False  # it has a console of its own
    ask_again_soon()

    def look(fab: bytes, **_: object) -> Path:
        _look(socket, fab)
        return Path()

    flower: Any = run_clientapp
    flower.install_from_fab = look
    flower.get_load_client_app_fn = lambda **_: _installed_app
    flower.run_clientapp(**vars(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    """Read what a `fedmvc_client.executor.Launcher` says."""
    parser = argparse.ArgumentParser("fedmvc_client.clientapp")
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--parent-pid", type=int)
    return parser


def _look(socket: str, fab: bytes) -> None:
    """Raise what Flower turns into its error 1, "cannot load", where the bundle is not taken."""
    try:
        check_bundle(fab)
    except FedMVCError as error:
        digest = hashlib.sha256(fab).hexdigest()
        log.error(
            "%s", error.public_message, extra={"local_detail": f"bundle {digest} was not run"}
        )
        _report(socket, BundleRefused(digest, error.code, error.public_message))
        raise LoadClientAppError("the bundle was refused") from None


def _report(socket: str, refused: BundleRefused) -> None:
    try:
        SocketRelay(socket).ask(to_bytes(refused), _REPORT_S)
    except FedMVCError as error:  # it is refused all the same
        log.error("%s", error.public_message, extra={"local_detail": error.local_detail})


def _installed_app(*_: str) -> ClientApp:
    return app


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
