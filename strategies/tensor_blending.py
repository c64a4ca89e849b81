"""State of the G and Q updates: P = H + Q/mu, kept so that a million rows fit one pass of memory.

`DenseTensor` writes the updates out for any orientation. `StreamedTensor` is "unfold", whose G is
P times a small M x M matrix A. So are Q/mu = ratio P (I - A) and Z = G - Q/mu: only P is kept, and
each round reads it three times in blocks of rows that fit a processor's cache.

A row that a site does not hold has no label there and no constraint H = G: its P is the last G, at
first the mean of what the other sites say. With 0 in its place the shrinkage would take the gap for
disagreement, and Q would drive the sites that do hold the row away from their own labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.tensor_profiles import BlendEncoding, Orientation
from strategies.label_alignment import Labels
from strategies.label_coding import Blend, blend_scale, encode_blend, encode_with
from strategies.statistics import Floats
from strategies.tensor_svd import gram_map, largest_singular_value, shrink

__all__ = ["DenseTensor", "StreamedTensor", "Threshold"]

Held = NDArray[np.bool_] | None

_TYPES = {"float64": np.float64, "float16": np.float16, "int8": np.int8}
#: Multiplications of a block's matrix product, and cells of one site in a block: below these a BLAS
#: library uses one thread, so that no result depends on the number of threads. More threads of our
#: own do not pay: the operations on a block that fits a cache are too short to share.
BLOCK_PRODUCT = 240_000
LEAST_CELLS, MOST_CELLS = 1_000, 10_000


@dataclass(frozen=True)
class Threshold:
    """What `strategies.tensor_svd.gst` takes: tau = lambda / mu, p and its iterations."""

    tau: float
    p: float
    iterations: int


class DenseTensor:
    """G and Q of any orientation as full (N, K, M) tensors.

    Parameters
    ----------
    n_rows, n_clusters : int
    held : sequence of (ndarray of shape (N,), bool) or None
        Which rows each site holds; None for all.
    orientation : {"sample", "cluster", "view", "unfold", "identity"}
    encoding : {"float64", "float16", "int8"}

    Attributes
    ----------
    penalty : float
        ``||G||_Sp^p``; 0 before the first G.
    blends : list of (array of shape (N, K) or None, float)
        Z of each site as it is sent, and its scale.
    """

    def __init__(
        self,
        n_rows: int,
        n_clusters: int,
        held: Sequence[Held],
        orientation: Orientation,
        encoding: BlendEncoding,
    ) -> None:
        self.orientation = orientation
        self.encoding = encoding
        self.penalty = 0.0
        self.blends: list[tuple[Blend | None, float]] = [(None, 1.0) for _ in held]
        self._held = list(held)
        self._shifted = np.zeros((n_rows, n_clusters, len(held)))
        self._dual = np.zeros_like(self._shifted)
        self._unheld: Floats | None = None  # the last G

    def add(self, labels: Sequence[Labels]) -> None:
        """Set P = H + Q/mu from the labels of the sites."""
        self._shifted = self._dual.copy()
        for m, own in enumerate(labels):
            rows = np.flatnonzero(own >= 0)
            self._shifted[rows, own[rows], m] += 1.0
        if self._unheld is None:
            count = np.sum([own >= 0 for own in labels], axis=0).clip(1)
            mean = self._shifted.sum(axis=2) / count[:, None]
            self._unheld = np.repeat(mean[:, :, None], len(labels), axis=2)
        for m, held in enumerate(self._held):
            if held is not None:
                self._shifted[~held, :, m] = self._unheld[~held, :, m]

    def largest_singular_value(self) -> float:
        """Return sigma_1 of P."""
        return largest_singular_value(self._shifted, self.orientation)

    def split(self, threshold: Threshold, ratio: float | None, until: float = np.inf) -> float:
        """Shrink P to G, update Q/mu and the blends; return max|H - G| over held rows.

        Parameters
        ----------
        threshold : Threshold
        ratio : float or None
            mu before its growth over mu after; None leaves Q = 0 (the start).
        until : float
            From here on the maximum need not be exact: a value of at least ``until`` that was met
            is returned. 0 where it is not needed.
        """
        shrunk, self.penalty = shrink(
            self._shifted,
            threshold.tau,
            threshold.p,
            self.orientation,
            threshold.iterations,
        )
        self._unheld = shrunk.copy()
        gap = self._shifted - self._dual - shrunk
        following = (self._shifted - shrunk) * ratio if ratio is not None else self._dual
        for m, held in enumerate(self._held):
            if held is not None:
                for array in (gap, following, shrunk):
                    array[~held, :, m] = 0.0
        self._dual = following
        blend = np.moveaxis(shrunk - following, 2, 0)
        self.blends = [encode_blend(np.ascontiguousarray(z), self.encoding) for z in blend]
        return float(np.abs(gap).max())

    def drop(self, m: int) -> None:
        """Leave out site m."""
        del self._held[m], self.blends[m]
        self._dual = np.delete(self._dual, m, axis=2)
        if self._unheld is not None:
            self._unheld = np.delete(self._unheld, m, axis=2)


class StreamedTensor:
    """Orientation "unfold" in three passes over P, for many rows.

    Parameters and attributes as `DenseTensor`'s.
    """

    def __init__(
        self,
        n_rows: int,
        n_clusters: int,
        held: Sequence[Held],
        orientation: Orientation,
        encoding: BlendEncoding,
    ) -> None:
        if orientation != "unfold":
            raise ValueError(f"orientation {orientation!r} cannot be streamed")
        n_sites = len(held)
        self.encoding = encoding
        self.penalty = 0.0
        self.blends: list[tuple[Blend | None, float]] = [(None, 1.0) for _ in held]
        self._n_rows = n_rows
        self._n_clusters = n_clusters
        self._held = list(held)
        # P of the last round; from it the carry map makes Q/mu where a site holds the row, the
        # unheld map G where it does not
        self._shifted = np.zeros((n_sites, n_rows * n_clusters))
        self._carry = np.zeros((n_sites, n_sites))
        self._unheld: Floats | None = None
        self._gram = np.zeros((n_sites, n_sites))
        self._labels: list[Labels] = []

    def add(self, labels: Sequence[Labels]) -> None:
        """Set P = H + Q/mu from the labels of the sites."""
        self._labels = list(labels)
        n_sites = len(labels)
        carry = np.ascontiguousarray(self._carry.T)
        self._gram = np.zeros((n_sites, n_sites))
        for rows, cells in self._blocks():
            part = self._shifted[:, cells]
            work = carry @ part
            for m, line in enumerate(work):
                self._clear_missing(line, m, rows)
                line[self._positions(m, rows)] += 1.0
            self._fill_missing(work, part, rows)
            for m, line in enumerate(work):
                for other in range(m + 1):
                    self._gram[m, other] += np.dot(line, work[other])
            part[:] = work
        self._gram = np.tril(self._gram) + np.tril(self._gram, -1).T

    def largest_singular_value(self) -> float:
        """Return sigma_1 of P."""
        return float(np.sqrt(max(float(np.linalg.eigvalsh(self._gram)[-1]), 0.0)))

    def split(self, threshold: Threshold, ratio: float | None, until: float = np.inf) -> float:
        """Shrink P to G, update Q/mu and the blends; return max|H - G| over held rows.

        Parameters as `DenseTensor.split`'s.
        """
        n_sites = len(self._held)
        shrinking, sigma = gram_map(self._gram, threshold.tau, threshold.p, threshold.iterations)
        self.penalty = float((sigma**threshold.p).sum())
        self._carry = (np.eye(n_sites) - shrinking) * (ratio or 0.0)
        self._unheld = np.ascontiguousarray(shrinking.T)
        blending = np.ascontiguousarray((shrinking - self._carry).T)
        both = np.concatenate([blending, self._unheld])
        found = np.zeros(n_sites)
        residual = 0.0
        for rows, cells in self._blocks():
            work = (both if residual < until else blending) @ self._shifted[:, cells]
            for m in range(n_sites):
                self._clear_missing(work[m], m, rows)
                found[m] = max(found[m], work[m].max(), -work[m].min())
            for m, gap in enumerate(work[n_sites:]):
                self._clear_missing(gap, m, rows)
                gap[self._positions(m, rows)] -= 1.0
                residual = max(residual, gap.max(), -gap.min())
        scales = [blend_scale(float(x), self.encoding) for x in found]
        codes = [np.empty((self._n_rows, self._n_clusters), _TYPES[self.encoding]) for _ in scales]
        for rows, cells in self._blocks():
            work = blending @ self._shifted[:, cells]
            for m, (code, scale) in enumerate(zip(codes, scales, strict=True)):
                self._clear_missing(work[m], m, rows)
                code.reshape(-1)[cells] = encode_with(work[m], scale, self.encoding)
        self.blends = list(zip(codes, scales, strict=True))
        return float(residual)

    def drop(self, m: int) -> None:
        """Leave out site m."""
        carry = np.ascontiguousarray(self._carry.T)
        for rows, cells in self._blocks():
            part = self._shifted[:, cells]
            work = carry @ part
            self._fill_missing(work, part, rows)
            part[:] = work
        del self._held[m], self.blends[m]
        self._shifted = np.delete(self._shifted, m, axis=0)
        self._carry = self._unheld = np.eye(len(self._held))

    # -- inside ------------------------------------------------------------------------------

    def _positions(self, m: int, rows: slice) -> NDArray[np.int64]:
        """Where the block's labels of site m are 1 in its flat H."""
        labels = self._labels[m][rows]
        positions = np.arange(labels.size) * self._n_clusters + labels
        held = self._held[m]
        return positions if held is None else positions[held[rows]]

    def _clear_missing(self, line: Floats, m: int, rows: slice) -> None:
        """Set the rows that site m lacks to 0 in its line of a block."""
        held = self._held[m]
        if held is not None:
            line.reshape(-1, self._n_clusters)[~held[rows]] = 0.0

    def _fill_missing(self, work: Floats, part: Floats, rows: slice) -> None:
        """Set P of the rows that a site lacks: to the last G, at first to the others' mean."""
        if all(held is None for held in self._held):
            return
        shape = (len(self._held), -1, self._n_clusters)
        if self._unheld is not None:
            values = (self._unheld @ part).reshape(shape)
        else:
            count = np.sum([labels[rows] >= 0 for labels in self._labels], axis=0).clip(1)
            mean = work.reshape(shape).sum(axis=0) / count[:, None]
            values = np.broadcast_to(mean, (len(self._held), *mean.shape))
        for m, held in enumerate(self._held):
            if held is not None:
                work[m].reshape(-1, self._n_clusters)[~held[rows]] = values[m][~held[rows]]

    def _blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield blocks of rows, each with the slice of its cells."""
        n_clusters = self._n_clusters
        cells = min(max(BLOCK_PRODUCT // (2 * len(self._held) ** 2), LEAST_CELLS), MOST_CELLS)
        size = max(cells // n_clusters, 1)
        for start in range(0, self._n_rows, size):
            stop = min(start + size, self._n_rows)
            yield slice(start, stop), slice(start * n_clusters, stop * n_clusters)
