"""Every message of every method, both ways, searched for planted ids, values and lists of rows."""

import dataclasses
import shutil

import numpy as np
import pytest
from flwr.common.serde import recorddict_to_proto

from configs.plan import RunPlan
from fedmvc_server.synthesize import synthesize_cardio
from fedmvc_server.synthesize_features import synthesize_features
from strategies import messages as m
from strategies.messages import as_array, from_bytes, to_bytes
from strategies.records import from_record, to_record
from tests.federation.harness import federate, plan_of
from tests.federation.mufsht_harness import selection_plan
from tests.federation.protected_harness import folder_workers, noisy_plan, protected_plan
from tests.federation.tensor_harness import Tape, arrays_in, edit_rows, hospitals, vertical_plan

#: No dimension of any run has this size.
ROWS = 61
NAMES = ("charite-nord", "riverside", "st-anna")
PREFIX = "QZX-00"
#: What vertical runs send of each row: a token or a label (of one to eight bits), with consent.
LABELS = {
    *(("LinkReply", "tokens"), ("AlignRequest", "shared")),
    *(("StartReply", "held"), ("StartReply", "labels"), ("StartReply", "alone")),
    *(("SweepRequest", "blend"), ("SweepReply", "labels")),
    *(("OutcomeRequest", "known"), ("OutcomeRequest", "labels"), ("OutcomeRequest", "vote")),
}


def with_privacy(plan, **privacy):
    fields = plan.fields()
    del fields["quorum"]["min_sites"]
    return RunPlan.parse({**fields, "privacy": privacy})


FEW = {"spare_exchanges": 0}
MASKED = {"secure_aggregation": True, "participants": list(NAMES), **FEW}
SELECTION = selection_plan(5, max_rounds=1, local_sweeps=1)
UNIFORM = selection_plan(5, max_rounds=1, local_sweeps=1, weighting="uniform")
RUNS = {
    "exact": ("cardio", plan_of(4, profile="paper", max_rounds=3, tol=0.0)),
    "masked": ("cardio", protected_plan(NAMES, n_clusters=4, bandwidth="auto", privacy=FEW)),
    "masked averages": (
        "cardio",
        protected_plan(NAMES, n_clusters=4, aggregation="weighted", privacy=FEW),
    ),
    "the paper's noise": (
        "cardio",
        with_privacy(
            plan_of(4, profile="paper", max_rounds=2, tol=0.0, aggregation="weighted"),
            mechanism="paper",
            epsilon=1.0,
        ),
    ),
    "masked noise": ("cardio", noisy_plan(NAMES, n_clusters=4, privacy=FEW)),
    "noise": ("cardio", noisy_plan(n_clusters=4)),
    "selection": ("features", SELECTION),
    "masked selection": ("features", with_privacy(UNIFORM, **MASKED)),
    "masked selection by NMI": (
        "features",
        with_privacy(
            selection_plan(5, max_rounds=1, local_sweeps=1, weighting="softmax", agg_temp=1.5),
            **MASKED,
        ),
    ),
    "noisy selection": (
        "features",
        with_privacy(UNIFORM, mechanism="gaussian", epsilon=4.0, clip=0.5),
    ),
    "vertical": ("vertical", vertical_plan(3, max_rounds=3)),
    "vertical labels by chance": (
        "vertical",
        RunPlan.parse(
            {
                "method": "tensor-fmvc",
                "n_clusters": 3,
                "tensor": {"link_cost": 1},
                "privacy": {"mechanism": "randomised-response", "epsilon": 2.0},
            }
        ),
    ),
}


def planted(site, number):
    """Return four values of one column, in rows that follow each other, found nowhere else."""
    return 4.0 + np.array([0.1234567, 0.2718281, 0.3141592, 0.1618033]) + 0.01 * number + 0.1 * site


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Write the folders of each kind, ids and values planted; no test writes here."""
    root = tmp_path_factory.mktemp("wire")
    synthesize_cardio(root / "cardio", n=3 * ROWS, sites=3, partition="iid")
    synthesize_features(root / "features", n=3 * ROWS, sites=3, missing=0.0)
    hospitals(root / "vertical", sites=3, n=ROWS + 6, overlap=0.95)
    for kind in ("cardio", "features", "vertical"):
        for site, folder in enumerate(sorted(p.parent for p in root.glob(f"{kind}/*/site.toml"))):
            for number, file in enumerate(sorted(folder.glob("*.csv"))):
                values = planted(site, number)

                def plant(rows, values=values):
                    rows = sorted([PREFIX + row[0], *row[1:]] for row in rows)
                    for row, value in zip(rows[20:24], values, strict=True):
                        row[1] = repr(float(value))
                    return rows

                edit_rows(file, plant)
    return root


def secrets_of(worker):
    """Return a site's ids, its planted values by column, and its number of rows."""
    records = worker.source.load()
    values = [view[20:24, 0] for view in records.views.values()]
    return records.ids, values, len(records.ids)


def parts_of(message):
    """Yield the arrays of a message and of the requests that travel inside it."""
    for name, array in arrays_in(message):
        if name in ("bodies", "body") and array.size:
            yield from parts_of(from_bytes(array.tobytes()))
        else:
            yield type(message).__name__, name, array


