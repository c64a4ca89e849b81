"""What a site keeps beside its data: keys, register of plans, ledger, audit log, vaults."""

from __future__ import annotations

import abc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import ConfigError, FedMVCError
from configs.plan import RunPlan
from configs.site import Policy, SiteConfig
from fedmvc_client.approvals import Register
from fedmvc_client.refusal_notes import RefusalNotes
from privacy.audit import AuditLog
from privacy.cohorts import FILE_NAME, SeparateCohorts
from privacy.identity import given_passphrase, read_identity
from privacy.ledger import Ledger, ledger_key
from privacy.roster import Roster
from privacy.vault import Vault
from strategies.messages import BundleRefused

__all__ = ["FolderSafe", "MemorySafe", "Safe"]

log = logging.getLogger("fedmvc.site")


class Safe(abc.ABC):
    """Where it lies is up to the subclass; a part is opened when it is first used.

    Parameters
    ----------
    site : str
    policy : Policy
    folder : Path or None
        The site's folder; None keeps everything in memory.
    """

    def __init__(self, site: str, policy: Policy, folder: Path | None) -> None:
        self.site = site
        self.policy = policy
        self.folder = folder

    @property
    def state(self) -> Path | None:
        """Folder ``state`` of the site; None in memory."""
        return None if self.folder is None else self.folder / "state"

    @cached_property
    def audit(self) -> AuditLog:
        """``state/audit.jsonl``."""
        return AuditLog(None if self.state is None else self.state / "audit.jsonl")

    @cached_property
    def separate(self) -> frozenset[str]:
        """Cohorts that share no patient with the site's own, by its signed statement."""
        stated = None if self.folder is None else SeparateCohorts.load(self.folder / FILE_NAME)
        if stated is None:
            return frozenset()
        return stated.of(self.policy.cohort, self.site, self.identity().public_key())

    @cached_property
    def register(self) -> Register:
        """Plans seen, decisions and runs."""
        return Register(self.folder, self.site, self.audit, self.separate)

    @cached_property
    def ledger(self) -> Ledger:
        """``state/ledger.db``: what every noisy release cost, and what is left."""
        return Ledger(
            None if self.state is None else self.state / "ledger.db",
            os.urandom(32) if self.state is None else ledger_key(self.state),
            cohort=self.policy.cohort,
            epsilon_budget=self.policy.epsilon_budget,
            delta_budget=self.policy.delta_budget,
            site=self.site,
            separate=self.separate,
            audit=self.audit,
        )

    @cached_property
    def _refusals(self) -> RefusalNotes:
        return RefusalNotes(self.audit)

    def see(self, plan: RunPlan) -> None:
        """Keep a plan that a server sent, unless it sent too many new ones today.

        Raises
        ------
        ConfigError
            If the files cannot be used.
        """
        if self.register.knows(plan.plan_id) or self._refusals.takes_plan():
            self.register.see(plan)

    def note_refusal(self, request: object, error: FedMVCError) -> bool:
        """Note in the audit log what was refused to whoever asked; never raises.

        Parameters
        ----------
        request : Message or None
            None where it could not be read.
        error : FedMVCError

        Returns
        -------
        bool
            False where it was one of too many today, and only counted.
        """
        with self._noting():
            return self._refusals.note(request, error)
        return True

    def note_bundle(self, refused: BundleRefused) -> None:
        """Note that the executor ran nothing of a bundle (as `note_refusal`)."""
        with self._noting():
            self._refusals.note_bundle(refused.sha256, refused.code, refused.sentence)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Go on where the log cannot be written: what is refused stays refused."""
        try:
            yield
        except FedMVCError as fault:
            log.error("%s", fault.public_message, extra={"local_detail": fault.local_detail})

    def vault(self, run_id: str) -> Vault:
        """Return the durable memory of a masked run."""
        return Vault(None if self.state is None else self.state / "runs" / run_id / "secure")

    @abc.abstractmethod
    def identity(self) -> Ed25519PrivateKey:
        """Return the site's identity key.

        Raises
        ------
        ConfigError
            Where it has none that can be used.
        """

    @abc.abstractmethod
    def roster(self) -> Roster:
        """Return the site's own copy of the roster.

        Raises
        ------
        ConfigError
            Where it has none that can be used.
        """


class FolderSafe(Safe):
    """The files of a site's folder.

    Parameters
    ----------
    folder : Path
    config : SiteConfig
    """

    def __init__(self, folder: Path, config: SiteConfig) -> None:
        super().__init__(config.name, config.policy, folder)
        self._root, self._keys = folder, config.keys

    def identity(self) -> Ed25519PrivateKey:
        """Read ``keys.identity``, opened by the passphrase in the environment if there is one."""
        return read_identity(self._root / self._keys.identity, given_passphrase())

    def roster(self) -> Roster:
        """Read ``keys.roster``."""
        return Roster.load(self._root / self._keys.roster)


class MemorySafe(Safe):
    """Keys and books of a site whose data are arrays; they end with the process.

    Parameters
    ----------
    site : str
    policy : Policy
    identity : Ed25519PrivateKey, optional
    roster : Roster, optional
        Both are needed in a run with masked sums.
    """

    def __init__(
        self,
        site: str,
        policy: Policy,
        identity: Ed25519PrivateKey | None = None,
        roster: Roster | None = None,
    ) -> None:
        super().__init__(site, policy, None)
        self._identity, self._roster = identity, roster

    def identity(self) -> Ed25519PrivateKey:
        """Return the key given."""
        if self._identity is None:
            raise ConfigError(f"site '{self.site}' was given no identity key: give it one")
        return self._identity

    def roster(self) -> Roster:
        """Return the roster given."""
        if self._roster is None:
            raise ConfigError(f"site '{self.site}' was given no roster: give it one")
        return self._roster

    # a vault in memory must be the same one whenever its run is asked for
    def vault(self, run_id: str) -> Vault:
        """Return the run's vault, the same for a run."""
        if run_id not in self._vaults:
            self._vaults[run_id] = Vault(None)
        return self._vaults[run_id]

    @cached_property
    def _vaults(self) -> dict[str, Vault]:
        return {}
