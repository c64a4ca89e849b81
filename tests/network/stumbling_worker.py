"""A site's worker that stops answering at one request of one exchange, until it is started anew.

It writes a file when it gets there, so a test knows when to kill it. A worker that finds the file
is the restarted one and answers everything.
"""

import logging
import sys
import time
from pathlib import Path

from fedmvc_client.socket_server import serve_worker
from fedmvc_client.worker import folder_worker
from strategies.messages import from_bytes


class StumblingWorker:
    """Passes requests to the site's worker, but for the first one of a kind and exchange.

    Parameters
    ----------
    worker : SiteWorker
    kind : str
        Name of the request at which it stumbles, before it is answered.
    exchange : int
    reached : Path
        The file that says so.
    """

    def __init__(self, worker, kind, exchange, reached):
        self.site = worker.site
        self._worker = worker
        self._kind, self._exchange, self._reached = kind, exchange, reached

    def handle(self, body):
        request = from_bytes(body)
        here = (type(request).__name__, getattr(request, "exchange", 0))
        if here == (self._kind, self._exchange) and not self._reached.exists():
            self._reached.touch()
            time.sleep(600)
        return self._worker.handle(body)


if __name__ == "__main__":
    folder, socket, kind, exchange, reached = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    stumbling = StumblingWorker(folder_worker(Path(folder)), kind, int(exchange), Path(reached))
    serve_worker(stumbling, socket)
