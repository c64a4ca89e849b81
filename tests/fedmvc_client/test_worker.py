"""The site worker: policy, order of requests, restarts, and what never leaves."""

import dataclasses
import json
import logging

import numpy as np
import pytest

from configs.plan import RunPlan
from configs.site import Policy, SiteConfig
from fedmvc_client import refusal_notes
from fedmvc_client.participants.fedhk_mvfc import FedHKParticipant
from fedmvc_client.results import read_results
from fedmvc_client.safe import FolderSafe, MemorySafe
from fedmvc_client.worker import SiteWorker, folder_worker
from fedmvc_server.synthesize import synthesize_cardio
from strategies import messages as m
from strategies.messages import Refusal, from_bytes, to_bytes
from tests.federation.harness import federate, plan_of

RUN = "0123abcd-0000-4000-8000-000000000000"
SECRET = "patient 4711 weighs 82.25 kg"


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """Two site folders with 120 patients; no test writes here."""
    out = tmp_path_factory.mktemp("cardio") / "sites"
    synthesize_cardio(out, n=120, sites=2, partition="iid")
    for path in out.glob("*/*.csv"):  # ids that nothing else in a message can spell
        head, *rows = path.read_text().splitlines()
        path.write_text("\n".join([head, *('"MRN-' + row[1:] for row in rows)]) + "\n")
    return out


@pytest.fixture
def site(untouched, tmp_path):
    """Return a fresh copy of the first site's folder."""
    return copy_of(untouched / "st-anna", tmp_path / "st-anna")


def copy_of(source, target):
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())
    return target


def with_policy(folder, **policy):
    config = SiteConfig.load(folder)
    fields = {**config.model_dump(mode="json"), "policy": {"approval": "auto", **policy}}
    SiteConfig.parse(fields).dump(folder)
    return folder_worker(folder)


PLAN = plan_of(4, profile="paper", max_rounds=6)


def hello(plan=PLAN, run_id=RUN, **changes):
    return dataclasses.replace(m.HelloRequest(run_id, plan.plan_id, plan.canonical()), **changes)


def ask(worker, request):
    return from_bytes(worker.handle(to_bytes(request)))


def refused(worker, request, code):
    reply = ask(worker, request)
    assert isinstance(reply, Refusal), type(reply).__name__
    assert reply.code == code, reply.message
    return reply.message


@dataclasses.dataclass
class Tape:
    """Bodies that crossed between the server and one site, in order."""

    requests: list
    replies: list

    def __call__(self, worker, body):
        reply = worker.handle(body)
        self.requests.append(body)
        self.replies.append(reply)
        return reply

    def find(self, kind, number=0):
        hits = [i for i, body in enumerate(self.requests) if isinstance(from_bytes(body), kind)]
        return hits[number]


def recorded(untouched, tmp_path, plan):
    """Run a plan over fresh copies of both sites; return the first one's tape and the result."""
    folders = {
        name: copy_of(untouched / name, tmp_path / "recorded" / name)
        for name in ("st-anna", "charite-nord")
    }
    tape = Tape([], [])
    workers = {name: folder_worker(folder) for name, folder in folders.items()}
    result = federate(plan, workers, change={"st-anna": tape})
    assert result.status == "completed", result.stop_reason
    return tape, result


# -- policy ----------------------------------------------------------------------------------


def test_hello_names_views_and_no_values(site):
    reply = ask(folder_worker(site), hello())
    assert isinstance(reply, m.HelloReply)
    assert reply.site == "st-anna"
    assert [v.name for v in reply.views] == ["ecg", "imaging"]
    assert reply.views[0].columns == ("ecg_x", "ecg_y")
    assert reply.views[0].bounds.tolist() == [[-1.0, 11.0]] * 2
    assert all(v.held for v in reply.views)


def test_a_plan_without_approval_is_refused(site):
    sentence = refused(with_policy(site, approval="required"), hello(), 4)
    assert "'st-anna'" in sentence
    assert "policy.approval = 'auto'" in sentence


