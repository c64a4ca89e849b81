"""What a vertical run puts on the wire: nothing of a record but a token and labels, few bytes."""

import gc
import re
import shutil
import types

import numpy as np
import pytest
from flwr.common.serde import recorddict_to_proto

from fedmvc_server import runner
from privacy.alignment import link_tokens
from strategies import messages as m
from strategies.messages import from_bytes
from strategies.records import from_record
from strategies.tensor_fmvc import TensorStrategy
from tests.federation.harness import federate
from tests.federation.tensor_harness import (
    KEY,
    Tape,
    arrays_in,
    folder_workers,
    hospitals,
    tables,
    vertical_plan,
    vertical_workers,
)

PLAN = vertical_plan(3, max_rounds=5)
#: Arrays as long as the list of shared rows, packed or not, that may travel.
ROW_SIZED = {
    ("LinkReply", "tokens"),
    ("AlignRequest", "shared"),
    ("StartReply", "held"),
    ("StartReply", "labels"),
    ("SweepRequest", "blend"),
    ("SweepReply", "labels"),
    ("OutcomeRequest", "known"),
    ("OutcomeRequest", "labels"),
    ("OutcomeRequest", "vote"),
}
PLANS = {
    "plus": PLAN,
    "paper": vertical_plan(3, max_rounds=5, profile="paper"),
    "float16": vertical_plan(3, max_rounds=5, z_encoding="float16", local_sweeps=2),
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Write three folders whose ids nothing else can spell; no test writes here."""
    out = tmp_path_factory.mktemp("wire") / "sites"
    return hospitals(out, sites=3, n=180, prefix="MRN-")


def recorded(pristine, folder, plan, **options):
    """Run a plan over copies of the folders; returns the tape and the result."""
    tape = Tape()
    workers = folder_workers(shutil.copytree(pristine, folder / "sites"))
    result = federate(plan, workers, grid_class=tape.grid_class(), **options)
    assert result.status == "completed", result.stop_reason
    return tape, result


@pytest.fixture(scope="module", params=PLANS)
def run(request, pristine, tmp_path_factory):
    """Return the plan, tape and result of one run."""
    plan = PLANS[request.param]
    return plan, *recorded(pristine, tmp_path_factory.mktemp(request.param), plan)


def tokens_of(pristine, plan):
    return {
        name: link_tokens(
            worker.source.load().ids,
            rule="trim",
            key=KEY,
            plan_id=plan.plan_id,
            cost=1,
            site=name,
        )[0]
        for name, worker in folder_workers(pristine).items()
    }


# -- what a message may hold -----------------------------------------------------------------


def test_no_id_and_no_cell_is_in_any_message(run, pristine):
    _, tape, _ = run
    sent = b"|".join([*tape.bodies("up"), *tape.bodies("down")])
    assert b"MRN" not in sent
    numbers = set(re.findall(rb"-?\d+\.\d+", sent))
    n_cells = 0
    for worker in folder_workers(pristine).values():
        records = worker.source.load()
        assert all(record.startswith("MRN-0") for record in records.ids)
        assert [r for r in records.ids if r.removeprefix("MRN-").encode() + b'"' in sent] == []
        (view,) = records.views.values()
        cells = np.unique(view[np.isfinite(view)])
        n_cells += cells.size
        assert [c for c in cells if np.float64(c).tobytes() in sent] == []
        assert [c for c in cells if repr(float(c)).encode() in numbers and c % 1] == []
    assert n_cells > 1500


def test_only_the_named_fields_are_as_long_as_the_list(run):
    plan, tape, _ = run
    found = set()
    for body in [*tape.bodies("up"), *tape.bodies("down")]:
        message = from_bytes(body)
        for name, array in arrays_in(message):
            if array.size > 12:  # packed, 162 shared rows are 21 bytes and more
                found.add((type(message).__name__, name))
    random_start = plan.profile == "paper"
    assert found == ROW_SIZED | ({("StartReply", "alone")} if random_start else set())


def test_labels_take_two_bits_each(run):
    _, tape, result = run
    held = {}
    for reply in tape.of(m.StartReply):
        held.setdefault(reply.labels.size, int(np.unpackbits(reply.held).sum()))
    assert result.metrics["rows"] == 162
    for size, n in held.items():
        assert size == (2 * n + 7) // 8
    assert {reply.labels.size for reply in tape.of(m.SweepReply)} <= set(held)
    (outcome, *_) = tape.of(m.OutcomeRequest)
    assert (outcome.known.size, outcome.labels.size, outcome.vote.size) == (21, 41, 41)


def test_the_run_is_hello_link_align_rounds_finish(run):
    _, tape, result = run
    kinds = [type(from_bytes(body)).__name__ for body in tape.bodies("down")]
    names = ["HelloRequest", "LinkRequest", "AlignRequest"]
    names += ["SweepRequest"] * result.rounds + ["OutcomeRequest"]
    assert kinds == [name for name in names for _ in range(3)]


def test_the_blend_travels_as_the_plan_says(run):
    plan, tape, _ = run
    first = [r for r in tape.of(m.SweepRequest) if r.round == 1]
    later = [r for r in tape.of(m.SweepRequest) if r.round > 1]
    shape = (0, 3) if plan.profile == "paper" else (162, 3)
    assert {r.blend.shape for r in first} == {shape}
    assert {r.blend.shape for r in later} == {(162, 3)}
    assert {r.blend.dtype.name for r in first + later} == {plan.tensor_settings().z_encoding}
    assert all(sorted(r.names.tolist()) == [0, 1, 2] for r in first)
    assert all(r.names.size == 0 for r in later)


# -- tokens ----------------------------------------------------------------------------------


def test_tokens_go_up_once_and_never_down(run, pristine):
    plan, tape, result = run
    sent = tokens_of(pristine, plan)
    (*replies,) = tape.of(m.LinkReply)
    assert [reply.tokens.shape for reply in replies] == [(180, 16)] * 3
    found = {reply.tokens.tobytes() for reply in replies}
    assert found == {tokens.tobytes() for tokens in sent.values()}
    everything = {token.tobytes() for tokens in sent.values() for token in tokens}
    down = b"|".join(tape.bodies("down"))
    assert [token for token in everything if token in down] == []
    others = b"|".join(b for b in tape.bodies("up") if not isinstance(from_bytes(b), m.LinkReply))
    assert [token for token in everything if token in others] == []
    shared = set.intersection(*({t.tobytes() for t in tokens} for tokens in sent.values()))
    assert len(shared) == result.metrics["rows"] == 162


def test_tokens_of_two_plans_have_nothing_in_common(pristine, tmp_path):
    other = vertical_plan(3, max_rounds=5, seed=1)
    sent = []
    for plan in (PLAN, other):
        tape, _ = recorded(pristine, tmp_path / plan.plan_id, plan)
        sent.append({t.tobytes() for reply in tape.of(m.LinkReply) for t in reply.tokens})
    assert len(sent[0]) == len(sent[1]) > 180
    assert sent[0] & sent[1] == set()


def reachable(root):
    """Yield everything that an object refers to, suspended generators' variables included."""
    seen, todo = set(), [root]
    passed_over = (type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, passed_over):
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, np.ndarray):
            todo.append(thing.base)
        elif isinstance(thing, types.FunctionType):
            todo += [*(thing.__closure__ or ()), thing.__defaults__, thing.__kwdefaults__]
        else:
            todo += gc.get_referents(thing)


