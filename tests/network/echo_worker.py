"""A worker that answers what it is asked, behind its site's name."""

import logging
import sys

from fedmvc_client.socket_server import serve_worker


class EchoWorker:
    def __init__(self, site):
        self.site = site

    def handle(self, body):
        return b"echo:" + self.site.encode() + b":" + body


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    serve_worker(EchoWorker(sys.argv[1]), sys.argv[2])