def test_a_plan_that_runs_is_kept_whatever_was_sent_that_day(untouched, tmp_path, monkeypatch):
    monkeypatch.setattr(refusal_notes, "MOST_A_DAY", 0)
    recorded(untouched, tmp_path, PLAN)
    folder = tmp_path / "recorded" / "st-anna"
    register = FolderSafe(folder, SiteConfig.load(folder)).register
    assert register.load(PLAN.plan_id) == PLAN


@pytest.mark.parametrize("wanted", ["dp", "secure_aggregation"])
def test_a_plan_without_the_protection_required_is_refused(site, wanted):
    sentence = refused(with_policy(site, require=[wanted]), hello(), 4)
    assert wanted in sentence
    assert "policy.require" in sentence


def test_a_site_below_its_smallest_cohort_sends_no_moment(site):
    worker = with_policy(site, min_cohort=61)
    assert isinstance(ask(worker, hello()), m.HelloReply)
    request = m.PrepareRequest(RUN, PLAN.plan_id, ("ecg", "imaging"), np.array([2, 2]))
    sentence = refused(worker, request, 4)
    assert "60 rows" in sentence
    assert "policy.min_cohort is 61" in sentence
    assert isinstance(ask(with_policy(site, min_cohort=60), hello()), m.HelloReply)


# -- plans and runs --------------------------------------------------------------------------


def test_a_plan_that_does_not_match_its_id_is_refused(site):
    other = plan_of(3, profile="paper")
    assert "does not match its id" in refused(folder_worker(site), hello(plan_id=other.plan_id), 8)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '["4711"]', "[" * 10**5])
def test_an_unreadable_plan_is_refused_without_repeating_it(site, text):
    sentence = refused(folder_worker(site), dataclasses.replace(hello(), plan=text), 2)
    assert "cannot read the plan" in sentence
    assert "4711" not in sentence


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        (
            {"threshold": 2, "tolerated_dropouts": 1},
            "privacy.threshold 2 with privacy.tolerated_dropouts 1",
        ),
        ({"colluders": 0}, "privacy.colluders is 0"),
    ],
)
def test_a_plan_that_may_not_run_is_refused_in_its_own_words_and_noted(site, privacy, words):
    masked = {
        "secure_aggregation": True,
        "participants": ["a", "b", "c", "d"],
        "mechanism": "gaussian",
        "epsilon": 1.0,
    }
    fields = {"method": "fedhk-mvfc", "n_clusters": 3, "fedhk": {"heat_kernel": "one"}}
    plan = json.dumps({**fields, "privacy": {**masked, **privacy}})
    worker = folder_worker(site)
    sentence = refused(worker, dataclasses.replace(hello(), plan=plan), 2)
    assert sentence.startswith("site 'st-anna' refuses the plan (plan: ")
    assert words in sentence
    (noted,) = (entry.facts for entry in worker.source.safe.audit.entries())
    assert (noted["code"], noted["sentence"]) == (2, sentence)


@pytest.mark.parametrize(
    "run_id", ["../../../etc", "a/b-aaaaaaaa", "", "x" * 36, "ab", "a" * 65, "\0" * 36]
)
def test_a_run_id_that_could_name_a_path_is_refused(site, run_id):
    worker = folder_worker(site)
    assert "not a UUID" in refused(worker, hello(run_id=run_id), 8)
    request = m.PrepareRequest(run_id, PLAN.plan_id, ("ecg",), np.array([2]))
    refused(worker, request, 8)
    assert [path.name for path in (site / "state").iterdir()] == ["audit.jsonl"]


def test_requests_of_an_unknown_run_are_refused(untouched, tmp_path, site):
    tape, _ = recorded(untouched, tmp_path, PLAN)
    worker = folder_worker(site)
    for kind in (m.PrepareRequest, m.SeedRequest, m.RoundRequest, m.FinishRequest):
        reply = from_bytes(worker.handle(tape.requests[tape.find(kind)]))
        assert isinstance(reply, Refusal)
        assert reply.code == 8
        assert "knows no run" in reply.message


def test_requests_of_another_plan_are_refused(site):
    worker = folder_worker(site)
    ask(worker, hello())
    other = plan_of(3, profile="paper")
    request = m.PrepareRequest(RUN, other.plan_id, ("ecg",), np.array([2]))
    assert "belongs to plan" in refused(worker, request, 8)


