"""What the reverse proxy passes on to the SuperLink, and what it does not."""

import http.client
import http.server
import re
import ssl
import subprocess
import threading
import time
import urllib.request

import pytest

from fedmvc_server.local_federation import free_port
from tests.docker.compose_files import ROOT
from tests.docker.proxies import Proxy, configuration, needs_nginx, nginx
from tests.network.credentials import write_credentials

# make test runs these too, where nginx is
pytestmark = [pytest.mark.drill("proxy"), pytest.mark.short]

CALL = "/v1/fleet/push-object"
OBJECT = bytes(range(256)) * (5 * 4096)  # 5 MiB, the largest object that Flower sends
SIGNED = [
    ("content-type", "application/x-protobuf"),
    ("accept", "application/x-protobuf"),
    ("flwr-public-key", "bm9kZQ=="),
    ("flwr-signature", "c2lnbmVk+/=="),
    ("flwr-timestamp", "2026-01-31T12:00:00.000001+00:00"),
    ("X-Twice", "one"),
    ("X-Twice", "two"),
]
REFUSED = [
    "/",
    "/health",
    "/openapi.json",
    "/v1",
    "/v1/",
    "/v1/fleet",
    "/v1/fleet/",
    "/v1/fleetX",
    "/v1/fleetX/push-object",
    "/v1/FLEET/push-object",
    "/V1/fleet/push-object",
    "/v1/fleet/Push-Object",
    "/v1/control/start-run",
    "/v1/runtime/acquire-task",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/./../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/..%2fcontrol%2fstart-run",
    "/v1/fleet%2f..%2fcontrol/start-run",
    "/v1/fleet/push-object/../../control/start-run",
    "/v1/control/../fleet/push-object",
    "/v1/control/%2e%2e/fleet/push-object",
    "/v1%2ffleet/push-object",
    "/v1/%66leet/push-object",
    "/v1/fleet/%70ush-object",
    "//v1/fleet/push-object",
    "/v1//fleet/push-object",
    "/v1/fleet//push-object",
    "/v1/fleet//control/start-run",
    "/v1/fleet/push-object/",
    "/v1/fleet/push-object/x",
    "/v1/fleet/push-object?x=/v1/control/start-run",
    "/v1/fleet/push-object;x",
    "/v1/fleet/push-object%0a",
    "/v1/fleet/push-object%3f",
    "/v1/fleet/..\\control\\start-run",
    "/v1/fleet\\..\\control/start-run",
    "https://localhost/v1/control/start-run",
]


