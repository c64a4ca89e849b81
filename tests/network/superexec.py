"""Flower's SuperExec of a site, which forks ClientApp processes instead of starting Python anew.

A message costs a process, and most of its time goes into imports. Here they are paid once: each
message still has a process of its own, at the end of which nothing of it is left.
"""

import os
import sys
import traceback
from types import SimpleNamespace

from flwr.supercore.cli import flower_superexec
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.supernode.cli import flwr_clientapp

import fedmvc_client.app  # noqa: F401  what the ClientApp would import


def fork(command):
    """Run a ``flwr-clientapp`` command in a copy of this process."""
    assert command[0] == "flwr-clientapp"
    if os.fork() == 0:
        try:
            sys.argv = command
            flwr_clientapp()
        except SystemExit:
            pass  # how it ends; the SuperNode has its reply or its error by now
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)


if __name__ == "__main__":
    subprocess_executor.subprocess = SimpleNamespace(Popen=fork)
    flower_superexec()
