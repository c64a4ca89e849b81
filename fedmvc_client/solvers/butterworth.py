"""The local term of profile ``paper``: the Butterworth distance of Eq. (16), kept sparse.

``d_ij = (1 + (w_ij / omega)^4)^-1/2`` is 1 where two rows share no anchor, so
``D = 1 1^T - I - S`` with a sparse S is exact.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from configs.errors import ConfigError
from fedmvc_client.solvers.anchor_graph import AnchorGraph

if TYPE_CHECKING:
    from fedmvc_client.solvers.sweep import Labels

Floats = NDArray[np.float64]

#: Most pairs of rows that may share an anchor: 12 bytes each.
MAX_PAIRS = 150_000_000
# Beyond this multiple of omega a distance is 0 in float64; its fourth power is still finite.
_FAR = 1e60
_CHUNK_PAIRS = 4_000_000


def butterworth_similarity(graph: AnchorGraph, omega: float, name: str) -> sparse.csr_array:
    """Return S = 1 - d of Eq. (16) with an empty diagonal.

    Parameters
    ----------
    graph : AnchorGraph
    omega : float
        Cut-off of the roll-off, above 0.
    name : str
        How a sentence calls the view.

    Returns
    -------
    csr_array of shape (n, n)
        Symmetric bit for bit, entries in (0, 1].

    Raises
    ------
    ConfigError
        If S would have more than ``MAX_PAIRS`` entries.
    """
    links = graph.to_csr()
    rows_of_anchor = np.bincount(links.indices, minlength=graph.n_anchors)
    # At most so many entries in a row: the rows that its anchors have.
    pairs = np.add.reduceat(rows_of_anchor[links.indices], links.indptr[:-1])
    if pairs.sum() > MAX_PAIRS:
        raise ConfigError(
            f"the paper's distance of {name} would link up to {pairs.sum()} pairs of rows, beyond "
            f"{MAX_PAIRS}: take more anchors, fewer neighbours or profile 'plus'"
        )
    mass = np.asarray(links.sum(axis=0)).ravel()
    # Half of Delta^-1 on either side makes the product symmetric to the last bit.
    links.data /= np.sqrt(mass[links.indices])
    transposed = sparse.csr_array(links.T)
    blocks = []
    ends = np.searchsorted(
        np.cumsum(pairs), np.arange(_CHUNK_PAIRS, pairs.sum() + _CHUNK_PAIRS, _CHUNK_PAIRS)
    )
    bounds = np.unique(np.concatenate([[0], ends, [len(pairs)]]).clip(max=len(pairs)))
    for first, last in pairwise(bounds):
        block = links[first:last] @ transposed
        block.data = _roll_off(block.data, omega)
        block = block.tocoo()
        kept = (block.row + first != block.col) & (block.data > 0.0)
        blocks.append(
            sparse.csr_array(
                (block.data[kept], (block.row[kept], block.col[kept])), shape=block.shape
            )
        )
    similarity = sparse.csr_array(sparse.vstack(blocks, format="csr"))
    similarity.sort_indices()
    return similarity


def _roll_off(affinity: Floats, omega: float) -> Floats:
    """Return ``1 - (1 + (w / omega)^4)^-1/2`` without cancellation where w is small."""
    ratio = np.minimum(affinity / omega, _FAR)
    return np.asarray(-np.expm1(-0.5 * np.log1p(ratio**4)))


class ButterworthTerm:
    """Labels of one view under the paper's distance.

    Parameters
    ----------
    similarity : csr_array of shape (n, n)
        S in content order; any S of a distance ``1 1^T - I - S`` serves.
    n_clusters : int
    """

    def __init__(self, similarity: sparse.csr_array, n_clusters: int) -> None:
        # numba takes its time to load: nothing but this term may ask for it.
        from fedmvc_client.solvers import sweep

        self._kernels = sweep
        self._similarity = similarity
        self._n_clusters = n_clusters
        self.labels: Labels = np.zeros(similarity.shape[0], dtype=np.int64)

    def start(self, rng: np.random.Generator) -> float:
        """Label every row at random; return the trace."""
        self.labels = rng.integers(self._n_clusters, size=len(self.labels))
        return self._kernels.distance_trace(self._similarity, self.labels)

    def sweep(self, order: Labels, weight: float, blend: Floats | None) -> float:
        """Let the rows choose one after the other (Eq. 30); return ``Tr(H^T D H)``."""
        self.labels = self._kernels.sequential_sweep(
            self._similarity, self.labels, order, self._n_clusters, weight, blend
        )
        return self._kernels.distance_trace(self._similarity, self.labels)

    def rename(self, names: Labels) -> None:
        """Call cluster k ``names[k]``."""
        self.labels = names[self.labels]
