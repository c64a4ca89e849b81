"""What the server relays in a set-up of masked sums: signed keys, and sealed envelopes."""

from __future__ import annotations

from collections.abc import Mapping

from configs.errors import ProtocolError, QuorumLost
from privacy.secagg_keys import KeyMessage, read_keys
from privacy.secagg_terms import RunTerms

__all__ = ["KeyRelay"]


class KeyRelay:
    """The server's half of one set-up.

    Parameters
    ----------
    run : RunTerms
    first : int
        First exchange that the set-up is for; the last is E.

    Attributes
    ----------
    keys : dict of str to KeyMessage
        By site.
    """

    def __init__(self, run: RunTerms, first: int) -> None:
        self.run = run
        self.first = first
        self.keys: dict[str, KeyMessage] = {}
        self._messages: dict[str, bytes] = {}
        self._envelopes: dict[str, dict[str, bytes]] = {}

    def take_keys(self, site: str, message: bytes) -> None:
        """Take a site's key message; the sites check signatures, the server cannot be trusted to.

        Raises
        ------
        ProtocolError
            If it is malformed, another site's, or not the one that the site sent before.
        """
        keys = read_keys(self.run, message, self.first)
        if keys.name != site or self._messages.get(site, message) != message:
            raise ProtocolError(
                f"site '{site}' sent keys of site '{keys.name}' or other keys than before: start "
                "a new run"
            )
        self._messages[site] = message
        self.keys[site] = keys

    def key_list(self) -> tuple[bytes, ...]:
        """Return all key messages in name order.

        Raises
        ------
        QuorumLost
            If one is missing; names the sites.
        """
        self._need_all(self._messages, "keys")
        return tuple(self._messages[name] for name in self.run.names)

    def take_shares(self, site: str, envelopes: Mapping[str, bytes]) -> None:
        """Take what a site dealt to the others.

        Raises
        ------
        ProtocolError
            If it is not one envelope for each other participant, or differs from before.
        """
        taken = self._envelopes.get(site, envelopes)
        if set(envelopes) != set(self.run.others(site)) or dict(taken) != dict(envelopes):
            raise ProtocolError(
                f"site '{site}' sent {len(envelopes)} envelopes of shares, or others than before; "
                f"one for each of the other {self.run.terms.n_sites - 1} participants is due"
            )
        self._envelopes[site] = dict(envelopes)

    def envelopes_for(self, site: str) -> dict[str, bytes]:
        """Return what the others dealt to a site.

        Raises
        ------
        QuorumLost
            If a participant's shares are missing; names the sites.
        """
        self._need_all(self._envelopes, "shares")
        return {other: self._envelopes[other][site] for other in self.run.others(site)}

    def require_all(self) -> None:
        """Refuse to use a set-up that is not complete.

        Raises
        ------
        QuorumLost
            If a participant's keys or shares are missing; names the sites.
        """
        self._need_all(self._messages, "keys")
        self._need_all(self._envelopes, "shares")

    def _need_all(self, held: Mapping[str, object], what: str) -> None:
        missing = [name for name in self.run.names if name not in held]
        if missing:
            raise QuorumLost(
                f"{len(missing)} of {self.run.terms.n_sites} participants sent no {what}: "
                f"{', '.join(missing)}; a run with masked sums begins with all of them"
            )