class SuperLink(http.server.BaseHTTPRequestHandler):
    """Answers 5 MiB to every call and keeps what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append((self.command, self.path, self.headers.items(), body))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(OBJECT)))
        self.send_header("flwr-answer", "yes")
        self.end_headers()
        self.wfile.write(OBJECT)

    do_GET = do_PUT = do_DELETE = do_OPTIONS = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kit")
    write_credentials(folder, ())
    return folder


@pytest.fixture(scope="module")
def superlink(kit):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit / "server.pem", kit / "server.key")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SuperLink)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def proxy(kit, superlink, tmp_path_factory):
    address = f"127.0.0.1:{superlink.server_port}"
    with Proxy(tmp_path_factory.mktemp("proxy"), kit, address) as running:
        yield running


def ask(proxy, kit, path, *, method="POST", body=b"x", length=None):
    """Send a request with its path as it stands; return status, headers and body."""
    trust = ssl.create_default_context(cafile=str(kit / "ca.crt"))
    connection = http.client.HTTPSConnection("localhost", proxy.port, context=trust, timeout=60)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        length = len(body) if length is None else length
        for name, value in [*SIGNED, ("content-length", str(length))]:
            connection.putheader(name, value)
        connection.endheaders(body)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


@needs_nginx
def test_nginx_accepts_the_configuration(kit, tmp_path):
    done = Proxy(tmp_path, kit, "127.0.0.1:1").check()

    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr


@needs_nginx
def test_a_fleet_call_passes_untouched(proxy, superlink, kit):
    superlink.seen.clear()

    status, headers, body = ask(proxy, kit, CALL, body=OBJECT)

    assert (status, headers["flwr-answer"]) == (200, "yes")
    assert headers["content-type"] == "application/x-protobuf"
    assert body == OBJECT
    ((method, path, sent, received),) = superlink.seen
    assert (method, path) == ("POST", CALL)
    assert received == OBJECT
    host = [("Host", f"localhost:{proxy.port}")]
    hop = [("Connection", "close"), ("content-length", str(len(OBJECT)))]
    assert sorted((k.lower(), v) for k, v in sent) == sorted(
        (k.lower(), v) for k, v in [*host, *hop, *SIGNED]
    )


@needs_nginx
@pytest.mark.parametrize("path", REFUSED)
def test_everything_else_stays_outside(proxy, superlink, kit, path):
    superlink.seen.clear()

    status, _, _ = ask(proxy, kit, path)

    assert status in (403, 404)
    assert superlink.seen == []


@needs_nginx
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_a_fleet_call_is_a_post(proxy, superlink, kit, method):
    superlink.seen.clear()

    status, _, _ = ask(proxy, kit, CALL, method=method)

    assert status == 403
    assert superlink.seen == []


@needs_nginx
def test_a_body_that_no_call_has_is_refused(proxy, superlink, kit):
    superlink.seen.clear()

    status, _, _ = ask(proxy, kit, CALL, body=b"", length=9_000_000)

    assert status == 413
    assert superlink.seen == []


@needs_nginx
def test_a_superlink_with_another_authority_gets_nothing(superlink, kit, tmp_path):
    superlink.seen.clear()
    write_credentials(tmp_path, ())

    with Proxy(tmp_path, tmp_path, f"127.0.0.1:{superlink.server_port}") as proxy:
        status, _, _ = ask(proxy, tmp_path, CALL)

    assert status == 502
    assert superlink.seen == []
    assert "certificate verify" in (tmp_path / "nginx.log").read_text()


@needs_nginx
def test_what_was_refused_is_in_the_log(proxy, kit):
    ask(proxy, kit, CALL)
    ask(proxy, kit, "/v1/control/list-runs")

    path, refused = proxy.folder / "access.log", '"POST /v1/control/list-runs HTTP/1.1" 403'
    deadline = time.monotonic() + 30  # written after the answer
    while refused not in (log := path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert refused in log
    assert " 200 " not in log
    assert "c2lnbmVk" not in log


@needs_nginx
def test_the_health_check_answers(proxy):
    address = f"http://127.0.0.1:{proxy.health_port}/health"

    assert urllib.request.urlopen(address, timeout=30).status == 204


def test_every_path_and_port_of_the_configuration_is_known(tmp_path):
    text = configuration(tmp_path, tmp_path / "kit", 1, 2, "127.0.0.1:3")

    assert " /kit/" not in text
    assert text.count("listen ") == 2
    assert text.count("proxy_pass https://") == 1
    assert "proxy_pass http:" not in text


@needs_nginx
def test_the_line_in_the_docs_makes_a_configuration_for_a_host(tmp_path):
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^(sed .*) > /srv/fedmvc/nginx.conf$", page, re.MULTILINE)
    write_credentials(tmp_path, ())
    made = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=True)
    text = made.stdout
    assert "set $superlink 127.0.0.1:8000;" in text
    assert not re.search(r"^ *resolver|/kit/|server:8443", text, re.MULTILINE)

    path = tmp_path / "host.conf"
    for old in (" /tmp/", " /srv/fedmvc/server/"):
        text = text.replace(old, f" {tmp_path}/")
    for port in ("8443", "8081"):
        text = text.replace(port, str(free_port()))
    path.write_text(text)
    command = [nginx(), "-e", "stderr", "-t", "-c", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
