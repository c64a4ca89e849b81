"""TensorSite: one site's view from its rows to its labels."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from threadpoolctl import threadpool_limits

from configs.errors import ConfigError, DataRefused, ProtocolError
from configs.tensor_profiles import resolve_tensor
from fedmvc_client.solvers.preprocessing import prepare_rows
from fedmvc_client.solvers.tensor_site import TensorSite
from tests.solvers.cases import blobs

ROOT = Path(__file__).parents[2]
PROFILES = ("plus", "paper")


def dense_view(n=150):
    return blobs(n=n, dims=(5,), separation=1.0)[0]


def word_counts(n=150):
    rng = np.random.default_rng(0)
    topic = rng.random((3, 80)) ** 6
    return sparse.csr_array(rng.poisson(topic[rng.integers(3, size=n)]).astype(np.float64))


def histograms(n=150):
    """Integer histograms of one total: every score of DAS is the same."""
    rng = np.random.default_rng(0)
    kind = rng.dirichlet(np.ones(8), size=3)
    return np.array([rng.multinomial(64, kind[k]) for k in rng.integers(3, size=n)]) * 1.0


def with_missing(n=150):
    x = dense_view(n)
    rng = np.random.default_rng(1)
    x[rng.random(x.shape) < 0.05] = np.nan
    x[rng.choice(n, 12, replace=False)] = np.nan
    return x


VIEWS = {
    "dense": (dense_view, "auto"),
    "sparse": (word_counts, "auto"),
    "tied": (histograms, "none"),
    "missing": (with_missing, "auto"),
}


def blend(n, n_clusters, encoding=np.float64, seed=0):
    z = np.random.default_rng(seed).normal(size=(n, n_clusters))
    return np.rint(40 * z).clip(-127, 127).astype(np.int8) if encoding == np.int8 else z


def walk(view, settings, z, n_clusters=3, **options):
    """Start, rename and three exchanges; every result on the way."""
    options = {"seed": 7, "position": 1, **options}
    site = TensorSite(view, settings, n_clusters, **options)
    results = [site.start()]
    site.rename(np.roll(np.arange(n_clusters), 1))
    scale = 0.01 if z.dtype == np.int8 else 1.0
    mu = 0.3 if settings.profile == "plus" else 5.0
    if settings.profile == "paper":
        results.append(site.sweep(0.8, mu, None, 1.0))
    results += [site.sweep(0.8, mu, z, scale) for _ in range(3)]
    return results


def assert_permuted(found, expected, permuted):
    for (labels, trace), (others, other_trace) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(labels, others[permuted])
        assert trace == other_trace


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("anchor_kind", ["das", "random", "pc1"])
def test_permuted_rows_get_exactly_the_permuted_labels(anchor_kind, kind, profile):
    make, scaling = VIEWS[kind]
    view, z = make(), blend(150, 3, np.int8 if profile == "plus" else np.float64)
    settings = resolve_tensor(profile, anchor_kind=anchor_kind, scaling=scaling)
    permuted = np.random.default_rng(3).permutation(150)

    expected = walk(view, settings, z)

    assert_permuted(walk(view[permuted], settings, z[permuted]), expected, permuted)
    moved = [(labels != expected[0][0]).sum() for labels, _ in expected[1:]]
    assert max(moved) > 0


def test_natural_sweep_depends_on_the_order_of_the_rows():
    """The order artefact that the setting exists to show."""
    view, z = dense_view(), blend(150, 3)
    settings = resolve_tensor("paper", sweep="natural")
    permuted = np.random.default_rng(3).permutation(150)
    expected = walk(view, settings, z)

    found = walk(view[permuted], settings, z[permuted])

    np.testing.assert_array_equal(found[0][0], expected[0][0][permuted])
    assert (found[-1][0] != expected[-1][0][permuted]).any()


def test_natural_sweep_takes_the_rows_in_their_shared_order():
    """All rows equally far: turn after turn fills the smallest cluster, the lowest first."""
    site = TensorSite(np.eye(9), resolve_tensor("paper", sweep="natural", omega=1e6), 3, **ONE)
    site.start()
    prefer_0 = np.tile([1e9, 0.0, 0.0], (9, 1))
    site.sweep(1.0, 1.0, prefer_0, 1.0)

    labels, _ = site.sweep(1.0, 0.0, None, 1.0)

    assert labels.tolist() == [1, 2, 1, 2, 1, 2, 0, 0, 0]


ONE = {"seed": 0, "position": 0}


@pytest.mark.parametrize("profile", PROFILES)
def test_dense_and_sparse_text_give_the_same_result(profile):
    view, settings, z = word_counts(), resolve_tensor(profile), blend(150, 3)

    found = walk(view.toarray(), settings, z)

    assert_permuted(found, walk(view, settings, z), np.arange(150))


@pytest.mark.parametrize("profile", PROFILES)
def test_dense_and_sparse_unscaled_views_give_the_same_labels(profile):
    view, settings, z = histograms(), resolve_tensor(profile, scaling="none"), blend(150, 3)

    found = walk(sparse.csr_array(view), settings, z)

    for (labels, trace), (others, other_trace) in zip(found, walk(view, settings, z), strict=True):
        np.testing.assert_array_equal(labels, others)
        assert trace == pytest.approx(other_trace, rel=1e-9)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_result_does_not_depend_on_the_number_of_threads(kind, profile):
    n = 9000 if profile == "plus" else 1500
    view, z = VIEWS[kind][0](n), blend(n, 3)
    settings = resolve_tensor(profile, anchors=60)
    before = torch.get_num_threads()
    results = []
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            with threadpool_limits(limits=n_threads):
                results.append(walk(view, settings, z))
    finally:
        torch.set_num_threads(before)

    assert_permuted(results[0], results[1], np.arange(n))


@pytest.mark.parametrize("profile", PROFILES)
def test_seed_and_position_change_the_start(profile):
    view = np.random.default_rng(0).random((150, 5))
    settings = resolve_tensor(profile, anchor_kind="random")
    starts = [
        TensorSite(view, settings, 3, seed=seed, position=position).start()[0]
        for seed, position in [(0, 0), (1, 0), (0, 1), (0, 0)]
    ]

    assert (starts[0] != starts[1]).any()
    assert (starts[0] != starts[2]).any()
    np.testing.assert_array_equal(starts[0], starts[3])


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kind", VIEWS)
def test_a_restored_site_goes_on_bit_for_bit(kind, profile):
    make, scaling = VIEWS[kind]
    settings = replace(resolve_tensor(profile, scaling=scaling), local_sweeps=2)
    site = TensorSite(make(), settings, 3, **ONE)
    site.start()
    site.rename(np.array([2, 0, 1]))
    site.sweep(0.8, 0.3, blend(150, 3), 1.0)
    state = site.state()
    expected = [site.sweep(0.8, 0.3, blend(150, 3, seed=s), 1.0) for s in (1, 2)]

    restored = TensorSite(make(), settings, 3, **ONE)
    restored.restore(state)

    found = [restored.sweep(0.8, 0.3, blend(150, 3, seed=s), 1.0) for s in (1, 2)]
    assert_permuted(found, expected, np.arange(150))
    assert all(isinstance(array, np.ndarray) for array in state.values())


@pytest.mark.parametrize("profile", PROFILES)
def test_several_local_sweeps_are_so_many_sweeps(profile):
    view, z = dense_view(), blend(150, 3)
    one = TensorSite(view, resolve_tensor(profile), 3, **ONE)
    three = TensorSite(view, resolve_tensor(profile, local_sweeps=3), 3, **ONE)
    np.testing.assert_array_equal(one.start()[0], three.start()[0])

    for _ in range(3):
        expected = one.sweep(0.8, 0.3, z, 1.0)

    assert_permuted([three.sweep(0.8, 0.3, z, 1.0)], [expected], np.arange(150))


@pytest.mark.parametrize("profile", PROFILES)
def test_missing_rows_get_minus_1_and_change_nothing_else(profile):
    view, z = dense_view(120), blend(120, 3)
    settings = resolve_tensor(profile)
    place = np.sort(np.random.default_rng(5).choice(150, 120, replace=False))
    gappy, gappy_z = np.full((150, 5), np.nan), np.full((150, 3), 1e9)
    gappy[place], gappy_z[place] = view, z

    site = TensorSite(gappy, settings, 3, **ONE)
    found = walk(gappy, settings, gappy_z)

    np.testing.assert_array_equal(np.flatnonzero(site.held), place)
    assert site.warnings == ()
    assert_permuted(
        [(labels[place], t) for labels, t in found], walk(view, settings, z), range(120)
    )
    for labels, _ in found:
        assert (np.delete(labels, place) == -1).all()


@pytest.mark.parametrize("profile", PROFILES)
def test_filled_cells_are_told(profile):
    site = TensorSite(with_missing(), resolve_tensor(profile), 3, name="view 'ecg'", **ONE)

    assert len(site.warnings) == 1
    assert site.warnings[0].startswith("view 'ecg': ")


@pytest.mark.parametrize("encoding", [np.float16, np.int8])
def test_encoded_blend_counts_as_its_value(encoding):
    z = blend(150, 3, np.int8).astype(encoding)
    settings = resolve_tensor("plus")

    found = walk(dense_view(), settings, z)

    scale = 0.01 if encoding == np.int8 else 1.0
    expected = walk(dense_view(), settings, z.astype(np.float64) * scale)
    assert_permuted(found, expected, np.arange(150))


@pytest.mark.parametrize("scale", [1.0, 1024.0, 1e-6])
def test_separable_blobs_are_found(scale):
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(np.arange(4), 40))
    x = 10 * np.eye(4)[truth] + rng.normal(scale=0.5, size=(160, 4))
    site = TensorSite(x * scale, resolve_tensor("plus"), 4, **ONE)

    labels, _ = site.start()

    assert len(set(zip(truth.tolist(), labels.tolist(), strict=True))) == 4
    np.testing.assert_array_equal(site.sweep(1.0, 0.0, None, 1.0)[0], labels)


def test_many_equal_rows_are_no_reason_to_stop():
    view = np.repeat(np.random.default_rng(0).random((5, 3)), 30, axis=0)

    for profile in PROFILES:
        labels, trace = walk(view, resolve_tensor(profile), blend(150, 4), 4)[-1]
        assert set(labels.tolist()) <= {0, 1, 2, 3}
        assert np.isfinite(trace)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_smallest_views_work(n, profile):
    site = TensorSite(np.arange(n)[:, None] ** 2.0, resolve_tensor(profile), 2, **ONE)

    site.start()
    labels, trace = site.sweep(1.0, 1.0, np.zeros((n, 2)), 1.0)

    assert set(labels.tolist()) <= {0, 1}
    assert np.isfinite(trace)


# Refusals


def test_infinite_cells_are_refused_by_the_name_of_the_view():
    view = dense_view()
    view[3, 1] = np.inf

    with pytest.raises(DataRefused, match=r"^view 'ecg' of site 'a' has 1 infinite cells") as error:
        TensorSite(view, resolve_tensor("plus"), 3, name="view 'ecg' of site 'a'", **ONE)
    assert error.value.code == 3


def test_fewer_anchors_than_clusters_are_refused():
    with pytest.raises(ConfigError, match="anchors is 3 but n_clusters is 4") as error:
        TensorSite(dense_view(), resolve_tensor("plus", anchors=3), 4, **ONE)
    assert error.value.code == 2


@pytest.mark.parametrize("names", [[0, 1], [0, 1, 1], [1, 2, 3]])
def test_names_must_be_a_permutation(names):
    site = TensorSite(dense_view(), resolve_tensor("plus"), 3, **ONE)

    with pytest.raises(ProtocolError, match="no permutation of 0 to 2") as error:
        site.rename(np.array(names))
    assert error.value.code == 8


def test_blend_of_another_shape_is_refused():
    site = TensorSite(dense_view(), resolve_tensor("plus"), 3, **ONE)

    with pytest.raises(ProtocolError, match=r"shape \(150, 4\) but .* are \(150, 3\)"):
        site.sweep(1.0, 1.0, np.zeros((150, 4)), 1.0)


def test_state_of_other_data_is_refused():
    state = TensorSite(dense_view(140), resolve_tensor("plus"), 3, **ONE).state()
    site = TensorSite(dense_view(), resolve_tensor("plus"), 3, name="view 'ecg'", **ONE)

    with pytest.raises(DataRefused, match="describe 140 rows but view 'ecg' has 150"):
        site.restore(state)


def test_only_the_paper_profile_loads_numba():
    script = """
