"""What flwr 1.42.0 really printed, and the sentence that a hospital reads."""

import pytest

from configs.errors import ConfigError, ProtocolError, TransportError
from fedmvc_client.join_refusals import KeyRefused, connected_node, plain, translate

START = """INFO :      Starting Flower SuperNode
INFO:     Started server process [28735]
INFO:     Waiting for application startup.
INFO :      FastAPI lifespan: startup
INFO:     Application startup complete.
"""
LISTENING = START + "INFO:     Uvicorn running on http://127.0.0.1:9094 (Press CTRL+C to quit)\n"
HELP = "For more information, visit: <https://flower.ai/docs/framework/1.42/en/ref-exit-codes/"
END = """INFO:     Shutting down
INFO:     Waiting for application shutdown.
INFO :      FastAPI lifespan: shutdown
INFO:     Application shutdown complete.
INFO:     Finished server process [28735]
"""


def not_connected(why, before=""):
    return (
        f"{LISTENING}{before}ERROR :     Exit Code: 305\n"
        f"Failed to initialize the connection to the SuperLink.\n{why}\n"
        f"The SuperNode could not establish a connection to the SuperLink.\n\n"
        f"{HELP}305.html>\n{END}"
    )


def bad_certificate(why):
    return not_connected(
        f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {why} (_ssl.c:1006)",
        "ERROR :     SSL/TLS handshake error detected.\n",
    )


def tell(output):
    return translate(output, "st-anna", "fl.example.org:8443", "127.0.0.1:9094")


def test_a_refused_activation_is_looked_into():
    found = tell(not_connected("[code: 2004] Failed to activate SuperNode."))

    assert isinstance(found, KeyRefused)
    assert found.code == 7


@pytest.mark.parametrize(
    ("output", "kind", "words"),
    [
        (
            not_connected(
                "[code: 2001] SuperNode authentication is enabled. All SuperNodes must be "
                "registered via the CLI."
            ),
            TransportError,
            "takes registered SuperNodes only",
        ),
        (
            bad_certificate("unable to get local issuer certificate"),
            TransportError,
            "is not from the CA of this site's kit",
        ),
        (bad_certificate("certificate has expired"), TransportError, "8443 has expired"),
        (bad_certificate("certificate is not yet valid"), TransportError, "is not valid yet"),
        (
            bad_certificate("IP address mismatch, certificate is not valid for '127.0.0.2'."),
            TransportError,
            "is for another name",
        ),
        (
            "INFO :      Starting Flower SuperNode\nERROR :     Exit Code: 302\n"
            "Unable to parse the private key file.\nNode authentication requires elliptic curve "
            f"private key. Please ensure that the file path points to a valid private key file and "
            f"try again.\n\n{HELP}302.html>\n",
            TransportError,
            "cannot read the node key of site 'st-anna'",
        ),
        (
            "INFO :      Starting Flower SuperNode\nERROR :     Exit Code: 303\n"
            "Insecure connection is enabled, but the SuperNode's private key is provided for "
            f"authentication.\n\n{HELP}303.html>\n",
            TransportError,
            "was started without TLS",
        ),
        (
            f"{START}ERROR:    [Errno 98] error while attempting to bind on address "
            "('127.0.0.1', 48721): address already in use\n"
            "INFO:     Waiting for application shutdown.\n"
            'Traceback (most recent call last):\n  File "flower_supernode.py", line 248\n'
            "RuntimeError: SuperNode Runtime HTTP API failed to start.\n",
            ConfigError,
            "cannot listen at 127.0.0.1:9094",
        ),
        (
            "usage: flower-supernode [-h]\nflower-supernode: error: unrecognized arguments: --n\n",
            Exception,
            "does not know an argument",
        ),
    ],
)
def test_each_cause_has_one_sentence(output, kind, words):
    found = tell(output)

    assert isinstance(found, kind)
    assert words in str(found)
    assert "\n" not in str(found)
    assert "Traceback" not in str(found)


def test_releases_that_differ_have_their_own_code_and_both_numbers():
    found = tell(
        f"{LISTENING}ERROR :     Exit Code: 606\nRuntime version is incompatible.\n"
        "SuperLink version 1.43.1 detected a runtime version mismatch: expected a peer from the "
        f"same major.minor release, but received SuperNode version 1.42.0.\n\n{HELP}606.html>\n"
    )

    assert isinstance(found, ProtocolError)
    assert found.code == 8
    assert "(1.43.1 there, 1.42.0 here)" in str(found)


@pytest.mark.parametrize(
    "output",
    [
        "",
        # a clock that is off, or a key that was revoked: Flower's whole output
        f"{LISTENING}INFO :      SuperNode terminated gracefully.\n{END}",
        f"{LISTENING}INFO :      SuperNode ID: 12801483878954952050\n"
        "WARNING :   Connection attempt failed, retrying in 0.94 seconds\n",
        # the line was cut in the middle of a handshake: it ended 'join' once
        f"{LISTENING}ERROR :     SSL/TLS handshake error detected.\n"
        "ERROR :     [SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol\n",
    ],
)
def test_what_names_no_cause_is_tried_again(output):
    assert tell(output) is None


def test_lines_lose_their_colours():
    line = b"\x1b[92mINFO \x1b[0m:      SuperNode ID: 12801483878954952050\n"

    assert plain(line) == "INFO :      SuperNode ID: 12801483878954952050"
    assert connected_node(plain(line)) == "12801483878954952050"
    assert connected_node("INFO :      Starting Flower SuperNode") is None
