"""The worker of one site folder."""

import logging
import sys
from pathlib import Path

from fedmvc_client.socket_server import serve_worker
from fedmvc_client.worker import folder_worker

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    serve_worker(folder_worker(Path(sys.argv[1])), sys.argv[2])