import sys
import numpy as np
from configs.tensor_profiles import resolve_tensor
from fedmvc_client.solvers.preprocessing import prepare_rows
from fedmvc_client.solvers.tensor_site import TensorSite
x = np.random.default_rng(0).random((30, 3))
for profile in ("plus", "paper"):
    TensorSite(x, resolve_tensor(profile), 2, seed=0, position=0).start()
    print("numba" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},  # loaded all the same, but quick
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_site_on_cuda_agrees_with_the_cpu():
    view, z = dense_view(300_000), blend(300_000, 3)
    settings = resolve_tensor("plus", anchors=100)

    found = walk(view, settings, z, device="cuda")

    for (labels, trace), (others, other_trace) in zip(
        found, walk(view, settings, z, device="cpu"), strict=True
    ):
        assert (labels == others).mean() > 0.9999
        assert trace == pytest.approx(other_trace, rel=1e-6)


def test_yes_no_columns_do_not_tear_the_graph_apart():
    # equal rows as anchors tie at distance 0: the graph fell into more parts than clusters, so that
    # rounding chose which ones counted, and most rows had no place in the embedding
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=800)
    chances = rng.dirichlet(np.full(2, 0.3), size=(4, 5))[:, :, 1]
    view = (rng.random((800, 5)) < chances[labels]).astype(float)

    site = TensorSite(view, resolve_tensor(), 4, seed=0, position=0, device="cpu")
    found, _ = site.start()

    embedding = site._term.embedding.numpy()
    np.testing.assert_allclose(np.square(embedding).sum(axis=1), 1.0, atol=1e-9)
    assert site.warnings == ()
    for row in np.unique(view, axis=0):
        assert len(set(found[(view == row).all(axis=1)])) == 1


def test_anchors_are_different_rows():
    view = np.repeat(np.random.default_rng(1).normal(size=(12, 3)), 20, axis=0)

    prepared = prepare_rows(view, 4, "auto", "the view")

    assert len(prepared.distinct) == 12
    assert len(np.unique(prepared.values[prepared.distinct], axis=0)) == 12


def test_rows_that_become_equal_by_scaling_count_as_one():
    # unit rows of text: twice the words is the same text
    words = np.zeros((40, 60))
    words[np.arange(40), np.arange(40) % 3] = 1.0 + np.arange(40) / 7.0
    with pytest.raises(DataRefused, match="3 different rows once it is scaled but n_clusters is 4"):
        prepare_rows(sparse.csr_array(words), 4, "auto", "the view")
