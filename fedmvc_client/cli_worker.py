"""``fedmvc-client worker``: the process that has the data."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from configs.errors import FedMVCError
from configs.processes import only_one
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_client.cli_options import SiteOption

__all__ = ["worker"]

log = logging.getLogger("fedmvc.site")


def worker(
    socket: Annotated[Path, typer.Option(help="Unix socket to serve (made with mode 0660).")],
    site: SiteOption = Path("."),
    allow_uid: Annotated[
        list[int] | None,
        typer.Option(
            min=0, help="Numeric id of a user that may ask, beside this one; repeat for several."
        ),
    ] = None,
) -> None:
    """Serve this site's data to its own ClientApp over a unix socket until stopped.

    The worker is the only process that reads data and has no network. Give the same --socket to
    'fedmvc-client executor', whose processes ask it, and to 'fedmvc-client join', whose SuperNode
    tells them where it is. One worker a site: a second one is refused (exit code 7). Data that no
    run could start on are said at the start, and may be put right while the worker serves.
    """
    from fedmvc_client.socket_server import serve_worker
    from fedmvc_client.worker import folder_worker

    name = SiteConfig.load(site).name
    taken = (
        f"another 'fedmvc-client worker' of site '{name}' runs in this folder (process {{pid}}): "
        "one worker a site, so stop that one first"
    )
    with only_one(site / "state" / "worker.lock", taken):
        served = folder_worker(site)
        _look_at_data(site)
        ended = serve_worker(
            served,
            socket,
            allowed_uids=allow_uid or (),
            ready=lambda: log.info(
                "site '%s': the worker answers at %s; Ctrl-C ends it", served.site, socket
            ),
        )
    if ended:
        log.info("site '%s': the worker has ended", served.site)
        return
    log.warning("site '%s': the worker has ended and broke off a request", served.site)
    logging.shutdown()
    os._exit(0)  # an exit that waits for the request's threads would last as long as it does


def _look_at_data(site: Path) -> None:
    """Warn where a run would be refused for the data: they may be put right while it serves."""
    from fedmvc_client.data import load_site
    from fedmvc_client.policy import enforce_cohort

    config = SiteConfig.load(site)
    try:
        data = load_site(site, DataSchema.load(site / "schema.toml"), config)
        enforce_cohort(config.name, config.policy, len(data.ids))
    except FedMVCError as error:
        log.warning(
            "no run can start on these data yet: %s Put it right and look with 'fedmvc-client "
            "check'; the worker answers meanwhile",
            f"{error.public_message.removesuffix('.')}.",
            extra={"local_detail": error.local_detail},
        )
