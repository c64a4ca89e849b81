import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedmvc_client.solvers.initialisation import local_seeds
from fedmvc_client.solvers.views import PreparedViews
from tests.solvers.cases import blobs, make_case


def seeds(case, n_clusters=3, n_starts=4, seed=0, **options):
    mean = [x.mean(axis=0) for x in case.reference.x]
    spread = np.array([x.var(axis=0).sum() for x in case.reference.x])
    return local_seeds(
        case.prepared, n_clusters, n_starts, seed, view_spread=spread, mean=mean, **options
    )


def test_first_start_finds_separated_clusters():
    rng = np.random.default_rng(0)
    label = np.repeat([0, 1, 2], [50, 30, 20])
    middle = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    views = [middle[label] + 0.1 * rng.normal(size=(100, 2)) for _ in range(2)]
    case = make_case(views, "one", "none")

    centers, counts = seeds(case)

    assert counts.shape == (4, 3)
    order = np.argsort(-counts[0])
    np.testing.assert_array_equal(counts[0][order], [50, 30, 20])
    for found in centers:
        assert found.shape == (4, 3, 2)
        np.testing.assert_allclose(found[0][order], middle, atol=0.1)


def test_later_starts_differ_and_the_seed_decides():
    case = make_case(blobs(n=500, separation=0.5), "one", "standard")

    centers, counts = seeds(case, seed=3)
    again, _ = seeds(case, seed=3)
    other, _ = seeds(case, seed=4)

    assert len({centers[0][r].tobytes() for r in range(4)}) == 4
    np.testing.assert_array_equal(centers[1], again[1])
    assert not np.array_equal(centers[1], other[1])
    np.testing.assert_array_equal(counts.sum(axis=1), 500)


def test_seeds_do_not_depend_on_the_number_of_threads():
    case = make_case(blobs(n=6000, dims=(5, 8), separation=0.5), "one", "standard")
    with threadpool_limits(1):
        one, _ = seeds(case)
    with threadpool_limits(2):
        two, _ = seeds(case)

    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n_distinct", [1, 2])
def test_no_more_clusters_than_distinct_rows(n_distinct):
    views = [np.repeat(np.arange(n_distinct, dtype=float), 20)[:, None] for _ in range(2)]
    case = make_case(views, "one", "none")

    centers, counts = seeds(case, n_clusters=4)

    assert counts.shape == (4, n_distinct)
    np.testing.assert_allclose(np.sort(centers[0][0, :, 0]), np.arange(n_distinct))


def test_missing_cells_take_the_pooled_mean_and_a_missing_view_all_of_it():
    views = blobs()
    views[0][:3, 1] = np.nan
    case = make_case(views, "one", "standard")
    prepared = PreparedViews([views[0], None], case.scaling, "one", cell_mass=[True, True])

    centers, _ = local_seeds(
        prepared,
        3,
        2,
        0,
        view_spread=np.ones(2),
        mean=[np.zeros(2), np.array([1.0, 2.0, 3.0])],
    )

    assert np.isfinite(centers[0]).all()
    np.testing.assert_allclose(centers[1], np.broadcast_to([1.0, 2.0, 3.0], (2, 3, 3)))


def test_view_of_spread_zero_does_not_steer_the_seeds():
    views = blobs(n=300)
    noise = [views[0], 1e6 * np.random.default_rng(0).normal(size=(300, 2))]
    case = make_case(noise, "one", "none")
    mean = [x.mean(axis=0) for x in case.reference.x]
    alone = make_case(views[:1], "one", "none")

    found, _ = local_seeds(case.prepared, 3, 1, 0, view_spread=np.array([1.0, 0.0]), mean=mean)
    expected, _ = local_seeds(alone.prepared, 3, 1, 0, view_spread=np.ones(1), mean=mean[:1])

    np.testing.assert_allclose(found[0], expected[0])


def test_a_sample_is_clustered_where_there_are_many_rows():
    case = make_case(blobs(n=1000), "one", "standard")

    centers, counts = seeds(case, max_rows=100)

    np.testing.assert_allclose(counts.sum(axis=1), 1000)
    assert np.isfinite(centers[0]).all()