def test_requests_out_of_order_are_refused(untouched, tmp_path, site):
    tape, _ = recorded(untouched, tmp_path, PLAN)
    worker = folder_worker(site)
    kinds = (m.HelloRequest, m.PrepareRequest, m.SeedRequest, m.RoundRequest, m.FinishRequest)
    bodies = [tape.requests[tape.find(kind)] for kind in kinds]
    for step, body in enumerate(bodies):
        early_ones = bodies[step + 1 :]
        if step == 3:
            early_ones = []  # set up is set up: a finish may come without a round
        for early in early_ones:
            reply = from_bytes(worker.handle(early))
            assert isinstance(reply, Refusal), (step, type(from_bytes(early)).__name__)
            assert reply.code == 8
        assert not isinstance(from_bytes(worker.handle(body)), Refusal)


def test_a_finished_run_is_over(untouched, tmp_path, site):
    tape, _ = recorded(untouched, tmp_path, PLAN)
    worker = folder_worker(site)
    for body in tape.requests:
        worker.handle(body)
    reply = from_bytes(worker.handle(tape.requests[tape.find(m.RoundRequest)]))
    assert isinstance(reply, Refusal)
    assert not any((site / "state" / "runs").iterdir())


@pytest.mark.parametrize(
    "message", [m.Refusal(4, "no"), m.FinishReply(RUN, 1, np.ones(1), np.ones(1), 1.0)]
)
def test_what_is_no_request_is_refused(site, message):
    assert "not a request" in refused(folder_worker(site), message, 8)


@pytest.mark.parametrize("body", [b"", b"\0" * 40, b"GET / HTTP/1.1\r\n\r\n"])
def test_noise_is_refused(site, body):
    reply = from_bytes(folder_worker(site).handle(body))
    assert isinstance(reply, Refusal)
    assert reply.code == 8


def test_views_of_another_width_are_refused(site):
    worker = folder_worker(site)
    ask(worker, hello())
    request = m.PrepareRequest(RUN, PLAN.plan_id, ("ecg", "imaging"), np.array([2, 3]))
    sentence = refused(worker, request, 8)
    assert "3 columns in view 'imaging'" in sentence


# -- restarts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"aggregation": "exact"},
        {"aggregation": "exact", "encoding": "float32"},
        {"aggregation": "weighted"},
        {"aggregation": "nmi_softmax"},
        {"aggregation": "weighted", "local_clusters": {"st-anna": 3}},
        {"aggregation": "weighted", "gamma": 0.5},
    ],
    ids=lambda o: "-".join(str(v) for v in o.values()),
)
def test_a_restarted_worker_goes_on_with_identical_replies(untouched, tmp_path, site, options):
    """Every request meets a new worker on the same folder, as after a restart."""
    plan = plan_of(4, max_rounds=4, tol=0.0, **options)
    tape, _ = recorded(untouched, tmp_path, plan)
    for number, (body, expected) in enumerate(zip(tape.requests, tape.replies, strict=True)):
        assert folder_worker(site).handle(body) == expected, f"request {number}"
    assert read_results(next((site / "results").iterdir())) is not None


def test_a_restarted_worker_codes_against_zero(untouched, tmp_path, site):
    plan = plan_of(4, max_rounds=4, tol=0.0, encoding="int8")
    tape, _ = recorded(untouched, tmp_path, plan)
    third = tape.find(m.RoundRequest, 2)
    worker = folder_worker(site)
    for body in tape.requests[:third]:
        worker.handle(body)
    fresh = from_bytes(folder_worker(site).handle(tape.requests[third]))
    known = from_bytes(worker.handle(tape.requests[third]))
    assert known.base == 2
    assert fresh.base == -1
    assert fresh.codes[0].shape == known.codes[0].shape


