import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from configs.errors import ConfigError
from fedmvc_client.solvers.devices import resolve_device, resolve_dtype
from fedmvc_client.solvers.heat_kernel import (
    _Pass,
    heat_kernel_pass,
    kernel_distances,
    memberships,
)
from fedmvc_client.solvers.views import PreparedViews
from tests.solvers.cases import KERNELS, assert_statistics_close, blobs, make_case

HAS_CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="no CUDA device on this machine")


class Recorder(TorchDispatchMode):
    """Records device and size of every tensor that an operation returns."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.seen += [
            (func, t.device.type, t.numel())
            for t in tree_leaves(out)
            if isinstance(t, torch.Tensor)
        ]
        return out


def test_auto_is_cuda_only_where_there_is_one():
    assert resolve_device("auto").type == ("cuda" if HAS_CUDA else "cpu")
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "meta", "cpu:0", ""])
def test_unknown_device_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=f'device "{name}" is unknown'):
        resolve_device(name)


@pytest.mark.skipif(HAS_CUDA, reason="this machine has a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_absent_cuda_is_one_sentence_and_exit_code_2(name):
    with pytest.raises(ConfigError, match=f'"{name}" was asked for but no CUDA device') as error:
        resolve_device(name)
    assert error.value.code == 2


def test_dtypes():
    assert resolve_dtype("float32") == torch.float32
    with pytest.raises(ConfigError, match='dtype "float16" is unknown'):
        resolve_dtype("float16")


@pytest.mark.parametrize("fuzzifier", [2.0, 1.1, 1.37])
@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_no_tensor_of_a_pass_is_on_a_hard_coded_device(heat_kernel, fuzzifier):
    """On torch's meta device every tensor but the uploads must be a meta tensor, too."""
    case = make_case(blobs(n=9000), heat_kernel)
    prepared = PreparedViews(
        case.views,
        case.scaling,
        heat_kernel,
        cell_mass=case.cell_mass,
        device=torch.device("meta"),
    )
    centers, weights = case.starts(2, 3)
    settings = case.settings(2)
    step = _Pass(prepared, centers, weights, settings["bandwidth"], settings["holding_share"], 5.0)

    with Recorder() as recorder:
        products, dispersion = step.accumulate(fuzzifier, None)

    assert len(recorder.seen) > 50
    assert {device for _, device, _ in recorder.seen} == {"meta"}
    assert dispersion.is_meta
    assert all(product is not None and product.is_meta for product in products)
    with torch.device("meta"):
        sums = case.run(centers, weights, fuzzifier, n_threads=1)
    assert np.isfinite(sums.dispersion).all()


class Downloads(TorchDispatchMode):
    """On the meta device: counts copies to the CPU, and records what is made anywhere else."""

    def __init__(self):
        super().__init__()
        self.copies = []
        self.devices = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        target = kwargs.get("device")
        if func is torch.ops.aten._to_copy.default and target == torch.device("cpu"):
            self.copies.append(tuple(args[0].shape))
            # A meta tensor has no values to copy.
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        out = func(*args, **kwargs)
        if not any(t.device.type == "cpu" for t in inputs):  # else it is of a download, or of an
            self.devices += [  # upload, which are counted or made by NumPy
                t.device.type for t in tree_leaves(out) if isinstance(t, torch.Tensor)
            ]
        return out


@pytest.mark.parametrize("function", [memberships, kernel_distances])
@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_what_is_computed_by_record_leaves_the_device_at_the_end_alone(heat_kernel, function):
    """One copy (c, b) a chunk of records; distances also take the view coefficients down."""
    case = make_case(blobs(n=9000), heat_kernel)
    prepared = PreparedViews(
        case.views,
        case.scaling,
        heat_kernel,
        cell_mass=case.cell_mass,
        device=torch.device("meta"),
    )
    centers, weights = case.starts(1, 3)
    settings = {k: v for k, v in case.settings(1, 1.3).items() if k != "bandwidth"}
    if function is kernel_distances:
        del settings["fuzzifier"]

    with Downloads() as recorder:
        found = function(
            prepared,
            [a[0] for a in centers],
            weights[0],
            bandwidth=case.bandwidth,
            n_threads=1,
            **settings,
        )

    assert found.shape == (9000, 3)
    assert len(recorder.devices) > 20
    assert set(recorder.devices) == {"meta"}
    assert prepared.n_chunks > 1
    by_record = [shape for shape in recorder.copies if shape != (len(case.views),)]
    assert len(by_record) == prepared.n_chunks
    assert all(3 in shape for shape in by_record)
    assert len(recorder.copies) - len(by_record) == (function is kernel_distances)


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_no_array_of_records_by_clusters_by_columns(heat_kernel):
    """The largest tensor of a pass is one chunk's features or one chunk's distances."""
    case = make_case(blobs(n=20_000, dims=(20, 30)), heat_kernel)
    centers, weights = case.starts(2, 10)

    with Recorder() as recorder:
        case.run(centers, weights, n_threads=1)

    largest = max(size for func, _, size in recorder.seen if func.namespace == "aten")
    whole = max(view.chunks.numel() for view in case.prepared.views)
    rows = case.prepared.chunk_rows
    created = [
        size
        for func, _, size in recorder.seen
        if func.name() not in ("aten::select.int", "aten::slice.Tensor", "aten::t")
    ]
    assert max(created) <= rows * max(61, 20)
    assert largest <= whole


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("fuzzifier", [2.0, 1.1, 1.37])
@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_cuda_equals_cpu(heat_kernel, fuzzifier):
    case = make_case(blobs(n=300_000, dims=(7, 20)), heat_kernel)
    on_gpu = PreparedViews(
        case.views, case.scaling, heat_kernel, cell_mass=case.cell_mass, device="cuda"
    )
    centers, weights = case.starts(3, 5)

    found = heat_kernel_pass(on_gpu, centers, weights, **case.settings(3, fuzzifier))

    assert_statistics_close(found, case.run(centers, weights, fuzzifier), 1e-9)
    arguments = {
        "bandwidth": case.bandwidth,
        "holding_share": case.share,
        "fuzzifier": fuzzifier,
        "view_exponent": 5.0,
    }
    own = [a[0] for a in centers]
    np.testing.assert_allclose(
        memberships(on_gpu, own, weights[0], **arguments),
        memberships(case.prepared, own, weights[0], **arguments),
        rtol=0,
        atol=1e-9,
    )


@pytest.mark.gpu
@needs_cuda
def test_cuda_number_beyond_the_last_is_refused():
    beyond = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(ConfigError, match="numbered from 0"):
        resolve_device(beyond)