def found_in(content, ids, values, rows, allowed=frozenset()):
    """Return what of a site's secrets one Flower message holds.

    Parameters
    ----------
    content : RecordDict
        As it travels.
    ids : sequence of str
    values : sequence of ndarray of shape (4,)
        Cells of one column in rows that follow each other.
    rows : int
        How many records the site has.
    allowed : set of (message, field)
        Arrays that may be as long as the list, packed or not.
    """
    sent = recorddict_to_proto(content).SerializeToString()
    found = set()
    for identity in ids:
        if any(identity.encode(code) in sent for code in ("utf-8", "utf-16-le", "utf-16-be")):
            found.add("an id")
    for column in values:
        for value in column.tolist():
            if any(np.array(value, dtype).tobytes() in sent for dtype in ("<f8", ">f8")):
                found.add("a value")
            if any(text.encode() in sent for text in (repr(value), f"{value:.7f}", f"{value:.7g}")):
                found.add("a value as text")
        # of fewer bytes some turn up by chance
        for dtype, n in (("<f4", 2), (">f4", 2), ("<f2", 4), (">f2", 4)):
            runs = [column[i : i + n].astype(dtype).tobytes() for i in range(5 - n)]
            if any(run in sent for run in runs):
                found.add("a run of values")
    for kind, name, array in parts_of(from_bytes(from_record(content))):
        here = np.concatenate(values).astype(array.dtype) if array.dtype.kind == "f" else ()
        if np.isin(here, array).any():
            found.add(f"a value as {array.dtype}")
        packed = {(bits * rows + 7) // 8 for bits in range(1, 9)} if array.dtype == np.uint8 else ()
        long = rows in array.shape or array.size in (rows, *packed)
        if long and (kind, name) not in allowed:
            found.add(f"a list: {kind}.{name}")
    return found


@pytest.mark.parametrize("name", RUNS)
def test_no_id_no_value_and_no_list_of_rows_is_in_any_message(pristine, tmp_path, name):
    kind, plan = RUNS[name]
    data = shutil.copytree(pristine / kind, tmp_path / "sites")
    tape = Tape()
    result = federate(plan, folder_workers(data), grid_class=tape.grid_class())
    assert result.status == "completed", result.stop_reason
    assert len(tape.down) == len(tape.up) >= 9
    allowed = LABELS if plan.method == "tensor-fmvc" else frozenset()
    for site, (_, worker) in enumerate(sorted(folder_workers(data).items())):
        ids, values, rows = secrets_of(worker)
        assert all(identity.startswith(PREFIX) for identity in ids)
        expected = [planted(site, number).tolist() for number in range(len(values))]
        assert sorted(column.tolist() for column in values) == expected
        assert 50 < rows < 80
        for content in [*tape.down, *tape.up]:
            assert found_in(content, ids, values, rows, allowed) == set()


def test_the_scan_finds_what_it_looks_for(pristine):
    worker = folder_workers(pristine / "cardio")["st-anna"]
    ids, values, rows = secrets_of(worker)
    assert rows == ROWS
    column = values[0]
    ring, octets = np.zeros(5, np.uint64), as_array(b"")

    def scan(message):
        return found_in(to_record(to_bytes(message)), ids, values, rows)

    reply = m.SumReply("run", 1, ring)
    assert scan(reply) == set()
    assert scan(dataclasses.replace(reply, run_id=f"run {ids[7]}")) == {"an id"}
    assert scan(dataclasses.replace(reply, run_id=f"run {column[2]!r}")) == {"a value as text"}
    assert scan(dataclasses.replace(reply, vector=np.zeros(ROWS, np.uint64))) == {
        "a list: SumReply.vector"
    }
    ring[3] = column[1:2].view(np.uint64)[0]
    assert scan(reply) == {"a value"}
    round_ = m.RoundRequest(
        "run", "plan", 1, np.arange(1), (np.zeros((1, 3, 2)),), np.ones((1, 2)),
        np.ones((1, 2)), -1, np.zeros((1, 0), np.int64),
    )  # fmt: skip
    inside = dataclasses.replace(round_, view_weights=column[None, :1].astype(np.float32))
    request = m.SumRequest("run", "plan", 1, (), (as_array(to_bytes(inside)),), (), ())
    assert scan(request) == {"a value as float32"}
    close = m.CloseRequest("run", "plan", 0, (), as_array(to_bytes(inside)))
    assert scan(close) == {"a value as float32"}
    half = dataclasses.replace(round_, view_weights=column[None, :1].astype(np.float16))
    assert scan(half) == {"a value as float16"}
    for dtype in ("<f4", ">f4", "<f2", ">f2"):
        sealed = m.KeysReply("run", as_array(b"key" + column.astype(dtype).tobytes()))
        assert scan(sealed) == {"a run of values"}
    packed = m.KeysReply("run", np.zeros((2 * ROWS + 7) // 8, np.uint8))
    assert scan(packed) == {"a list: KeysReply.message"}
    assert scan(m.KeysReply("run", octets)) == set()