def holds_tokens(root, tokens):
    """Whether an array of tokens, or bytes with one of them, hangs on an object."""
    one = tokens[len(tokens) // 2].tobytes()
    for thing in reachable(root):
        if isinstance(thing, np.ndarray) and thing.dtype == np.uint8 and thing.ndim == 2:
            return True
        if isinstance(thing, bytes) and one in thing:
            return True
    return False


def drawn():
    return np.random.default_rng(0).bytes(320)


def test_the_search_finds_what_a_generator_holds():
    tokens = np.frombuffer(drawn(), np.uint8).reshape(20, 16)

    def holding():
        body = drawn()
        yield
        del body
        yield

    running = holding()
    assert not holds_tokens([running], tokens)
    next(running)
    assert holds_tokens([{"a": running}], tokens)
    next(running)
    assert not holds_tokens([{"a": running}], tokens)
    assert holds_tokens(types.SimpleNamespace(kept=[tokens + 0]), tokens)
    assert holds_tokens([tokens[:, 0]], tokens)  # a view of them


@pytest.mark.parametrize("kind", [m.AlignRequest, m.SweepRequest, m.OutcomeRequest])
def test_after_the_matching_the_server_holds_no_token(pristine, tmp_path, monkeypatch, kind):
    strategies, found = [], []
    sent = tokens_of(pristine, PLAN)

    class Seen(TensorStrategy):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            strategies.append(self)

    def look(worker, body):
        if isinstance(from_bytes(body), kind):  # the strategy waits for this site's reply
            found.append([holds_tokens(strategies[0], sent[name]) for name in sorted(sent)])
        return worker.handle(body)

    monkeypatch.setitem(runner._STRATEGIES, "tensor-fmvc", Seen)
    workers = folder_workers(shutil.copytree(pristine, tmp_path / "sites"))
    result = federate(PLAN, workers, change={"st-anna": look})
    assert result.status == "completed", result.stop_reason
    assert found
    assert not any(any(each) for each in found)
    assert not any(holds_tokens(strategies[0], tokens) for tokens in sent.values())


# -- bytes -----------------------------------------------------------------------------------


def flower_bytes(contents, kind):
    """Return the sizes, as Flower serialises them, of the messages of a kind."""
    return [
        len(recorddict_to_proto(content).SerializeToString())
        for content in contents
        if isinstance(from_bytes(from_record(content)), kind)
    ]


def test_a_round_of_ten_thousand_rows_is_16_kb_up_and_310_kb_down():
    rng = np.random.default_rng(0)
    truth = rng.integers(10, size=10_000)
    views = {
        name: rng.normal(size=(10_000, 4)) + 6.0 * rng.normal(size=(10, 4))[truth]
        for name in ("a", "b", "c")
    }
    tape = Tape()
    plan = vertical_plan(10, max_rounds=3, anchors=60, neighbours=5)

    result = federate(plan, vertical_workers(views), grid_class=tape.grid_class())

    assert result.status == "completed", result.stop_reason
    assert len(result.history) == 3
    for row in result.history:
        assert 15_000 < row["bytes_up"] <= 16_000
        assert 300_000 < row["bytes_down"] <= 310_000
    up, down = flower_bytes(tape.up, m.SweepReply), flower_bytes(tape.down, m.SweepRequest)
    assert (len(up), len(down)) == (9, 9)
    for number in range(3):
        assert 15_000 < sum(up[3 * number : 3 * number + 3]) <= 16_000
        assert 300_000 < sum(down[3 * number : 3 * number + 3]) <= 310_000


def test_the_bytes_of_the_run_are_those_of_all_messages():
    views, _ = tables()
    tape = Tape()
    result = federate(PLAN, vertical_workers(views), grid_class=tape.grid_class())
    assert result.bytes_up == sum(map(len, tape.bodies("up")))
    assert result.bytes_down == sum(map(len, tape.bodies("down")))
