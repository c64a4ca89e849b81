"""Keys and certificates for a federation on the loopback interface, all in one folder."""

from pathlib import Path

from fedmvc_server.certificates import issue_server, make_authority
from fedmvc_server.node_keys import NodeKey
from privacy.key_files import replace_file


def write_credentials(folder: Path, node_names: tuple[str, ...]) -> None:
    """Write ca.crt, server.pem, server.key and a NAME.key, NAME.pub for each node."""
    authority = make_authority("fedmvc-tests")
    server = issue_server(authority, ["localhost"], ["127.0.0.1"], days=1)
    replace_file(folder / "ca.crt", authority.certificate_pem, "certificate")
    replace_file(folder / "server.pem", server.certificate_pem, "certificate")
    replace_file(folder / "server.key", server.key_pem, "key")
    for name in node_names:
        node = NodeKey()
        replace_file(folder / f"{name}.key", node.private, "key")
        replace_file(folder / f"{name}.pub", node.public, "key")
