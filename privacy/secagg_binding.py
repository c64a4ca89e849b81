"""Whether a site may stand in a run with masked sums at all, and with which vault."""

from __future__ import annotations

from configs.errors import ProtocolError
from configs.secure_terms import check_terms
from privacy.canonical import pack
from privacy.roster import Roster
from privacy.secagg_terms import RunTerms
from privacy.vault import Vault

__all__ = ["bind_site"]


def bind_site(run: RunTerms, name: str, roster: Roster, vault: Vault) -> None:
    """Tie a new vault to a site's run, and refuse one that is tied to another.

    Raises
    ------
    ConfigError
        If the terms would let a lying server open too small a sum.
    ProtocolError
        If the site is no participant, its roster is another, or the vault is another run's.
    """
    terms = run.terms
    check_terms(terms.n_sites, terms.colluders, terms.tolerated_dropouts, terms.threshold)
    if name not in run.names:
        raise ProtocolError(
            f"site '{name}' is not among the plan's {terms.n_sites} participants: check "
            "privacy.participants",
            local_detail="participant",
        )
    if roster.hash != run.roster_hash:
        raise ProtocolError(
            f"site '{name}' holds another roster than this run's: get the newest from the "
            "operator by the way that start kits come, never from the server",
            local_detail="roster",
        )
    bound = pack(*run.head(name), *run.names)
    with vault.transaction():
        found = vault.get("run")
        if found is None:
            vault.put("run", bound)
    if found not in (None, bound):
        raise ProtocolError(
            f"site '{name}' holds secrets of another plan, roster or participant list under this "
            "run's id: start a new run",
            local_detail="run",
        )
