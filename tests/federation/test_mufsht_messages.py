"""What a selection puts on the wire: sums, an NMI and weights; nothing as long as the list."""

import re
import shutil

import numpy as np
import pytest

from fedmvc_client.worker import folder_worker
from fedmvc_server.synthesize_features import synthesize_features
from strategies import messages as m
from strategies.messages import from_bytes
from tests.federation.harness import federate
from tests.federation.mufsht_harness import selection_plan
from tests.federation.tensor_harness import Tape, arrays_in

PLANS = {
    "softmax": selection_plan(5),
    "uniform": selection_plan(5, weighting="uniform"),
    "keys": selection_plan(5, search="keys", max_rounds=1),
}
#: Rows of each site; no dimension of the run (190, 60, 80, 50, 5, 3) has this size.
ROWS = 87


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Write three folders; no test writes here."""
    out = tmp_path_factory.mktemp("wire") / "sites"
    names = synthesize_features(out, n=3 * ROWS)
    for name in names:
        for file in (out / name).glob("*.csv"):
            head, *lines = file.read_text().splitlines()
            file.write_text("\n".join([head, *(f'"MRN-{line[1:]}' for line in lines)]) + "\n")
    return out


def workers(data):
    return {p.parent.name: folder_worker(p.parent) for p in sorted(data.glob("*/site.toml"))}


@pytest.fixture(scope="module", params=PLANS)
def run(request, pristine, tmp_path_factory):
    """Return the plan, tape and result of one run."""
    tape, plan = Tape(), PLANS[request.param]
    data = shutil.copytree(pristine, tmp_path_factory.mktemp(request.param) / "sites")
    result = federate(plan, workers(data), grid_class=tape.grid_class())
    assert result.status == "completed", result.stop_reason
    return plan, tape, result


def test_no_id_and_no_cell_is_in_any_message(run, pristine):
    _, tape, _ = run
    sent = b"|".join([*tape.bodies("up"), *tape.bodies("down")])
    assert b"MRN" not in sent
    numbers = set(re.findall(rb"-?\d+\.\d+", sent))
    n_cells = 0
    for worker in workers(pristine).values():
        records = worker.source.load()
        assert len(records.ids) == ROWS
        assert all(record.startswith("MRN-") for record in records.ids)
        cells = np.concatenate([v[np.isfinite(v)] for v in records.views.values()])[::7]
        n_cells += cells.size
        assert [c for c in cells if np.float64(c).tobytes() in sent] == []
        assert [c for c in cells if repr(float(c)).encode() in numbers] == []
    assert n_cells > 4000


def test_no_array_is_as_long_as_a_sites_list(run):
    _, tape, _ = run
    for body in [*tape.bodies("up"), *tape.bodies("down")]:
        for name, array in arrays_in(from_bytes(body)):
            assert ROWS not in array.shape, name
            assert 3 * ROWS not in array.shape, name


def test_the_run_is_hello_survey_scale_rounds_finish(run):
    plan, tape, result = run
    asked = [type(from_bytes(body)).__name__ for body in tape.bodies("down")]
    rounds = (
        ["FitRequest"] if plan.mufsht.weighting == "uniform" else ["FitRequest", "ShareRequest"]
    )
    names = ["HelloRequest", "SurveyRequest", "ScalingRequest", *(rounds * result.rounds)]
    names += ["RefineRequest"] if plan.mufsht.search == "keys" else []
    assert asked == [name for name in [*names, "SelectionRequest"] for _ in range(3)]


def test_uniform_weights_need_no_quality(run):
    plan, tape, _ = run
    uniform = plan.mufsht.weighting == "uniform"
    weights = {round(r.weight, 12) for r in tape.of(m.FitRequest)}
    assert weights == ({round(1 / 3, 12)} if uniform else {0.0})
    assert bool(tape.of(m.FitReply)) is not uniform
    assert all(0 <= reply.quality <= 1 for reply in tape.of(m.FitReply))


def test_scaling_travels_in_round_one_only(run):
    _, tape, _ = run
    for request in tape.of(m.FitRequest):
        assert len(request.scaling) == (3 if request.round == 1 else 0)
