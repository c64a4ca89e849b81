"""What one site puts into a protected sum, whatever its records and whatever it is asked."""

import dataclasses
import hashlib

import numpy as np
import pytest

from configs.errors import DataRefused, PolicyRefused, ProtocolError
from configs.schema import DataSchema
from configs.site import Device
from fedmvc_client.participants.fedhk_sums import FedHKSums
from fedmvc_client.participants.kinds import kind_of
from fedmvc_client.sources import ArraySource, Records
from privacy import mechanisms
from privacy.protection import grid, heat_kernel_noise
from strategies import messages as m
from strategies.messages import from_bytes
from strategies.unit_sums import declared_scaling
from tests.federation.harness import federate
from tests.federation.protected_harness import (
    ask,
    clustered_sites,
    declared_schema,
    events,
    is_round,
    noisy_plan,
    protected_plan,
    protected_workers,
)

RUN = "0" * 32
BOUNDS = [np.array([[0.0, 10.0], [-4.0, 4.0]]), np.array([[100.0, 102.0]])]
KERNELS = ["minmax", "absdev", "one"]


def schema_of(bounds):
    views = [
        {
            "name": f"view_{h}",
            "columns": [
                {"name": f"x{j}", "dtype": "float", "bounds": tuple(b)}
                for j, b in enumerate(view.tolist())
            ],
        }
        for h, view in enumerate(bounds)
    ]
    return DataSchema.parse({"id": "id", "views": views})


def plan_of(heat_kernel, bandwidth=1.0):
    return noisy_plan(n_clusters=2, heat_kernel=heat_kernel, bandwidth=bandwidth)


def summands(plan, views, *, device=None, **changes):
    """Return the site's half of the method, ready for a round."""
    held = {f"view_{h}": view for h, view in enumerate(views) if view is not None}
    n = next(view.shape[0] for view in views if view is not None)
    source = ArraySource("site", views, schema_of(BOUNDS), device)
    sums = FedHKSums(plan, RUN, source, Records(tuple(map(str, range(n))), held))
    kernel = plan.settings(1).heat_kernel
    ids = (RUN, plan.plan_id)
    sums.adopt(m.PrepareRequest(*ids, ("view_0", "view_1"), np.array([2, 1])))
    request = m.SeedRequest(
        *ids,
        tuple(declared_scaling(b, kernel) for b in BOUNDS),
        np.ones(2),
        (kernel != "one",) * 2,
        np.ones(2),
        (np.zeros(2), np.zeros(1)),
        2,
        0,
        plan.seed,
    )
    sums.adopt(dataclasses.replace(request, **changes))
    return sums


def round_of(plan, rng):
    """Ask for any point within the bounds, the corners among them."""
    corner = rng.random() < 0.3
    points = (
        rng.integers(2, size=(1, 2, d)).astype(float) if corner else rng.uniform(size=(1, 2, d))
        for d in (2, 1)
    )
    return m.RoundRequest(
        RUN, plan.plan_id, 1, np.arange(1), tuple(points), rng.dirichlet(np.ones(2), 1),
        np.full((1, 2), plan.settings(1).bandwidth), -1, np.zeros((1, 0), np.int64),
    )  # fmt: skip


def records(rng, n):
    """Draw rows of which some lie far outside the bounds and some cells or rows are missing."""
    views = []
    for b in BOUNDS:
        view = rng.uniform(b[:, 0], b[:, 1], (n, len(b)))
        view[rng.random(view.shape) < 0.2] *= 1e6
        view[rng.random(view.shape) < 0.2] = np.nan
        view[rng.random(n) < 0.2] = np.nan
        views.append(view)
    return views


# -- with noise ------------------------------------------------------------------------------


