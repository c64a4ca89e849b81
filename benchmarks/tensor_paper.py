"""Profile "paper" of TensorFMVC as the paper ran it, over a grid, and its ablations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import normalized_mutual_info_score

from benchmarks.common import Dataset, Floats, Ints, accuracy
from configs.tensor_profiles import TensorSettings, resolve_tensor
from fedmvc_client.solvers.butterworth import ButterworthTerm
from fedmvc_client.solvers.preprocessing import prepare_rows
from fedmvc_client.solvers.tensor_site import TensorSite
from strategies.tensor_admm import TensorDriver, TensorResult


class Score(NamedTuple):
    """ACC and NMI of one run."""

    acc: float
    nmi: float


#: Lambda and r.
Point = tuple[float, float]
#: A set with its rows in some order, and a seed.
Case = tuple[Dataset, int]
Runs = list[Score]
SiteOf = Callable[[Any, TensorSettings, int, int, int], TensorSite]


def scored(truth: Ints, found: Ints) -> Score:
    """Score labels against the true classes."""
    return Score(accuracy(truth, found), float(normalized_mutual_info_score(truth, found)))


def laid_out(values: Any) -> Floats:
    """Return a sparse matrix as a dense array, and a dense one as it is."""
    return np.asarray(values.toarray() if sparse.issparse(values) else values)


def mean_acc(runs: Runs) -> float:
    """Mean accuracy of some runs."""
    return float(np.mean([run.acc for run in runs]))


def paper_settings(lam: float = 1.0, r: float = 5.0) -> TensorSettings:
    """Profile "paper" as the paper ran it: orientation "sample", rows swept in their order."""
    return resolve_tensor("paper", lam=lam, r=r, sweep="natural")


def paper_site(
    view: Any, settings: TensorSettings, n_clusters: int, seed: int, position: int
) -> TensorSite:
    """Return a site with the anchor graph's distance of Eq. 16."""
    return TensorSite(view, settings, n_clusters, seed=seed, position=position)


def euclidean_site(
    view: Any, settings: TensorSettings, n_clusters: int, seed: int, position: int
) -> TensorSite:
    """Return a site whose distance is the squared Euclidean one over its largest (case 2)."""
    site = paper_site(view, settings, n_clusters, seed, position)
    values = prepare_rows(view, n_clusters, settings.scaling, "the view").values
    distance = squareform(pdist(laid_out(values)) ** 2)
    similarity = 1.0 - distance / distance.max()
    np.fill_diagonal(similarity, 0.0)
    site._term = ButterworthTerm(sparse.csr_array(similarity), n_clusters)
    return site


class PaperSites:
    """The sites of profile "paper" at their random start, for many points of the grid."""

    def __init__(self, case: Case, site_of: SiteOf = paper_site) -> None:
        dataset, seed = case
        self._n_clusters = dataset.n_clusters
        self._sites = {
            f"{m}": site_of(view, paper_settings(), self._n_clusters, seed, m)
            for m, view in enumerate(dataset.views)
        }
        self._starts = {name: site.start() for name, site in self._sites.items()}
        self._alone = {name: site.alone() for name, site in self._sites.items()}
        self._state = {name: site.state() for name, site in self._sites.items()}

    def run(self, point: Point) -> TensorResult:
        """Run the rounds with lambda and r from the same start."""
        for name, site in self._sites.items():
            site.restore(self._state[name])
        driver = TensorDriver(
            paper_settings(*point),
            self._n_clusters,
            {name: labels for name, (labels, _) in self._starts.items()},
            {name: trace for name, (_, trace) in self._starts.items()},
            alone=self._alone,
            tol=1e-6,
            max_rounds=150,
        )
        while not driver.done:
            replies = {}
            for name, site in self._sites.items():
                query = driver.query(name)
                replies[name] = site.sweep(query.weight, query.mu, query.z, query.scale)
            driver.advance(
                {name: labels for name, (labels, _) in replies.items()},
                {name: trace for name, (_, trace) in replies.items()},
            )
        return driver.result()


def paper_grid(
    cases: Iterable[Case], points: Sequence[Point], site_of: SiteOf = paper_site
) -> tuple[dict[Point, Runs], Runs]:
    """Score every point of the grid in every case, and the vote without the tensor term."""
    table: dict[Point, Runs] = {point: [] for point in points}
    votes = []
    for case in cases:
        truth = case[0].labels
        sites = PaperSites(case, site_of)
        for point in points:
            result = sites.run(point)
            table[point].append(scored(truth, result.labels))
        votes.append(scored(truth, result.vote))
    return table, votes


def best_point(table: Mapping[Point, Runs]) -> Point:
    """Return the point of the highest mean accuracy: picked by the true labels."""
    return max(table, key=lambda point: mean_acc(table[point]))