@pytest.mark.parametrize("restart", [False, True])
def test_a_reply_that_was_lost_is_sent_again(untouched, tmp_path, site, restart):
    """The site is a round ahead of the server, which asks again; another request is another one."""
    plan = plan_of(4, max_rounds=4, tol=0.0, encoding="int16")
    tape, _ = recorded(untouched, tmp_path, plan)
    third = tape.find(m.RoundRequest, 2)
    worker = folder_worker(site)
    replies = [worker.handle(body) for body in tape.requests[: third + 1]]
    again = folder_worker(site) if restart else worker
    assert again.handle(tape.requests[third]) == replies[third]
    behind = dataclasses.replace(from_bytes(tape.requests[third]), reference=-1)
    assert ask(again, behind).base == -1


def test_more_runs_than_fit_in_memory_go_on_from_the_state_folder(site):
    worker = folder_worker(site)
    runs = [f"0000000{i}-aaaa" for i in range(4)]
    for run_id in runs:
        ask(worker, hello(run_id=run_id))
    for run_id in runs:
        request = m.PrepareRequest(run_id, PLAN.plan_id, ("ecg", "imaging"), np.array([2, 2]))
        assert isinstance(ask(worker, request), m.PrepareReply)


def test_a_run_that_began_takes_no_other_plan_and_goes_on(untouched, tmp_path, site):
    prepare = m.PrepareRequest(RUN, PLAN.plan_id, ("ecg", "imaging"), np.array([2, 2]))
    other = plan_of(3, profile="paper")
    worker = folder_worker(site)
    ask(worker, hello())
    first = to_bytes(ask(worker, prepare))
    for again in (worker, folder_worker(site)):
        sentence = f"belongs to plan {PLAN.plan_id[:12]}, not {other.plan_id[:12]}"
        assert sentence in refused(again, hello(other), 8)
        assert to_bytes(ask(again, prepare)) == first


def test_a_hello_alone_leaves_the_run_id_to_another_plan(site):
    """What the first plan asked must not come back under the second."""
    other = plan_of(3, profile="paper")
    worker = folder_worker(site)
    ask(worker, hello())
    ask(worker, hello(other))
    prepare = m.PrepareRequest(RUN, PLAN.plan_id, ("ecg", "imaging"), np.array([2, 2]))
    for again in (worker, folder_worker(site)):
        assert f"belongs to plan {other.plan_id[:12]}" in refused(again, prepare, 8)


# -- what stays ------------------------------------------------------------------------------


def test_an_internal_error_gives_no_text_of_the_exception(site, monkeypatch, caplog):
    def fail(self, request):
        raise RuntimeError(SECRET)

    worker = folder_worker(site)
    ask(worker, hello())
    monkeypatch.setattr(FedHKParticipant, "prepare", fail)
    request = m.PrepareRequest(RUN, PLAN.plan_id, ("ecg", "imaging"), np.array([2, 2]))
    with caplog.at_level(logging.ERROR):
        body = worker.handle(to_bytes(request))
    reply = from_bytes(body)
    assert (type(reply), reply.code) == (Refusal, 70)
    assert b"4711" not in body
    assert "'st-anna'" in reply.message
    assert SECRET in caplog.text  # the site's own log has it


def test_an_error_below_the_sources_gives_no_path(site):
    (site / "ecg.csv").unlink()
    worker = folder_worker(site)
    ask(worker, hello())
    request = m.PrepareRequest(RUN, PLAN.plan_id, ("ecg", "imaging"), np.array([2, 2]))
    sentence = refused(worker, request, 3)
    assert str(site.parent) not in sentence


def patterns(values, *, without=()):
    """Bytes of single float64 values, except those that anybody could write down."""
    common = {0.0, 1.0, 0.5, 0.25, *np.asarray(without, dtype=float).ravel().tolist()}
    return {np.float64(v).tobytes() for v in np.asarray(values).ravel() if v not in common}


