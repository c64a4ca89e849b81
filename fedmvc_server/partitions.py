"""How one data set is dealt to several sites. Every function covers each row exactly once."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from configs.errors import ConfigError

__all__ = [
    "Partition",
    "partition",
    "partition_dirichlet",
    "partition_iid",
    "partition_missing",
    "partition_paper",
    "partition_stratified",
]

Partition = Literal["paper", "iid", "dirichlet", "missing", "stratified"]

_DRAWS = 1000


def partition(
    kind: str, labels: np.ndarray, sites: int, *, alpha: float = 0.3, seed: int = 0
) -> list[np.ndarray]:
    """Deal rows to sites.

    Parameters
    ----------
    kind : {"paper", "iid", "dirichlet", "missing", "stratified"}
        How; see the function of that name.
    labels : ndarray of shape (n,), int
        True cluster of each row.
    sites : int
        Number of sites, at least 1.
    alpha : float, default 0.3
        Concentration of the Dirichlet partition, above 0; smaller is more uneven.
    seed : int, default 0
        Seed of the generator.

    Returns
    -------
    list of ndarray, int64
        One sorted index array a site, none of them empty.

    Raises
    ------
    ConfigError
        If the kind is unknown, there are fewer rows than sites, or the partition cannot give every
        site a row.
    """
    if kind not in get_args(Partition):
        raise ConfigError(
            f"partition is {kind!r}; allowed: {', '.join(map(repr, get_args(Partition)))}."
        )
    if sites < 1:
        raise ConfigError(f"sites is {sites}: give 1 or more.")
    if labels.size < sites:
        raise ConfigError(
            f"{labels.size} rows cannot fill {sites} sites: give more rows or fewer sites."
        )
    if seed < 0:
        raise ConfigError(f"seed is {seed}: give a whole number, 0 or more.")
    rng = np.random.default_rng(seed)
    if kind == "paper":
        parts = partition_paper(labels, sites, rng)
    elif kind == "iid":
        parts = partition_iid(labels, sites, rng)
    elif kind == "dirichlet":
        parts = partition_dirichlet(labels, sites, rng, alpha=alpha)
    elif kind == "missing":
        parts = partition_missing(labels, sites, rng)
    else:
        parts = partition_stratified(labels, sites, rng)
    for site, rows in enumerate(parts):
        if rows.size == 0:
            raise ConfigError(
                f"partition '{kind}' of {labels.size} rows leaves site {site + 1} of {sites} "
                "without a row: give more rows or fewer sites."
            )
    return parts


def partition_paper(
    labels: np.ndarray, sites: int, rng: np.random.Generator, *, share: float = 0.85
) -> list[np.ndarray]:
    """Give the first site 85% of every cluster and the others equal parts of the rest.

    With two sites this is the paper's 8,500 / 1,500 (Eqs. 109-110): stratified, without
    replacement. One site alone gets everything.
    """
    if sites == 1:
        return [np.arange(labels.size)]
    dealt: list[list[np.ndarray]] = [[] for _ in range(sites)]
    turn = 0
    for rows in _clusters(labels, rng):
        first = round(share * rows.size)
        dealt[0].append(rows[:first])
        turn = _deal(rows[first:], dealt[1:], turn)
    return _collect(dealt)


def partition_stratified(
    labels: np.ndarray, sites: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Give every site an equal part of every cluster; leftovers go round the sites."""
    dealt: list[list[np.ndarray]] = [[] for _ in range(sites)]
    turn = 0
    for rows in _clusters(labels, rng):
        turn = _deal(rows, dealt, turn)
    return _collect(dealt)


def partition_iid(labels: np.ndarray, sites: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Give every site an equal number of rows, drawn without regard to the clusters."""
    return [np.sort(rows) for rows in np.array_split(rng.permutation(labels.size), sites)]


def partition_dirichlet(
    labels: np.ndarray, sites: int, rng: np.random.Generator, *, alpha: float = 0.3
) -> list[np.ndarray]:
    """Deal every cluster in proportions drawn from Dirichlet(alpha).

    A draw that leaves a site with fewer than 50 rows (or a quarter of an equal share, where that is
    less) is drawn again, up to a thousand times.
    """
    if not 0.0 < alpha < np.inf:
        raise ConfigError(f"alpha is {alpha}: give a number above 0.")
    least = max(1, min(50, labels.size // (4 * sites)))
    clusters = _clusters(labels, rng)
    sizes = np.array([rows.size for rows in clusters])
    for _ in range(_DRAWS):
        shares = rng.dirichlet(np.full(sites, alpha), size=sizes.size)
        cuts = np.rint(np.cumsum(shares, axis=1)[:, :-1] * sizes[:, None]).astype(np.int64)
        dealt = [np.split(rows, cut) for rows, cut in zip(clusters, cuts, strict=True)]
        hands = [list(hand) for hand in zip(*dealt, strict=True)]
        if min(sum(part.size for part in hand) for hand in hands) >= least:
            return _collect(hands)
    raise ConfigError(
        f"no Dirichlet({alpha:g}) draw of {_DRAWS} gave each of {sites} sites {least} of "
        f"{labels.size} rows: give a larger alpha or fewer sites."
    )


def partition_missing(
    labels: np.ndarray, sites: int, rng: np.random.Generator, *, held: int = 2
) -> list[np.ndarray]:
    """Give every site rows of two clusters only, and every cluster to at least one site.

    The first sites take the clusters in turn until all are held; the further sites draw two
    clusters each. A cluster's rows are dealt equally to the sites that hold it.
    """
    clusters = np.unique(labels)
    held = min(held, clusters.size)
    if sites * held < clusters.size:
        raise ConfigError(
            f"{sites} site{'s' if sites > 1 else ''} with {held} clusters each cannot hold "
            f"{clusters.size} clusters: give {-(-clusters.size // held)} or more sites."
        )
    holders: list[list[int]] = [[] for _ in clusters]
    for site in range(sites):
        if site * held < clusters.size:
            chosen = np.arange(site * held, (site + 1) * held) % clusters.size
        else:
            chosen = rng.choice(clusters.size, held, replace=False)
        for cluster in chosen.tolist():
            holders[cluster].append(site)
    dealt: list[list[np.ndarray]] = [[] for _ in range(sites)]
    turn = 0
    for holding, rows in zip(holders, _clusters(labels, rng), strict=True):
        turn = _deal(rows, [dealt[site] for site in holding], turn)
    return _collect(dealt)


def _clusters(labels: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]


def _deal(rows: np.ndarray, hands: list[list[np.ndarray]], turn: int) -> int:
    """Deal rows like cards, beginning at `turn`, and return whose turn it is next."""
    for offset in range(len(hands)):
        hands[(turn + offset) % len(hands)].append(rows[offset :: len(hands)])
    return (turn + rows.size) % len(hands)


def _collect(dealt: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [np.sort(np.concatenate(parts)) for parts in dealt]
