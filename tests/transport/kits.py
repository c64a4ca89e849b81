"""Kits as the operator makes them, and a small TLS server that plays the SuperLink's front."""

import contextlib
import datetime
import ssl
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer

from configs.federation import FederationConfig
from fedmvc_server.provision import provision

SITES = ("st-anna", "riverside")


def make_kits(folder, port=8443, *, days=365, made=None, with_identity_keys=False, **server):
    """Provision two sites into `folder`; `made` is the day on which, for certificates that end."""
    federation = FederationConfig.model_validate(
        {
            "name": "cardio",
            "server": {"addresses": ["127.0.0.1"], "port": port, **server},
            "sites": [{"name": name} for name in SITES],
        }
    )
    provision(federation, folder, days=days, now=made, with_identity_keys=with_identity_keys)
    return folder


def days_ago(days):
    """Return the moment so many days ago."""
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)


@contextlib.contextmanager
def answering(kit, *, host="127.0.0.1", clock_s=0.0, dated=True, handler=None):
    """Answer HTTPS with the certificate of a server's kit and a clock that is off by so much.

    Yields ``HOST:PORT``. `handler` takes the path of a POST and returns status and JSON body.
    """

    class Handler(BaseHTTPRequestHandler):
        def date_time_string(self, timestamp=None):
            return formatdate(time.time() + clock_s, usegmt=True)

        def do_HEAD(self):
            self.send_response_only(404)
            if dated:
                self.send_header("Date", self.date_time_string())
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = handler(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *ignored):
            pass

    class Server(HTTPServer):
        def handle_error(self, request, client_address):
            pass  # a client that did not take the certificate

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit / "server.pem", kit / "server.key")
    with Server((host, 0), Handler) as server:
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"{host}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
