"""TensorFMVC as a Flower strategy: hello, link, align, rounds, finish.

Every site holds one view of the same patients. The server finds the rows that all sites hold by
their tokens, deletes the tokens, and then sees one label a row and site in each round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from configs.compatibility import one_view_only
from configs.errors import ConfigError, DataRefused, ProtocolError
from configs.tensor_profiles import SAMPLE_ORDER_WARNING, TensorSettings
from privacy.alignment import ID_RULES, ROW_NUMBER, TOKEN_BYTES, intersect, ranked
from strategies.base import FederatedStrategy, Protocol
from strategies.journal import Heard
from strategies.messages import (
    AlignRequest,
    HelloReply,
    LinkReply,
    LinkRequest,
    OutcomeReply,
    OutcomeRequest,
    StartReply,
    SweepReply,
    SweepRequest,
    from_bytes,
    pack_labels,
    to_bytes,
    unpack_labels,
)
from strategies.run_state import Exchange
from strategies.tensor_admm import TensorDriver, TensorResult, doubts, vote_shares

Replies = dict[str, Any]
Labels = NDArray[np.int64]
Masks = dict[str, NDArray[np.bool_]]


class TensorStrategy(FederatedStrategy):
    """Server half of TensorFMVC.

    Attributes
    ----------
    metrics : dict
        View weights, agreement of each site and of the aligned vote with the result, sizes.
    """

    _held: Masks

    def protocol(self, hello: dict[str, HelloReply]) -> Protocol:
        """Yield the exchanges of one run."""
        settings = self.plan.tensor_settings()
        if settings.orientation == "sample":
            self.warn(SAMPLE_ORDER_WARNING)
        self._check_views(hello)
        shared, n_shared, list_sizes = yield from self._link()
        driver = yield from self._align(settings, shared, n_shared)
        yield from self._rounds(settings, driver)
        result = driver.result()
        yield from self._finish(result)
        self._measure(driver, result, list_sizes, hello)

    def model_arrays(self) -> ArrayRecord:
        """Return nothing: a vertical run has labels and no model of the patients' data."""
        return ArrayRecord()

    # -- before round 1 ----------------------------------------------------------------------

    def _check_views(self, hello: dict[str, HelloReply]) -> None:
        for site in self.sites:
            held = [view.name for view in hello[site].views if view.held]
            try:
                one_view_only(site, len(held))
            except DataRefused as error:
                self.refuse(site, error)
        self._require_two()

    def _require_two(self) -> None:
        if len(self.sites) < 2:
            raise ConfigError(
                f"a vertical run needs at least 2 sites and has {len(self.sites)}: bring in a site "
                "that holds another view of the same patients"
            )

    def _link(self) -> Generator[Exchange, Replies, tuple[Masks, int, dict[str, int]]]:
        """Match tokens; nothing of them is kept when this returns."""
        replies = yield Exchange(
            "link", {s: LinkRequest(*self.ids) for s in self.sites}, (LinkReply,)
        )
        replies = self.checked(replies, _check_link)
        rules = Counter(replies[s].id_rule for s in self.sites)
        usual = rules.most_common(1)[0][0]
        for site in self.sites:
            if replies[site].id_rule != usual:
                self.refuse(
                    site,
                    DataRefused(
                        f"site '{site}' normalises ids by rule '{replies[site].id_rule}', others "
                        f"by '{usual}': all need the same id_rule in schema.toml"
                    ),
                )
        self._require_two()
        tokens = {s: replies[s].tokens for s in self.sites}
        n_shared, shared = intersect(tokens)
        self._check_overlap(n_shared, usual)
        return shared, n_shared, {site: len(t) for site, t in tokens.items()}

    def _check_overlap(self, n_shared: int, rule: str) -> None:
        least = self.plan.tensor.min_overlap
        if n_shared < least:
            way_out = "check that all use the same linkage key and id column, or lower it"
            raise DataRefused(
                f"the {len(self.sites)} sites share fewer patients than tensor.min_overlap = "
                f"{least}: {'lower it' if rule == ROW_NUMBER else way_out}",
                local_detail=f"{n_shared} shared",
            )
        if self.plan.n_clusters > n_shared:
            raise DataRefused(
                f"n_clusters is {self.plan.n_clusters} but the sites share {n_shared} patients: "
                "ask for fewer clusters"
            )

    def _align(
        self, settings: TensorSettings, shared: Masks, n_shared: int
    ) -> Generator[Exchange, Replies, TensorDriver]:
        replies = yield Exchange(
            "align",
            {
                site: AlignRequest(*self.ids, position, n_shared, np.packbits(shared[site]))
                for position, site in enumerate(self.sites)
            },
            (StartReply,),
        )
        self._held = {}
        labels: dict[str, Labels] = {}
        alone: dict[str, Labels] = {}

        def check(site: str, reply: StartReply) -> None:
            if reply.held.shape != ((n_shared + 7) // 8,):
                raise ProtocolError("the mask of held rows does not fit the shared rows")
            self._held[site] = np.unpackbits(reply.held, count=n_shared).astype(bool)
            labels[site] = self._unpacked(site, reply.labels)
            alone[site] = self._unpacked(site, reply.alone) if reply.alone.size else labels[site]
            _check_trace(reply.trace)

        replies = self.checked(replies, check)
        self._require_two()
        return TensorDriver(
            settings,
            self.plan.n_clusters,
            {site: labels[site] for site in replies},
            {site: reply.trace for site, reply in replies.items()},
            alone={site: alone[site] for site in replies},
            tol=self.plan.tol,
            max_rounds=self.plan.max_rounds,
        )

    def _unpacked(self, site: str, packed: NDArray[np.uint8]) -> Labels:
        """Return a site's labels (N,) of all shared rows, -1 where it has no data."""
        held = self._held[site]
        labels = np.full(held.size, -1, dtype=np.int64)
        labels[held] = unpack_labels(packed, int(held.sum()), self.plan.n_clusters)
        return labels

    def _for_the_journal(self, heard: Heard) -> Heard:
        """Let no token outlive the exchange that brought it: their ranks match just as well."""
        if heard.action != "link":
            return heard
        links = {site: r for site, b in heard.bodies.items() if (r := _link_in(b)) is not None}
        places = ranked({site: reply.tokens for site, reply in links.items()})
        bodies = {s: to_bytes(replace(links[s], tokens=places[s])) for s in links}
        return replace(heard, bodies={**heard.bodies, **bodies})

    # -- rounds ------------------------------------------------------------------------------

    def _rounds(
        self, settings: TensorSettings, driver: TensorDriver
    ) -> Generator[Exchange, Replies, None]:
        nothing = np.zeros((0, self.plan.n_clusters), dtype=settings.z_encoding)
        for number in range(1, self.plan.max_rounds + 1):
            if driver.done:
                break
            requests = {}
            for site in self.sites:
                query = driver.query(site)
                names = driver.names[site] if number == 1 else np.zeros(0, dtype=np.int64)
                blend = nothing if query.z is None else query.z
                requests[site] = SweepRequest(
                    *self.ids, number, query.weight, query.mu, blend, query.scale, names
                )
            replies = yield Exchange("round", requests, (SweepReply,), number)
            labels: dict[str, Labels] = {}

            def check(site: str, reply: SweepReply, labels: dict[str, Labels] = labels) -> None:
                labels[site] = self._unpacked(site, reply.labels)
                _check_trace(reply.trace)

            replies = self.checked(replies, check)
            for site in [s for s in driver.sites if s not in replies]:
                self.stop_without(site)  # another view is another problem: go on only where told to
                driver.drop(site)
                self.warn(f"site '{site}' left in round {number}: the result is without its view")
            driver.advance(
                {site: labels[site] for site in replies},
                {site: reply.trace for site, reply in replies.items()},
            )
            weights = driver.view_weights.tolist()
            self.record_round(
                number, driver.objective, weights, dict(zip(driver.sites, weights, strict=True))
            )
        if not driver.converged and self.plan.privacy.mechanism == "none":
            self.warn(
                f"the run stopped at max_rounds = {self.plan.max_rounds} before labels and the "
                f"tensor agreed to tol = {self.plan.tol:g}: raise max_rounds"
            )

    # -- after the rounds --------------------------------------------------------------------

    def _finish(self, result: TensorResult) -> Generator[Exchange, Replies, None]:
        known = result.vote >= 0
        labels, vote = (
            pack_labels(np.where(known, column, 0), self.plan.n_clusters)
            for column in (result.labels, result.vote)
        )
        request = OutcomeRequest(*self.ids, np.packbits(known), labels, vote)
        replies = yield Exchange(
            "finish", dict.fromkeys(self.sites, request), (OutcomeReply,), len(self.state.history)
        )

        def check(site: str, reply: OutcomeReply) -> None:
            if reply.n_rows != known.size:
                raise ProtocolError("the site kept another number of rows than are shared")

        self.checked(replies, check)

    def _measure(
        self,
        driver: TensorDriver,
        result: TensorResult,
        list_sizes: dict[str, int],
        hello: dict[str, HelloReply],
    ) -> None:
        k = self.plan.n_clusters
        known = result.labels >= 0
        sizes, vote_sizes = (
            np.bincount(column[column >= 0], minlength=k).tolist()
            for column in (result.labels, result.vote)
        )
        settings = self.plan.tensor_settings()
        for sentence in doubts(result, settings.r, [f"site '{site}'" for site in driver.sites]):
            self.warn(sentence)
        shares = vote_shares(result.view_weights, settings.r)
        self.metrics = {
            "objective": driver.objective,
            "rows": int(known.size),
            "rows_by_site": list_sizes,
            "rows_without_label": int((~known).sum()),
            "views": {
                site: next(view.name for view in hello[site].views if view.held)
                for site in driver.sites
            },
            "view_weights": dict(zip(driver.sites, result.view_weights.tolist(), strict=True)),
            "vote_shares": dict(zip(driver.sites, shares.tolist(), strict=True)),
            "cluster_sizes": sizes,
            "aligned_vote": {
                "cluster_sizes": vote_sizes,
                "agreement": float((result.labels == result.vote)[known].mean()),
            },
            "agreement": dict(zip(driver.sites, result.agreement.tolist(), strict=True)),
            "agreement_nmi": dict(zip(driver.sites, result.agreement_nmi.tolist(), strict=True)),
            "pairwise_agreement": result.pairwise.tolist(),
            "settings": asdict(settings),
        }


def _link_in(body: bytes) -> LinkReply | None:
    """Return the tokens in a reply; None where there are none."""
    try:
        reply = from_bytes(body)
    except ProtocolError:
        return None
    if not isinstance(reply, LinkReply):
        return None
    fits = reply.tokens.shape[1:] == (TOKEN_BYTES,) and reply.tokens.dtype == np.uint8
    return reply if fits else None


def _check_link(site: str, reply: LinkReply) -> None:
    if reply.id_rule not in (*ID_RULES, ROW_NUMBER):
        raise ProtocolError("the rule by which it normalises ids is unknown")
    intersect({site: reply.tokens})


def _check_trace(trace: float) -> None:
    if not np.isfinite(trace) or trace < 0:
        raise ProtocolError("the local term is not a number of 0 or more")
