"""``fedmvc-client worker`` for several site folders, each in a process of its own.

The processes are forked after the imports, most of what starting a worker costs.
"""

import os
import signal
import sys

import fedmvc_client.participants.fed_mufsht
import fedmvc_client.participants.fedhk_mvfc
import fedmvc_client.participants.tensor_fmvc  # noqa: F401
from fedmvc_client.cli import main

if __name__ == "__main__":
    for socket, site in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        if os.fork() == 0:
            sys.argv = ["fedmvc-client", "worker", "--socket", socket, "--site", site]
            sys.exit(main())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends after the workers
    for _ in sys.argv[1::2]:
        os.wait()