@pytest.mark.parametrize(
    "options",
    [
        {"aggregation": "exact", "gamma": 0.5, "rho": 0.5},
        {"aggregation": "nmi_softmax", "gamma": 0.5, "rho": "adaptive"},
        {"aggregation": "quality"},
    ],
    ids=lambda o: o["aggregation"],
)
def test_no_id_membership_label_or_personal_model_crosses_the_wire(untouched, tmp_path, options):
    plan = plan_of(4, profile="paper", max_rounds=6, **options)
    tape, result = recorded(untouched, tmp_path, plan)
    kept = result.site_results["st-anna"]
    sent = b"|".join(tape.replies)
    assert all(identity.startswith("MRN-") for identity in kept.ids)
    assert b"MRN" not in sent
    for identity in kept.ids:
        assert identity.encode() not in sent
    labels = kept.labels
    for dtype in ("<i8", "<i4", "<i2", "<i1", "<f8", "<f4"):
        assert labels.astype(dtype).tobytes() not in sent
        # nor a stretch of them
        assert labels[:24].astype(dtype).tobytes() not in sent
    hidden = patterns(kept.membership)
    assert len(hidden) > 4 * 40
    if options.get("gamma") is not None:
        for own, shared in zip(kept.personal_model.centers, kept.model.centers, strict=True):
            assert np.abs(own - shared).max() > 1e-6
            hidden |= patterns(own)
    assert [p for p in hidden if p in sent] == []


def test_no_record_crosses_the_wire_but_the_extremes(untouched, tmp_path):
    """Extremes of each column do (the plain run says so); no other cell does."""
    tape, _ = recorded(untouched, tmp_path, PLAN)
    records = folder_worker(untouched / "st-anna").source.load().views
    sent = b"|".join(tape.replies)
    extremes = [f(v, axis=0) for v in records.values() for f in (np.min, np.max)]
    cells = patterns(np.concatenate([v.ravel() for v in records.values()]), without=extremes)
    assert len(cells) == 4 * (60 - 2)
    assert [c for c in cells if c in sent] == []
    assert patterns(extremes)
    assert all(p in sent for p in patterns(extremes))


def test_refusals_of_a_run_carry_no_value(untouched, tmp_path):
    """The reply to every request, cut short, is a refusal without a number from the data."""
    tape, _ = recorded(untouched, tmp_path, PLAN)
    worker = folder_worker(copy_of(untouched / "st-anna", tmp_path / "again"))
    for body in tape.requests:
        reply = from_bytes(worker.handle(body[:-9]))
        assert isinstance(reply, Refusal)
        assert len(reply.message) < 200


def test_results_are_whole_and_only_at_the_site(untouched, tmp_path):
    _, result = recorded(untouched, tmp_path, PLAN)
    folder = tmp_path / "recorded" / "st-anna" / "results" / result.run_id
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("membership.parquet", "personal_model.npz", "model.npz", "model.json"),
        "certificate.json",
    }
    assert [p.name for p in folder.parent.iterdir()] == [result.run_id]
    kept = read_results(folder)
    np.testing.assert_allclose(kept.membership.sum(axis=1), 1.0, atol=1e-12)
    assert np.array_equal(kept.labels, kept.membership.argmax(axis=1))
    assert kept.model.sha256() == result.model.sha256()
    with np.load(folder / "personal_model.npz", allow_pickle=False) as arrays:
        assert arrays["centers_0"].shape == (4, 2)
    assert json.loads((folder / "model.json").read_text())["plan_id"] == PLAN.plan_id


def test_results_that_were_never_written_are_none(site):
    assert folder_worker(site).result(RUN) is None


def test_a_worker_never_raises_on_its_own_type_of_error():
    class Broken:
        name = "broken"

        def describe(self):
            raise KeyError(SECRET)

        @property
        def policy(self):
            raise KeyError(SECRET)

        state_dir = None
        safe = MemorySafe("broken", Policy())

    reply = from_bytes(SiteWorker(Broken()).handle(to_bytes(hello())))
    assert reply.code == 70
    assert "4711" not in reply.message


def test_a_folder_that_cannot_be_written_is_said_without_its_path(site):
    (site / "state").write_text("in the way")
    sentence = refused(folder_worker(site), hello(), 2)
    assert "'st-anna'" in sentence
    assert str(site) not in sentence


def test_plan_parsing_at_the_site_is_the_servers():
    assert RunPlan.parse(json.loads(PLAN.canonical())).plan_id == PLAN.plan_id
