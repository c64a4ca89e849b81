"""The signed normalised Laplacian of a view's features, from their nearest neighbours.

Features are close where they correlate, whatever the sign. With S the cosines of the kept pairs
and D the row sums of ``|S|``, ``Q = I - D^(-1/2) S D^(-1/2)`` has eigenvalues in [0, 2]. It is
sparse and built in blocks of rows: nothing of size d x d is ever laid out.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse

from fedmvc_client.solvers.chunks import fold_chunks

#: Neighbours of a feature.
NEIGHBOURS = 5
#: Most cosines held at once by one thread.
BLOCK_CELLS = 4_000_000


def feature_laplacian(
    features: torch.Tensor,
    neighbours: int = NEIGHBOURS,
    *,
    n_threads: int | None = None,
    block_cells: int = BLOCK_CELLS,
) -> torch.Tensor:
    """Return Q of a prepared view.

    Parameters
    ----------
    features : torch.Tensor of shape (d, n), float64
        Rows are centred features, 0 where missing.
    neighbours : int, default 5
        Partners that each feature keeps; a pair stays if either keeps the other.
    n_threads : int, optional
        See :func:`fedmvc_client.solvers.chunks.fold_chunks`; the result does not depend on it.
    block_cells : int
        Most cosines of a block.

    Returns
    -------
    torch.Tensor of shape (d, d), float64, sparse COO
        On the device of ``features``. The row of a feature without any partner is 0.
    """
    n_features = features.shape[0]
    lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    unit = features / torch.where(lengths > 0, lengths, 1.0)
    k = min(neighbours, n_features - 1)
    rows_per_block = min(max(block_cells // n_features, 1), n_features)
    n_blocks = -(-n_features // rows_per_block)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def nearest(block: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = block * rows_per_block
        cosines = unit[first : first + rows_per_block] @ unit.T
        own = torch.arange(len(cosines), device=unit.device)
        cosines[own, own + first] = 0.0
        index = cosines.abs().topk(k, dim=1).indices
        return index.cpu(), cosines.gather(1, index).cpu()

    fold_chunks(nearest, found.append, n_blocks, device=features.device, n_threads=n_threads)
    index = torch.cat([index for index, _ in found]).numpy().ravel()
    cosine = torch.cat([cosine for _, cosine in found]).numpy().ravel()
    rows = np.repeat(np.arange(n_features), k)
    kept = sparse.coo_array((cosine, (rows, index)), shape=(n_features,) * 2).tocsr()
    return _normalised(kept).to(features.device)


def _normalised(kept: sparse.csr_array) -> torch.Tensor:
    """Make the kept cosines symmetric and return their Laplacian."""
    other = sparse.csr_array(kept.T)
    # a pair that both keep has one cosine up to rounding
    stronger = (abs(other) > abs(kept)).astype(np.float64)
    joined = kept + (other - kept).multiply(stronger)
    degree = np.asarray(abs(joined).sum(axis=1)).ravel()
    root = np.divide(1.0, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0)
    scaled = sparse.diags_array(root) @ joined @ sparse.diags_array(root)
    laplacian = sparse.coo_array(sparse.diags_array((degree > 0).astype(np.float64)) - scaled)
    laplacian.eliminate_zeros()
    return torch.sparse_coo_tensor(
        torch.from_numpy(np.stack(laplacian.coords).astype(np.int64)),
        torch.from_numpy(laplacian.data),
        laplacian.shape,
        check_invariants=True,
    ).coalesce()
