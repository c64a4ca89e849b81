import threading

import numpy as np
import pytest
import torch

from fedmvc_client.solvers import chunks
from fedmvc_client.solvers.chunks import fold_chunks, one_intra_op_thread
from fedmvc_client.solvers.heat_kernel import heat_kernel_pass, memberships
from fedmvc_client.solvers.views import PreparedViews
from tests.solvers.cases import KERNELS, blobs, make_case, statistics_equal

CPU = torch.device("cpu")


@pytest.fixture
def two_torch_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("heat_kernel", KERNELS)
@pytest.mark.usefixtures("two_torch_threads")
def test_statistics_do_not_depend_on_the_number_of_threads(heat_kernel, dtype):
    case = make_case(blobs(n=30_000, dims=(7, 20)), heat_kernel, dtype=dtype)
    centers, weights = case.starts(3, 5)

    one = case.run(centers, weights, 1.3, n_threads=1)

    assert statistics_equal(case.run(centers, weights, 1.3, n_threads=2), one)
    assert statistics_equal(case.run(centers, weights, 1.3, n_threads=5), one)
    assert statistics_equal(case.run(centers, weights, 1.3), one)
    torch.set_num_threads(1)
    assert statistics_equal(case.run(centers, weights, 1.3), one)


def test_memberships_do_not_depend_on_the_number_of_threads():
    case = make_case(blobs(n=30_000, dims=(7, 20)))
    centers, weights = case.starts(1, 5)
    arguments = (case.prepared, [a[0] for a in centers], weights[0])
    settings = {
        "bandwidth": case.bandwidth,
        "holding_share": case.share,
        "fuzzifier": 1.3,
        "view_exponent": 5.0,
    }

    one = memberships(*arguments, **settings, n_threads=1)

    np.testing.assert_array_equal(memberships(*arguments, **settings, n_threads=2), one)


def test_memory_layout_of_the_raw_values_does_not_matter():
    case = make_case(blobs(n=9000))
    centers, weights = case.starts(2, 3)
    columns = [np.asfortranarray(raw) for raw in case.views]

    other = PreparedViews(columns, case.scaling, "minmax", cell_mass=case.cell_mass)

    sums = heat_kernel_pass(other, centers, weights, **case.settings(2))
    assert statistics_equal(sums, case.run(centers, weights))


def test_results_are_taken_in_chunk_order():
    first_may_end = threading.Event()

    def late_first(chunk):
        if chunk == 0:
            assert first_may_end.wait(10)
        else:
            first_may_end.set()
        return chunk

    taken = []
    fold_chunks(late_first, taken.append, 5, device=CPU, n_threads=2)

    assert taken == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.usefixtures("two_torch_threads")
def test_torch_threads_are_restored_after_an_exception(n_threads):
    seen = []

    def fails(chunk):
        seen.append(torch.get_num_threads())
        if chunk == 2:
            raise RuntimeError("chunk 2")

    with pytest.raises(RuntimeError, match="chunk 2"):
        fold_chunks(fails, lambda _: None, 6, device=CPU, n_threads=n_threads)

    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_torch_threads")
def test_overlapping_blocks_restore_once():
    with one_intra_op_thread():
        with one_intra_op_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_chunks_are_fixed_by_the_data_alone():
    for n in (1, 150, 4096, 4097, 10_000, 10**6, 10**6 + 1):
        rows = chunks.chunk_rows(n, CPU)
        n_chunks = -(-n // rows)
        assert rows <= chunks.CPU_CHUNK_ROWS
        assert n_chunks == -(-n // chunks.CPU_CHUNK_ROWS)
        assert n_chunks * rows - n < 8 * n_chunks
