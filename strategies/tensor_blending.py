"""State of the G and Q updates: P = H + Q/mu, kept so that a million rows fit one pass of memory.

`DenseTensor` writes the updates out for any orientation. `StreamedTensor` is "unfold", whose G is
P times a small M x M matrix A. So are Q/mu = ratio P (I - A) and Z = G - Q/mu: only P is kept, and
each round reads it three times in blocks of rows that fit a processor's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from configs.tensor_profiles import BlendEncoding, Orientation
from strategies.label_alignment import Labels
from strategies.label_coding import Blend, blend_scale, encode_blend, encode_with
from strategies.statistics import Floats
from strategies.tensor_svd import gram_map, largest_singular_value, shrink

__all__ = ["DenseTensor", "StreamedTensor", "Threshold"]

T = TypeVar("T")
Held = NDArray[np.bool_] | None

_TYPES = {"float64": np.float64, "float16": np.float16, "int8": np.int8}
#: Multiplications of a block's matrix product: below this a BLAS library uses one thread.
BLOCK_PRODUCT = 240_000
#: Cells of one site in a block: small enough for a cache, large enough for numpy.
LEAST_CELLS, MOST_CELLS = 1 << 10, 1 << 14


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
        self._labels: list[Labels] = []

    def add(self, labels: Sequence[Labels]) -> None:
        """Set P = H + Q/mu from the labels of the sites."""
        self._labels = list(labels)
        self._shifted = self._dual.copy()
        for m, own in enumerate(labels):
            rows = np.flatnonzero(own >= 0)
            self._shifted[rows, own[rows], m] += 1.0

    def largest_singular_value(self) -> float:
        """Return sigma_1 of P."""
        return largest_singular_value(self._shifted, self.orientation)

    def split(self, threshold: Threshold, ratio: float | None) -> float:
        """Shrink P to G, update Q/mu and the blends; return max|H - G| over held rows.

        Parameters
        ----------
        threshold : Threshold
        ratio : float or None
            mu before its growth over mu after; None leaves Q = 0 (the start).
        """
        shrunk, self.penalty = shrink(
            self._shifted,
            threshold.tau,
            threshold.p,
            self.orientation,
            threshold.iterations,
        )
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


class StreamedTensor:
    """Orientation "unfold" in three passes over P, for many rows.

    Parameters and attributes as `DenseTensor`'s. Blocks of rows run on several threads; sums are
    taken in the order of blocks, so nothing depends on the number of threads.
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
        # P of the last round; Q/mu is P times the carry matrix, 0 where a site lacks the row
        self._shifted = np.zeros((n_sites, n_rows * n_clusters))
        self._carry = np.zeros((n_sites, n_sites))
        self._gram = np.zeros((n_sites, n_sites))
        self._labels: list[Labels] = []

    def add(self, labels: Sequence[Labels]) -> None:
        """Set P = H + Q/mu from the labels of the sites."""
        self._labels = list(labels)
        n_sites = len(labels)
        carry = np.ascontiguousarray(self._carry.T)
        moved = bool(carry.any())

        def block(rows: slice) -> Floats:
            cells = self._cells(rows)
            part = self._shifted[:, cells]
            work = carry @ part if moved else np.zeros(part.shape)
            gram = np.empty((n_sites, n_sites))
            for m in range(n_sites):
                self._clear_missing(work, m, rows)
                work[m, self._positions(m, rows)] += 1.0
                for other in range(m + 1):
                    gram[m, other] = gram[other, m] = np.einsum("i,i->", work[m], work[other])
            part[:] = work
            return gram

        total = np.zeros((n_sites, n_sites))
        for gram in self._over_blocks(block):
            total += gram
        self._gram = total

    def largest_singular_value(self) -> float:
        """Return sigma_1 of P."""
        return float(np.sqrt(max(float(np.linalg.eigvalsh(self._gram)[-1]), 0.0)))

    def split(self, threshold: Threshold, ratio: float | None) -> float:
        """Shrink P to G, update Q/mu and the blends; return max|H - G| over held rows.

        Parameters as `DenseTensor.split`'s.
        """
        n_sites = len(self._held)
        shrinking, sigma = gram_map(self._gram, threshold.tau, threshold.p, threshold.iterations)
        self.penalty = float((sigma**threshold.p).sum())
        self._carry = (np.eye(n_sites) - shrinking) * (ratio or 0.0)
        blending = np.ascontiguousarray((shrinking - self._carry).T)
        both = np.concatenate([shrinking.T, blending])

        def extremes(rows: slice) -> Floats:
            work = both @ self._shifted[:, self._cells(rows)]
            largest = np.zeros(n_sites + 1)
            for m in range(n_sites):
                self._clear_missing(work, m, rows)
                self._clear_missing(work, n_sites + m, rows)
                work[m, self._positions(m, rows)] -= 1.0
                gap, z = work[m], work[n_sites + m]
                largest[m] = max(z.max(), -z.min())
                largest[-1] = max(largest[-1], gap.max(), -gap.min())
            return largest

        found = np.zeros(n_sites + 1)
        for largest in self._over_blocks(extremes):
            np.maximum(found, largest, out=found)
        scales = [blend_scale(float(x), self.encoding) for x in found[:-1]]
        shape = (self._n_rows, self._n_clusters)
        codes = [np.empty(shape, _TYPES[self.encoding]) for _ in scales]

        def encode(rows: slice) -> None:
            work = blending @ self._shifted[:, self._cells(rows)]
            for m, (code, scale) in enumerate(zip(codes, scales, strict=True)):
                self._clear_missing(work, m, rows)
                code[rows] = encode_with(work[m], scale, self.encoding).reshape(-1, shape[1])

        for _ in self._over_blocks(encode):
            pass
        self.blends = list(zip(codes, scales, strict=True))
        return float(found[-1])

    def drop(self, m: int) -> None:
        """Leave out site m."""
        n_sites = len(self._held)
        carry = np.ascontiguousarray(self._carry.T)

        def materialise(rows: slice) -> None:
            part = self._shifted[:, self._cells(rows)]
            work = carry @ part
            for site in range(n_sites):
                self._clear_missing(work, site, rows)
            part[:] = work

        for _ in self._over_blocks(materialise):
            pass
        del self._held[m], self.blends[m]
        self._shifted = np.delete(self._shifted, m, axis=0)
        self._carry = np.eye(n_sites - 1)

    # -- inside ------------------------------------------------------------------------------

    def _cells(self, rows: slice) -> slice:
        return slice(rows.start * self._n_clusters, rows.stop * self._n_clusters)

    def _positions(self, m: int, rows: slice) -> NDArray[np.int64]:
        """Where the block's labels of site m are 1 in its flat H."""
        labels = self._labels[m][rows]
        positions = np.arange(labels.size) * self._n_clusters + labels
        held = self._held[m]
        return positions if held is None else positions[held[rows]]

    def _clear_missing(self, work: Floats, line: int, rows: slice) -> None:
        """Set the rows that a site lacks to 0 in line ``line`` of a block."""
        held = self._held[line % len(self._held)]
        if held is not None:
            work[line].reshape(-1, self._n_clusters)[~held[rows]] = 0.0

    def _over_blocks(self, function: Callable[[slice], T]) -> Iterator[T]:
        """Yield the function's value of every block of rows, in order."""
        n_sites = len(self._held)
        most = BLOCK_PRODUCT // (2 * n_sites**2)
        cells = min(max(most, LEAST_CELLS), MOST_CELLS)
        size = max(cells // self._n_clusters, 1)
        blocks = [
            slice(start, min(start + size, self._n_rows))
            for start in range(0, self._n_rows, size)
        ]
        threads = min(n_threads(), len(blocks))
        if threads <= 1:
            yield from map(function, blocks)
            return
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(function, blocks)


def n_threads() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
