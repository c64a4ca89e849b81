"""Who is in a federation and where its server is: ``federation.toml`` of the operator."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Self

import tomli_w
from pydantic import Field, model_validator

from configs.errors import ConfigError
from configs.site import SITE_NAME
from configs.tables import Table, parse_table, read_toml

__all__ = ["BEHIND_PROXY_PORT", "KIT_FOLDERS", "FederationConfig", "Member", "Server"]

#: Where the SuperLink listens behind a proxy if nothing else is said: Flower's own port.
BEHIND_PROXY_PORT = 8000
#: Folders beside the sites' kits, so no site may be named so.
KIT_FOLDERS = ("server", "ca")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.I)
_NAME_RULE = "1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"


class Server(Table):
    """Table ``[server]``: where the sites find the server. Its certificate holds all of it."""

    names: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="a list of host names, for instance ['fl.example.org']"
    )
    addresses: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="a list of IP addresses, for instance ['192.0.2.7']"
    )
    port: int = Field(8443, ge=1, le=65535, description="a whole number from 1 to 65535")
    proxy: bool = Field(False, description="true or false")

    @model_validator(mode="after")
    def _found(self) -> Self:
        for name in self.names:
            if _is_address(name):
                raise ValueError(
                    f"server.names holds '{name}', an IP address: put it into server.addresses"
                )
            if not _is_host_name(name):
                raise ValueError(
                    f"server.names holds {name[:64]!r}, which is no host name: give letters, "
                    "digits and '-' in parts of 1 to 63, joined by '.'"
                )
        for address in self.addresses:
            if not _is_address(address):
                raise ValueError(
                    f"server.addresses holds {address[:64]!r}, which is no IP address: give for "
                    "instance '192.0.2.7', and put names into server.names"
                )
        if not self.names and not self.addresses:
            raise ValueError(
                "server.names and server.addresses are both empty: name at least one host name or "
                "IP address by which the sites reach the server"
            )
        _refuse_twice(self.names, "server.names lists")
        _refuse_twice(self.addresses, "server.addresses lists")
        return self

    @property
    def address(self) -> str:
        """``HOST:PORT`` that sites connect to: the first name, else the first address."""
        host = (*self.names, *self.addresses)[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def own_port(self) -> int:
        """Port at which the SuperLink listens itself: where a proxy has `port`, another."""
        return BEHIND_PROXY_PORT if self.proxy else self.port


class Member(Table):
    """One entry of ``[[sites]]``."""

    name: str = Field(pattern=SITE_NAME, description=_NAME_RULE)


class FederationConfig(Table):
    """The operator's ``federation.toml``."""

    name: str = Field(pattern=SITE_NAME, description=_NAME_RULE)
    server: Server = Field(description="a table")
    sites: Annotated[tuple[Member, ...], Field(strict=False, min_length=1)] = Field(
        description="a list of at least one site"
    )

    @model_validator(mode="after")
    def _unique(self) -> Self:
        _refuse_twice(self.site_names, "the federation lists site")
        for name in self.site_names:
            if name.lower() in KIT_FOLDERS:
                raise ValueError(
                    f"a site is named '{name}', and folder '{name.lower()}' of the kits is the "
                    "operator's own: give the site another name"
                )
        return self

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the sites, in the file's order."""
        return tuple(site.name for site in self.sites)

    def with_site(self, name: str) -> FederationConfig:
        """Return the federation with one more site, the last of its list.

        Raises
        ------
        ConfigError
            If it has that site, or the name does not fit.
        """
        if name in self.site_names:
            raise ConfigError(
                f"federation '{self.name}' has a site '{name}' already; its sites: "
                f"{', '.join(self.site_names)}"
            )
        fields = self.model_dump(mode="json")
        fields["sites"].append({"name": name})
        return parse_table(FederationConfig, fields, f"federation '{self.name}' with the new site")

    @classmethod
    def load(cls, path: str | Path) -> FederationConfig:
        """Read a ``federation.toml``.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        FederationConfig
            The federation, every default filled in.

        Raises
        ------
        ConfigError
            If the file cannot be read or does not fit, naming the file and the key.
        """
        path = Path(path)
        return parse_table(cls, read_toml(path, "federation file"), path.name)

    def dumps(self) -> str:
        """Return the federation as TOML, every value spelled out."""
        return tomli_w.dumps(self.model_dump(mode="json"))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text  # a zone is of one machine and stands in no certificate


def _is_host_name(text: str) -> bool:
    # an underscore is no letter of a host name, but services of containers have it
    parts = text.split(".")
    numbered = parts[-1].isdecimal()  # a slip in an address
    return len(text) <= 253 and not numbered and all(_LABEL.fullmatch(part) for part in parts)


def _refuse_twice(names: tuple[str, ...], what: str) -> None:
    # case is ignored: both folders and host names may ignore it
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ValueError(
                f"{what} '{name}' twice (upper and lower case count as one): each may stand once"
            )
        seen.add(name.lower())
