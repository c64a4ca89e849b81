"""How a site reaches its federation's server: ``connection.toml`` of the site's folder."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Self

import tomli_w
from pydantic import Field, model_validator

from configs.errors import ConfigError
from configs.site import SITE_NAME
from configs.tables import Table, parse_table, read_toml

__all__ = ["FILE_NAME", "Connection", "parse_address"]

FILE_NAME = "connection.toml"
_PORT = re.compile(r"[0-9]{1,5}")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class Connection(Table):
    """A site's ``connection.toml``.

    ``site`` is the name that the operator registers the site under; ``site.toml`` has the same.
    """

    server: str = Field(description="the server's HOST:PORT, for instance 'fl.example.org:8443'")
    ca: str = Field("ca.crt", min_length=1, description="a file name, relative to this folder")
    site: str | None = Field(
        None,
        pattern=SITE_NAME,
        description="the site's name, as in site.toml; may be left out",
    )

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        try:
            parse_address(self.server, "server")
        except ConfigError as error:
            raise ValueError(error.public_message) from None
        return self

    @classmethod
    def load(cls, site_dir: str | Path) -> Connection:
        """Read ``connection.toml`` of a site's folder.

        Parameters
        ----------
        site_dir : str or Path
            The site's folder.

        Returns
        -------
        Connection

        Raises
        ------
        ConfigError
            If the file cannot be read or does not fit, naming the file and the key.
        """
        path = Path(site_dir) / FILE_NAME
        if not path.exists():
            raise ConfigError(
                f"connection file '{FILE_NAME}' does not exist in folder "
                f"'{path.absolute().parent.name}': it is in the start kit that the operator made "
                "with `fedmvc-server provision`",
                local_detail=str(path),
            )
        fields = read_toml(path, "connection file")
        return parse_table(cls, fields, FILE_NAME)

    def check_site(self, name: str) -> None:
        """Compare the site's registered name with the one in its ``site.toml``.

        Raises
        ------
        ConfigError
            If they differ: every run would refuse the site.
        """
        if self.site is not None and name != self.site:
            raise ConfigError(
                f"site.toml calls this site '{name}', but the operator made this kit for site "
                f"'{self.site}' ({FILE_NAME}), and no run takes it under another name: write "
                f'name = "{self.site}" into site.toml, or ask the operator for a kit of '
                f"'{name}'"
            )

    def dump(self, site_dir: str | Path) -> None:
        """Write ``connection.toml`` into a site's folder."""
        body = tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))
        (Path(site_dir) / FILE_NAME).write_text(body, encoding="utf-8")


def parse_address(
    address: str, what: str = "the SuperLink's address", example: str = "localhost:8443"
) -> tuple[str, int]:
    """Split an address.

    Parameters
    ----------
    address : str
        ``HOST:PORT`` or ``[IPV6]:PORT``.
    what : str
        What the address is, for the message.
    example : str
        One that is right, for the message.

    Returns
    -------
    host : str
        The host, an IPv6 address without its brackets.
    port : int
        The port.

    Raises
    ------
    ConfigError
        If it is no such address.
    """
    host, _, port = address.rpartition(":")
    if not host or not _PORT.fullmatch(port) or not 0 < int(port) < 65536 or "/" in host:
        raise ConfigError(
            f"{what} '{address}' is not HOST:PORT with a port from 1 to 65535: "
            f"write for instance {example}"
        )
    if host.startswith("[") and host.endswith("]"):
        if not _is_ipv6(host[1:-1]):
            raise ConfigError(
                f"{what} '{address}' has no IPv6 address between its brackets: write for instance "
                "[::1]:8443, and names and other addresses without brackets"
            )
        return host[1:-1], int(port)
    if ":" in host:
        raise ConfigError(
            f"{what} '{address}' has a ':' in its host: write an IPv6 address in brackets, for "
            "instance [::1]:8443"
        )
    if not _is_name(host):
        raise ConfigError(
            f"{what} '{address}' has no host name or IP address before its port: write parts of 1 "
            "to 63 letters, digits, '-' or '_', joined by '.'"
        )
    return host, int(port)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_name(text: str) -> bool:
    # the encoding that the resolver uses, which takes no empty and no long part
    try:
        return _NAME.fullmatch(text.encode("idna").decode("ascii")) is not None
    except UnicodeError:
        return False
