"""``fedmvc-client executor`` that also takes the bundles of `tests.network.echo_server`."""

import sys

from fedmvc_client import bundle
from fedmvc_client.executor import Cold

# At import, so that a process that is forked for a message has it too.
bundle.SERVER_APPS.add("tests.network.echo_server:app")
Cold.module = "tests.network.executor"

if __name__ == "__main__":
    if sys.argv[1] == "executor":
        from fedmvc_client.cli import main

        sys.exit(main())
    from fedmvc_client.clientapp import run

    run(sys.argv[1], sys.argv[2:])
