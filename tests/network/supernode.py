"""The SuperNode of ``--fast-poll``, which is also missed soon after it died.

As Flower ships it, a SuperNode that died is missed after twice its heartbeat's interval of 30 s.
"""

from flwr.common import constant

HEARTBEAT_S = constant.HEARTBEAT_MIN_INTERVAL  # the shortest that a SuperLink takes


if __name__ == "__main__":
    constant.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT_S  # before the modules that take it over
    from fedmvc_client.fast_poll import main

    main()