@pytest.mark.parametrize("heat_kernel", KERNELS)
def test_one_record_more_moves_a_release_by_at_most_its_sensitivity(heat_kernel):
    """Outliers, missing cells and any point within the bounds included."""
    worst = 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        plan = plan_of(heat_kernel, bandwidth=10.0 ** rng.uniform(-3, 4))
        noise = heat_kernel_noise(plan, [2, 1])
        views = records(rng, 12)
        request = round_of(plan, rng)
        whole = summands(plan, views).sums(request)
        fewer = summands(plan, [view[1:] for view in views]).sums(request)
        assert whole.shape == noise.limits.shape
        assert (np.abs(whole) <= 12 * noise.blocks.record_bounds * (1 + 1e-12)).all()
        moved = np.linalg.norm((whole - fewer) / noise.blocks.weights)
        worst = max(worst, moved / noise.sensitivity)
    assert 0.5 < worst <= 1.0 + 1e-9


def test_a_missing_cell_counts_as_the_middle_of_its_bounds_and_a_far_one_as_the_bound():
    plan = plan_of("one")
    request = round_of(plan, np.random.default_rng(0))
    odd = [np.array([[np.nan, 1.0], [1e9, -7.0]]), np.array([[101.0], [np.inf]])]
    even = [np.array([[5.0, 1.0], [10.0, -4.0]]), np.array([[101.0], [102.0]])]
    np.testing.assert_array_equal(
        summands(plan, odd).sums(request), summands(plan, even).sums(request)
    )


def test_a_record_without_a_view_adds_nothing_to_it():
    plan = plan_of("minmax")
    request = round_of(plan, np.random.default_rng(1))
    rows = [np.array([[5.0, 1.0], [np.nan, np.nan]]), np.array([[101.0], [np.nan]])]
    alone = [view[:1] for view in rows]
    np.testing.assert_allclose(
        summands(plan, rows).sums(request), summands(plan, alone).sums(request), atol=1e-15
    )


def test_nothing_before_round_1_depends_on_the_records():
    """The same scaling fits any site; a site's own is refused, to the last bit."""
    plan = plan_of("one")
    views = [np.array([[1.0, 1.0]]), np.array([[101.0]])]
    own = declared_scaling(BOUNDS[0], "one")
    nearly = dataclasses.replace(own, scale=np.nextafter(own.scale, 99.0))
    for changes in (
        {"scaling": (nearly, declared_scaling(BOUNDS[1], "one"))},
        {"holding_share": np.array([1.0, np.nextafter(1.0, 0.0)])},
        {"cell_mass": (True, False)},
    ):
        with pytest.raises(ProtocolError, match="follow from the declared bounds alone"):
            summands(plan, views, **changes)


def test_a_view_that_only_the_server_knows_is_refused():
    plan = plan_of("one")
    sums = summands(plan, [np.array([[1.0, 1.0]]), None])
    request = m.PrepareRequest(RUN, plan.plan_id, ("view_0", "view_9"), np.array([2, 4]))
    with pytest.raises(ProtocolError, match="names view 'view_9', which no schema here has"):
        sums.adopt(request)


def test_with_noise_a_site_computes_in_float64():
    """In float32 a record would change the rounding of all others by more than the noise hides."""
    plan, rng = plan_of("one"), np.random.default_rng(4)
    views = [rng.uniform(0, 4, (500, 2)), rng.uniform(100, 102, (500, 1))]
    request = round_of(plan, rng)
    single = summands(plan, views, device=Device(dtype="float32")).sums(request)
    np.testing.assert_array_equal(single, summands(plan, views).sums(request))


def test_a_sum_needs_the_scaling_first():
    plan = plan_of("one")
    source = ArraySource("site", [np.ones((3, 2)), np.ones((3, 1))], schema_of(BOUNDS))
    sums = FedHKSums(plan, RUN, source, Records(("a",), {}))
    with pytest.raises(ProtocolError, match="came before the scaling"):
        sums.sums(round_of(plan, np.random.default_rng(0)))


def test_more_records_than_the_plan_allows_are_refused_without_their_number():
    sites, _ = clustered_sites(3)
    plan = noisy_plan(privacy={"max_rows": 39})
    source = protected_workers(sites)["site-00"].source
    with pytest.raises(PolicyRefused, match="'site-00' declined") as raised:
        kind_of(plan).begin(plan, RUN, source, source.load())
    assert "more rows than privacy.max_rows, 39" in raised.value.local_detail
    assert "40 rows" in raised.value.local_detail
    masked = protected_plan(sites, privacy={"max_rows": 39})
    with pytest.raises(DataRefused, match=r"more rows than privacy\.max_rows, 39") as raised:
        kind_of(masked).begin(masked, RUN, source, source.load())
    assert "40" not in raised.value.public_message
    assert raised.value.local_detail == "40 rows"


