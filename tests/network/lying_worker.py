"""A site's worker whose sums of round 2 are not what was asked, in the way that a file names."""

import dataclasses
import logging
import sys
from pathlib import Path

import numpy as np

from fedmvc_client.socket_server import serve_worker
from fedmvc_client.worker import folder_worker
from strategies.messages import RoundRequest, from_bytes, to_bytes

ROUND = 2


def _sums(reply, **changes):
    statistics = dataclasses.replace(reply.statistics, **changes)
    return to_bytes(dataclasses.replace(reply, statistics=statistics))


def _first_view(reply, change):
    first, *others = reply.statistics.numerator
    return _sums(reply, numerator=(change(first.copy()), *others))


def _not_a_number(sums):
    sums[0, 0, 0] = np.nan
    return sums


def _fewer_clusters(reply):
    """Answer as a plan of fewer clusters would have it."""
    found = reply.statistics
    return _sums(
        reply,
        numerator=tuple(each[:, :-1] for each in found.numerator),
        mass=tuple(each[:, :-1] for each in found.mass),
    )


#: What is sent in place of a reply, by name, and words of the sentence that the server has for it.
LIES = {
    "NaN": (lambda reply: _first_view(reply, _not_a_number), "a number that is not finite"),
    "1e300": (lambda reply: _first_view(reply, lambda sums: sums * 0 + 1e300), "above what"),
    "64 MB": (
        lambda reply: _first_view(reply, lambda sums: np.ones((1, 4, 2_000_000))),
        "have shapes",
    ),
    "another shape": (lambda reply: _sums(reply, dispersion=np.ones((1, 7))), "have shapes"),
    "another plan's clusters": (_fewer_clusters, "have shapes"),
    "another run": (
        lambda reply: to_bytes(dataclasses.replace(reply, run_id="0" * 36)),
        "another run",
    ),
    "another round": (
        lambda reply: to_bytes(dataclasses.replace(reply, round=reply.round + 1)),
        "another round",
    ),
    "no message": (lambda reply: b"\x80\x04" + bytes(80), "not a message"),
}


class LyingWorker:
    """Passes requests to the site's worker, and changes its reply in one round.

    Parameters
    ----------
    worker : SiteWorker
    lie : Path
        Holds one of `LIES`; nothing is changed while it is not there.
    """

    def __init__(self, worker, lie):
        self.site = worker.site
        self._worker, self._lie = worker, lie

    def handle(self, body):
        reply, request = self._worker.handle(body), from_bytes(body)
        lies = isinstance(request, RoundRequest) and request.round == ROUND and self._lie.exists()
        return LIES[self._lie.read_text()][0](from_bytes(reply)) if lies else reply


if __name__ == "__main__":
    folder, socket, lie = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    serve_worker(LyingWorker(folder_worker(Path(folder)), Path(lie)), socket)
