"""One site's half of TensorFMVC: its view, its labels, one sweep an exchange."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from configs.errors import ConfigError, DataRefused, ProtocolError
from configs.tensor_profiles import LARGEST_ANCHORS, TensorSettings
from fedmvc_client.solvers.anchor_graph import AnchorGraph, anchor_graph
from fedmvc_client.solvers.anchors import choose_anchors
from fedmvc_client.solvers.butterworth import ButterworthTerm, butterworth_similarity
from fedmvc_client.solvers.devices import resolve_device
from fedmvc_client.solvers.preprocessing import prepare_rows
from fedmvc_client.solvers.spectral import spectral_embedding
from fedmvc_client.solvers.spectral_term import SpectralTerm

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

# What a random stream is drawn for, beside the run's seed and the site's position.
_ANCHORS, _START, _SWEEP, _ALONE = 1, 2, 3, 4
#: Sweeps of the paper's local term alone, at most.
_SWEEPS_ALONE = 50


class TensorSite:
    """The local solver of one view.

    Parameters
    ----------
    view : ndarray of shape (N, d), or sparse matrix
        Rows in the order that the sites share; NaN = missing cell.
    settings : TensorSettings
    n_clusters : int
        K, at least 2.
    seed, position : int
        The run's seed and the site's place among the sites in name order.
    device : str
        See :func:`fedmvc_client.solvers.devices.resolve_device`. Profile "paper" sweeps on the CPU.
    name : str
        How a sentence calls the view.

    Attributes
    ----------
    held : ndarray of shape (N,), bool
        Rows with data; the other rows' labels are -1.
    warnings : tuple of str

    Raises
    ------
    DataRefused
        See :func:`fedmvc_client.solvers.preprocessing.prepare_rows`.
    ConfigError
        If there are fewer anchors than clusters, or the paper's distance does not fit.

    Notes
    -----
    All work runs on the held rows in the order of their content, and every random draw is by
    (seed, position), so a permuted view gives exactly the permuted labels; only rows of equal
    content may trade places. With ``sweep = "natural"`` this does not hold.
    """

    def __init__(
        self,
        view: NDArray[np.floating] | sparse.sparray | sparse.spmatrix,
        settings: TensorSettings,
        n_clusters: int,
        *,
        seed: int,
        position: int,
        device: str = "auto",
        name: str = "the view",
    ) -> None:
        self._settings = settings
        self._n_clusters = n_clusters
        self._name = name
        self._stream = (seed, position)
        prepared = prepare_rows(view, n_clusters, settings.scaling, name)
        self.held = prepared.held
        self.warnings = prepared.warnings
        self._rows = prepared.rows
        self._n_sweeps = 0
        # Equal anchors would tie at distance 0 and tear the graph into more parts than clusters.
        distinct = prepared.distinct
        anchors = distinct[
            choose_anchors(
                prepared.values[distinct],
                self._n_anchors(len(distinct)),
                settings.anchor_kind,
                self._rng(_ANCHORS),
            )
        ]
        graph = anchor_graph(prepared.values, anchors, settings.neighbours, resolve_device(device))
        self._term = self._local_term(graph)

    def start(self) -> tuple[Labels, float]:
        """Return the first labels (N,) and their trace.

        Profile "plus": k-means on the spectral embedding; profile "paper": at random.
        """
        trace = self._term.start(self._rng(_START))
        return self._labels(), trace

    def alone(self) -> Labels:
        """Return what the view says by itself (N,); to be asked between `start` and `sweep`.

        Profile "plus": the first labels. Profile "paper": what the local term makes of them without
        a blend, until no label moves or `_SWEEPS_ALONE` are over; the site itself stays as it was.
        """
        if isinstance(self._term, SpectralTerm):
            return self._labels()
        first = self._term.labels.copy()
        for number in range(_SWEEPS_ALONE):
            before = self._term.labels.copy()
            order = self._rng(_ALONE, number).permutation(len(self._rows))
            self._term.sweep(order, 1.0, None)
            if np.array_equal(before, self._term.labels):
                break
        labels = self._labels()
        self._term.labels = first
        return labels

    def rename(self, names: Labels) -> None:
        """Call cluster k ``names[k]``.

        Raises
        ------
        ProtocolError
            If ``names`` is not a permutation of 0..K-1.
        """
        new = np.array(names, dtype=np.int64)
        if not np.array_equal(np.sort(new), np.arange(self._n_clusters)):
            raise ProtocolError(
                f"the new names of the clusters of {self._name} are no permutation of 0 to "
                f"{self._n_clusters - 1}: the sites and the server must run the same plan"
            )
        self._term.rename(new)

    def sweep(
        self, weight: float, mu: float, z: NDArray | None, scale: float
    ) -> tuple[Labels, float]:
        """Run the plan's local sweeps against a fixed blend.

        Parameters
        ----------
        weight : float
            What the local term counts, made of ``alpha^r``.
        mu : float
        z : ndarray of shape (N, K), float64, float16 or int8, or None
            Blend of all sites in the shared order of rows, to be multiplied by ``scale``; None: no
            tensor term.
        scale : float

        Returns
        -------
        labels : ndarray of shape (N,), int64
            -1 where the view has no data.
        trace : float
            T_m of these labels.

        Raises
        ------
        ProtocolError
            If ``z`` has another shape.
        """
        expected = (len(self.held), self._n_clusters)
        if z is not None and z.shape != expected:
            raise ProtocolError(
                f"the blend for {self._name} has shape {z.shape} but its rows and clusters are "
                f"{expected}: the sites and the server must run the same plan"
            )

        def blend(rows: slice) -> Floats:
            assert z is not None
            part = z[self._rows[rows]].astype(np.float64)
            part *= scale
            part *= mu
            return part

        trace = 0.0
        for _ in range(self._settings.local_sweeps):
            if isinstance(self._term, SpectralTerm):
                trace = self._term.sweep(weight, None if z is None else blend)
            else:
                everything = None if z is None else blend(slice(None))
                trace = self._term.sweep(self._sweep_order(), weight, everything)
            self._n_sweeps += 1
        return self._labels(), trace

    def state(self) -> dict[str, NDArray]:
        """Return what a new process needs beside the data to go on bit for bit."""
        state = {"n_sweeps": np.array(self._n_sweeps), "labels": self._held_labels().copy()}
        if isinstance(self._term, SpectralTerm):
            state["centers"] = self._term.centers.cpu().numpy().copy()
        return state

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Go on from a saved state of the same view, plan and seed.

        Raises
        ------
        DataRefused
            If the state describes another number of rows.
        """
        labels = np.array(state["labels"], dtype=np.int64)
        if len(labels) != len(self._rows):
            raise DataRefused(
                f"the saved labels describe {len(labels)} rows but {self._name} has "
                f"{len(self._rows)} with data: go on with the data that the run began with"
            )
        self._n_sweeps = int(state["n_sweeps"])
        if isinstance(self._term, SpectralTerm):
            self._term.set_state(labels, np.array(state["centers"], dtype=np.float64))
        else:
            self._term.labels = labels

    def _n_anchors(self, n_distinct: int) -> int:
        if self._settings.anchors == 0:
            half = min(len(self._rows) // 2, LARGEST_ANCHORS)
            return min(max(half, self._n_clusters, 2), n_distinct)
        if self._settings.anchors < max(self._n_clusters, 2):
            raise ConfigError(
                f"anchors is {self._settings.anchors} but n_clusters is {self._n_clusters}: give "
                f"at least as many anchors as clusters, or 0 for half the rows"
            )
        return min(self._settings.anchors, n_distinct)

    def _local_term(self, graph: AnchorGraph) -> SpectralTerm | ButterworthTerm:
        if self._settings.profile == "plus":
            embedding = spectral_embedding(graph, self._n_clusters)
            lost = int((embedding == 0).all(dim=1).sum())
            if lost:
                self.warnings += (
                    f"{lost} of {len(self._rows)} rows of {self._name} have no part in its "
                    f"{self._n_clusters} strongest groups and fall to one cluster: give the view "
                    f"more columns or leave it out",
                )
            return SpectralTerm(embedding, self._settings.balance)
        similarity = butterworth_similarity(graph, self._settings.omega, self._name)
        return ButterworthTerm(similarity, self._n_clusters)

    def _rng(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([*self._stream, *purpose])

    def _sweep_order(self) -> Labels:
        """Return the places of the rows in the order of their turns."""
        if self._settings.sweep == "natural":
            return np.argsort(self._rows)
        return self._rng(_SWEEP, self._n_sweeps).permutation(len(self._rows))

    def _held_labels(self) -> Labels:
        if isinstance(self._term, SpectralTerm):
            return self._term.labels.cpu().numpy()
        return self._term.labels

    def _labels(self) -> Labels:
        labels = np.full(len(self.held), -1, dtype=np.int64)
        labels[self._rows] = self._held_labels()
        return labels