# -- what is written down --------------------------------------------------------------------


@pytest.fixture(scope="module")
def asked():
    """Return what a site is asked in a run with its own noise."""
    sites, _ = clustered_sites(3)
    requests = []

    def spy(worker, body):
        requests.append(from_bytes(body))
        return worker.handle(body)

    result = federate(noisy_plan(), protected_workers(sites), change={"site-00": spy})
    assert result.status == "completed", result.stop_reason
    return sites, requests


@pytest.mark.parametrize("error", [RuntimeError, OSError, DataRefused])
def test_with_noise_an_error_that_nobody_expected_reads_like_any_other(
    asked, monkeypatch, caplog, error
):
    def fail(self, request):
        raise error("82.25 kg")

    sites, requests = asked
    worker = protected_workers(sites)["site-00"]
    ask(worker, requests[0])
    monkeypatch.setattr(FedHKSums, "sums", fail)
    reply = ask(worker, next(r for r in requests if is_round(r, 1)))
    assert (reply.code, reply.message) == (4, "site 'site-00' declined")
    (noted,) = events(worker, "request refused")
    assert (noted["code"], noted["sentence"]) == (4, reply.message)
    assert "82.25" in caplog.text  # in the site's own log


def test_a_release_is_noted_by_sizes_and_hashes_alone(asked):
    sites, requests = asked
    worker = protected_workers(sites)["site-00"]
    ask(worker, requests[0])
    reply = ask(worker, next(r for r in requests if is_round(r, 1)))
    (facts,) = events(worker, "release sent")
    assert facts["reply"] == hashlib.sha256(reply.vector.astype("<u8").tobytes()).hexdigest()
    assert set(facts) == {"run_id", "exchange", "numbers", "request", "reply"}
    assert (facts["exchange"], facts["numbers"]) == (1, reply.vector.size)
    (paid,) = events(worker, "release paid")
    assert paid["rho"] > 0
    assert events(worker)[:3] == ["plan seen", "run begun", "budget reserved"]


def test_noise_is_drawn_after_it_is_paid_and_never_for_nothing(asked, monkeypatch):
    sites, requests = asked
    worker = protected_workers(sites)["site-00"]
    ledger, paid = worker.source.safe.ledger, []

    def sampler(sigma):
        paid.append(ledger.status().rho_spent)
        return np.zeros(sigma.shape, np.int64)

    monkeypatch.setattr(mechanisms, "rounded_gaussian", sampler)
    rounds = [r for r in requests if is_round(r)]
    ask(worker, requests[0])
    bad = dataclasses.replace(rounds[0], bodies=rounds[0].bodies[:1])
    assert "nothing but rounds is summed" in ask(worker, bad).message
    assert paid == []
    assert isinstance(ask(worker, rounds[0]), m.SumReply)
    assert len(paid) == 1
    assert paid[0] > 0
    ask(worker, rounds[0])  # the stored bytes, without a draw
    assert len(paid) == 1


def test_a_vector_is_the_sums_on_the_grid_of_the_plan(asked, monkeypatch):
    sites, requests = asked
    monkeypatch.setattr(mechanisms, "rounded_gaussian", lambda s: np.zeros(s.shape, np.int64))
    worker = protected_workers(sites, declared_schema(sites))["site-00"]
    ask(worker, requests[0])
    request = next(r for r in requests if is_round(r, 1))
    vector = ask(worker, request).vector.view(np.int64)
    plan = noisy_plan()
    noise = heat_kernel_noise(plan, [2, 3])
    codec = grid(plan, noise)
    assert codec == noise.codec
    sums = FedHKSums(plan, RUN, worker.source, worker.source.load())
    for body in request.bodies[:-1]:
        sums.adopt(from_bytes(body.tobytes()))
    exact = sums.sums(from_bytes(request.bodies[-1].tobytes()))
    assert np.abs(vector * codec.step - exact).max() <= codec.step / 2
