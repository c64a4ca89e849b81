"""The site half of a selection: its sums, a restart anywhere, a server that asks for more."""

import dataclasses
import io

import numpy as np
import pytest

from configs.schema import DataSchema
from configs.site import Policy
from fedmvc_client.outcomes import SelectionResult
from fedmvc_client.results import read_results, write_results
from fedmvc_client.worker import array_worker
from strategies import messages as m
from strategies.messages import FeatureScaling, Refusal, from_bytes, to_bytes
from tests.federation.harness import federate, workers_of
from tests.federation.mufsht_harness import Wire, hospitals, selection_plan

SITES, _ = hospitals(n=90, n_sites=2)
#: Site 00 lacks some cells, a column and a record.
SITES["site-00"]["views"][0][:9, 4] = np.nan
SITES["site-00"]["views"][1][:, 3] = np.nan
for _view in SITES["site-00"]["views"]:
    _view[5] = np.nan
COUNTS = {
    name: {"views": [np.rint(np.abs(np.nan_to_num(v)) * 2) for v in site["views"]]}
    for name, site in SITES.items()
}
PLANS = {
    "softmax": (selection_plan(max_rounds=3), SITES),
    "uniform": (selection_plan(weighting="uniform"), SITES),
    "keys": (selection_plan(max_rounds=1, search="keys"), SITES),
    "paper": (selection_plan(profile="paper"), SITES),
    "text": (selection_plan(text=True), COUNTS),
}


class Recorded:
    """One site that answered an honest run: the messages, and a way to ask it anew."""

    def __init__(self, plan, sites):
        self.plan, self.sites = plan, sites
        wire = Wire()
        result = federate(plan, workers_of(sites), change={"site-00": wire})
        assert result.status == "completed", result.stop_reason
        self.requests, self.replies = wire.messages[::2], wire.messages[1::2]
        self.again()

    def again(self):
        """Give a worker that knows no run yet."""
        self.worker = workers_of(self.sites)["site-00"]

    def of(self, kind, number=0):
        """Return a request of a kind."""
        return [r for r in self.requests if isinstance(r, kind)][number]

    def ask(self, request):
        return from_bytes(self.worker.handle(to_bytes(request)))

    def ask_until(self, kind, number=0):
        """Ask everything that comes before a request, and return it."""
        stop = self.of(kind, number)
        for request in self.requests:
            if request is stop:
                return stop
            assert not isinstance(self.ask(request), Refusal)
        raise AssertionError("it was never asked")

    def refused(self, request, code=8):
        reply = self.ask(request)
        assert isinstance(reply, Refusal), type(reply).__name__
        assert reply.code == code, reply.message
        return reply.message

    @property
    def participant(self):
        (found,) = self.worker._participants.values()
        return found

    def untouched(self):
        """Return what the site keeps, to be equal before and after a refusal."""
        return [
            {name: value.tolist() for name, value in participant.state().items()}
            for participant in self.worker._participants.values()
        ]

    def answers(self, request):
        """Check that a site answers as it did in the honest run."""
        honest = next(r for q, r in zip(self.requests, self.replies, strict=True) if q is request)
        assert to_bytes(self.ask(request)) == to_bytes(honest)


@pytest.fixture(scope="module")
def runs():
    """Return the recorded run of each plan, made when first asked for."""
    known = {}

    def give(name):
        if name not in known:
            known[name] = Recorded(*PLANS[name])
        known[name].again()
        return known[name]

    return give


@pytest.fixture
def site(runs):
    return runs("softmax")


# -- sums ------------------------------------------------------------------------------------------


def small(*views, columns=(2, 1), **mufsht):
    """Return a worker with given views that was asked hello, and the two ids of its run."""
    schema = DataSchema.from_arrays([np.zeros((1, d)) for d in columns])
    worker = array_worker("a", views, schema)
    plan = selection_plan(2, **mufsht)
    ids = ("0123456789abcdef", plan.plan_id)
    hello = m.HelloRequest(*ids, plan.canonical())
    assert isinstance(from_bytes(worker.handle(to_bytes(hello))), m.HelloReply)

    def ask(kind, *fields):
        return from_bytes(worker.handle(to_bytes(kind(*ids, *fields))))

    return worker, ask


NAMES = ("view_0", "view_1")
SIZES = np.array([2, 1])


def test_the_survey_counts_cells_records_and_exposure():
    nan = np.nan
    _, ask = small([[1.0, nan], [4.0, nan], [nan, nan]], None)
    found = ask(m.SurveyRequest, NAMES, SIZES).sums
    rows, holding, count, exposed, first, weighted = (a.tolist() for a in found)
    assert rows == [3]
    assert holding == [2, 0]
    assert count == [2, 0, 0]
    assert exposed == [3, 0, 0]
    assert first == [5, 0, 0]
    assert weighted == [0, 0]
    zeros = np.zeros(3)
    second = ask(m.ScalingRequest, np.array([2.5, 9.0, 9.0]), zeros, np.zeros(2)).sums
    assert [a.tolist() for a in second] == [[0, 0, 0], [4.5, 0, 0]]


def test_the_survey_of_text_counts_documents():
    nan = np.nan
    words = [[3.0, 0.0], [4.0, 0.0], [0.0, 0.0], [nan, nan]]
    _, ask = small(words, [[0.5], [0.0], [1.0], [2.0]], text=True)
    found = ask(m.SurveyRequest, NAMES, SIZES).sums
    assert found[1].tolist() == [3, 4]
    assert found[4].tolist() == [2, 0, 3]  # documents with the word
    assert found[5].tolist() == [0, 1]  # halves are no counts
    frequencies, documents = np.array([2.0, 0.0, 0.0]), np.array([3.0, 0.0])
    second = ask(m.ScalingRequest, np.zeros(3), frequencies, documents).sums
    assert [a.tolist() for a in second] == [[2, 0, 3], [2, 0, 3]]  # rows of length 1, or 0


def test_a_share_is_gamma_times_the_weights(runs):
    run = runs("softmax")
    request = run.ask_until(m.ShareRequest)
    fit = run.participant._fit
    reply = run.ask(dataclasses.replace(request, weight=0.25))
    weighted, mass, alpha, norms, (objective,) = reply.sums
    np.testing.assert_array_equal(weighted, 0.25 * fit.weights)
    assert np.flatnonzero(mass == 0).tolist() == [15 + 3]
    assert set(mass.tolist()) == {0.0, 0.25}
    assert alpha.sum() == pytest.approx(0.25)
    parts = np.split(fit.weights, [15, 27])
    np.testing.assert_allclose(norms, [0.25 * np.linalg.norm(w) for w in parts], rtol=1e-12)
    assert objective == fit.objective


# -- what stays ------------------------------------------------------------------------------------


def test_the_result_has_the_sites_own_clusters(site, tmp_path):
    request = site.ask_until(m.SelectionRequest)
    assert isinstance(site.ask(request), m.SelectionReply)
    result = site.worker.result(request.run_id)
    assert isinstance(result, SelectionResult)
    assert result.selection.selected() == request.selection.selected()
    assert np.flatnonzero(result.labels < 0).tolist() == [5]
    assert set(result.labels.tolist()) == {-1, 0, 1, 2}
    assert result.membership.sum(axis=1).tolist() == [float(i != 5) for i in range(45)]
    assert result.model is result.personal_model is None
    write_results(tmp_path / "run", result)
    kept = read_results(tmp_path / "run")
    assert kept.ids == result.ids
    np.testing.assert_array_equal(kept.labels, result.labels)
    np.testing.assert_array_equal(kept.membership, result.membership)
    assert kept.selection.description() == result.selection.description()
    for key, value in result.selection.arrays().items():
        np.testing.assert_array_equal(kept.selection.arrays()[key], value)


# -- restart ---------------------------------------------------------------------------------------


def restart(worker):
    """Throw a participant away and make it again from what `state` gives, as files keep it."""
    for run_id, participant in list(worker._participants.items()):
        kept = io.BytesIO()
        np.savez(kept, **participant.state())
        kept.seek(0)
        with np.load(kept, allow_pickle=False) as arrays:
            state = {name: arrays[name] for name in arrays.files}
        n = len(participant.records.ids)
        assert all(n not in array.shape for array in state.values())
        fresh = type(participant).begin(
            participant.plan, run_id, worker.source, participant.records
        )
        fresh.restore(state)
        worker._participants[run_id] = fresh


@pytest.mark.parametrize("name", PLANS)
def test_a_restart_before_any_request_changes_no_bit(runs, name):
    run = runs(name)
    for request, honest in zip(run.requests, run.replies, strict=True):
        restart(run.worker)
        reply = run.ask(request)
        assert to_bytes(reply) == to_bytes(honest), type(request).__name__
    run_id = run.requests[0].run_id
    restarted = run.worker.result(run_id)
    run.again()
    for request in run.requests:
        run.ask(request)
    np.testing.assert_array_equal(restarted.labels, run.worker.result(run_id).labels)


# -- a server that asks for more -------------------------------------------------------------------


def test_requests_out_of_order_are_refused(site):
    assert "it needs a hello first" in site.refused(site.of(m.SurveyRequest))
    site.ask(site.of(m.HelloRequest))
    for kind in (m.ScalingRequest, m.FitRequest, m.ShareRequest, m.SelectionRequest):
        assert "before survey" in site.refused(site.of(kind))
    site.ask(site.of(m.SurveyRequest))
    assert "a round before scale" in site.refused(site.of(m.FitRequest))
    site.ask(site.of(m.ScalingRequest))
    assert "no round waits" in site.refused(site.of(m.ShareRequest))
    assert "finish before a round" in site.refused(site.of(m.SelectionRequest))
    site.ask(site.of(m.FitRequest))
    assert "finish before a round" in site.refused(site.of(m.SelectionRequest))


def test_each_round_is_fitted_and_shared_once(site):
    first, share = site.of(m.FitRequest), site.of(m.ShareRequest)
    site.ask_until(m.FitRequest)
    fitted = site.ask(first)
    assert to_bytes(site.ask(first)) == to_bytes(fitted)
    turned = dataclasses.replace(first, weights=-first.weights)
    assert "round 1 after 1 of at most 3" in site.refused(turned)
    other = dataclasses.replace(share, round=2)
    assert "round 2 but round 1 waits" in site.refused(other)
    shared = site.ask(share)
    assert to_bytes(site.ask(share)) == to_bytes(shared)
    halved = dataclasses.replace(share, weight=share.weight / 2)
    assert "no round waits" in site.refused(halved)
    assert "round 1 after 1" in site.refused(first)
    later = dataclasses.replace(site.of(m.FitRequest, 1), round=4)
    assert "round 4 after 1 of at most 3" in site.refused(later)
    assert isinstance(site.ask(site.of(m.FitRequest, 1)), m.FitReply)


def test_a_new_start_is_answered_alike_before_a_round_and_refused_after(site):
    survey, scale = site.of(m.SurveyRequest), site.of(m.ScalingRequest)
    site.ask_until(m.FitRequest)
    assert to_bytes(site.ask(survey)) == to_bytes(site.replies[1])
    assert "a round before scale" in site.refused(site.of(m.FitRequest))
    assert to_bytes(site.ask(scale)) == to_bytes(site.replies[2])
    site.ask(site.of(m.FitRequest))
    assert "sent survey after round 1" in site.refused(survey)
    assert "sent scale after round 1" in site.refused(scale)
    assert isinstance(site.ask(site.of(m.ShareRequest)), m.ShareReply)
    assert "sent survey after round 1" in site.refused(survey)


def turned(scaling):
    """Return the scaling of another number of columns in the first view."""
    first, *rest = scaling
    return (FeatureScaling(*(a[1:] for a in (first.center, first.spread, first.dead))), *rest)


def flat(scaling):
    first, *rest = scaling
    return (dataclasses.replace(first, spread=0.0 * first.spread), *rest)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (m.SurveyRequest, lambda r: {"views": r.views[:2]}, "each once"),
        (m.SurveyRequest, lambda r: {"views": ("view_0",) * 3}, "each once"),
        (m.SurveyRequest, lambda r: {"n_columns": r.n_columns * 0}, "between 1 and 1000000"),
        (m.SurveyRequest, lambda r: {"n_columns": r.n_columns * 10**7}, "between 1 and 1000000"),
        (m.SurveyRequest, lambda r: {"n_columns": r.n_columns + 1}, "this site 15"),
        (m.ScalingRequest, lambda r: {"origin": r.origin[1:]}, "does not fit its 40 columns"),
        (m.ScalingRequest, lambda r: {"documents": r.documents + 1}, "does not fit its 40 columns"),
        (m.ScalingRequest, lambda r: {"documents": r.documents - 1}, "does not fit its 40 columns"),
        (m.ScalingRequest, lambda r: {"frequencies": r.frequencies + 1}, "does not fit"),
        (m.ScalingRequest, lambda r: {"frequencies": r.frequencies - 1}, "does not fit"),
        (m.FitRequest, lambda r: {"weights": r.weights[:, :2]}, "40 columns and 3 clusters"),
        (m.FitRequest, lambda r: {"weights": r.weights[1:]}, "40 columns and 3 clusters"),
        (m.FitRequest, lambda r: {"scaling": ()}, "sent 0 scalings in round 1"),
        (m.FitRequest, lambda r: {"scaling": turned(r.scaling)}, "does not fit its views"),
        (m.FitRequest, lambda r: {"scaling": flat(r.scaling)}, "does not fit its views"),
        (m.FitRequest, lambda r: {"weight": 0.5}, "weighting = 'softmax'"),
        (m.FitRequest, lambda r: {"round": 0}, "round 0 after 0"),
        (m.ShareRequest, lambda r: {"weight": 1.5}, "not between 0 and 1"),
        (m.ShareRequest, lambda r: {"weight": -0.1}, "not between 0 and 1"),
    ],
)
def test_what_does_not_fit_the_plan_or_the_columns_is_refused(site, kind, change, words):
    request = site.ask_until(kind)
    before = site.untouched()
    assert words in site.refused(dataclasses.replace(request, **change(request)))
    assert site.untouched() == before
    site.answers(request)


def test_a_survey_that_is_refused_leaves_the_one_before(site):
    survey, scale = site.of(m.SurveyRequest), site.ask_until(m.ScalingRequest)
    before = site.untouched()
    site.refused(dataclasses.replace(survey, n_columns=survey.n_columns + 1))
    assert site.untouched() == before
    site.answers(scale)


@pytest.mark.parametrize("name", ["softmax", "uniform"])
def test_a_fit_that_fails_leaves_nothing(runs, name):
    """A first round with a scaling that no feature survives; the honest one comes after it."""
    run = runs(name)
    request = run.ask_until(m.FitRequest)
    before = run.untouched()
    dead = tuple(dataclasses.replace(s, dead=s.dead | True) for s in request.scaling)
    assert "0 of them vary" in run.refused(dataclasses.replace(request, scaling=dead), code=3)
    assert run.untouched() == before
    run.answers(request)


def test_the_weights_of_text_count_documents_of_the_run(runs):
    run = runs("text")
    request = run.ask_until(m.ScalingRequest)
    for change in (
        {"frequencies": request.frequencies + request.documents.max()},
        {"frequencies": request.frequencies - 2 * request.documents.max()},
        {"documents": -request.documents},
        {"origin": request.origin + 1},
    ):
        assert "does not fit its 40 col" in run.refused(dataclasses.replace(request, **change))
    run.answers(request)


def test_the_scaling_comes_once(site):
    first = site.of(m.FitRequest)
    second = site.ask_until(m.FitRequest, 1)
    again = dataclasses.replace(second, scaling=first.scaling)
    assert "sent 3 scalings in round 2" in site.refused(again)


def test_a_uniform_plan_needs_the_weight_with_the_round(runs):
    run = runs("uniform")
    request = run.ask_until(m.FitRequest)
    for weight in (0.0, 1.5, -0.5):
        sentence = run.refused(dataclasses.replace(request, weight=weight))
        assert "weighting = 'uniform'" in sentence
    run.answers(request)
    again = dataclasses.replace(run.of(m.FitRequest, 1), weight=0.5)
    assert isinstance(run.ask(again), m.ShareReply)


def test_a_weight_of_a_uniform_plan_is_not_sent_again(runs):
    """The round was answered with the weights: a share would be the same ones once more."""
    run = runs("uniform")
    request = run.ask_until(m.FitRequest)
    run.answers(request)
    fields = {"run_id": request.run_id, "plan_id": request.plan_id, "round": 1, "weight": 1.0}
    assert "no round waits for one" in run.refused(m.ShareRequest(**fields))


def renamed(selection, **changes):
    return {"selection": dataclasses.replace(selection, **changes)}


@pytest.mark.parametrize(
    "change",
    [
        lambda s: renamed(s, plan_id="0" * 64),
        lambda s: renamed(s, views=("view_0", "view_1", "ecg")),
        lambda s: renamed(s, columns=(tuple(f"y{j}" for j in range(15)), *s.columns[1:])),
        lambda s: renamed(s, weights=s.weights[:, :2]),
    ],
    ids=["plan", "view", "columns", "clusters"],
)
def test_a_selection_of_another_run_is_not_kept(site, change):
    request = site.ask_until(m.SelectionRequest)
    spoilt = dataclasses.replace(request, **change(request.selection))
    assert "not of this run" in site.refused(spoilt)
    assert site.worker.result(request.run_id) is None
    site.answers(request)


def test_only_a_plan_with_a_key_search_has_one(runs):
    refine = runs("keys").of(m.RefineRequest)
    site = runs("softmax")
    request = site.ask_until(m.SelectionRequest)
    fields = {"run_id": request.run_id, "plan_id": request.plan_id}
    asked = dataclasses.replace(refine, **fields)
    assert "a search that its plan does not have" in site.refused(asked)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: {"wanted": r.wanted + 1},
        lambda r: {"ranking": np.zeros_like(r.ranking)},
        lambda r: {"weights": r.weights[1:]},
    ],
    ids=["more", "no order", "other columns"],
)
def test_another_search_than_the_plans_is_refused(runs, change):
    run = runs("keys")
    request = run.ask_until(m.RefineRequest)
    sentence = run.refused(dataclasses.replace(request, **change(request)))
    assert "a search that its plan does not have" in sentence


# -- what a site refuses to give -------------------------------------------------------------------


def test_a_view_that_few_records_hold_is_not_surveyed():
    nan = np.nan
    worker, ask = small([[1.0, 2.0], [2.0, 2.0], [3.0, 1.0]], [[nan], [nan], [1.0]])
    worker.source.policy = Policy(approval="auto", min_cohort=1, min_contributors=1, min_cell=2)
    reply = ask(m.SurveyRequest, NAMES, SIZES)
    assert isinstance(reply, Refusal)
    assert reply.code == 4
    assert "view_1" in reply.message
    zeros = np.zeros(3)
    assert isinstance(ask(m.ScalingRequest, zeros, zeros, np.zeros(2)), Refusal)


def test_a_refused_view_is_not_scaled_after_a_survey_without_it():
    """Its sums about 0 would be the single record that holds it."""
    nan = np.nan
    worker, ask = small([[1.0, 2.0], [2.0, 2.0], [3.0, 1.0]], [[nan], [nan], [1.0]])
    worker.source.policy = Policy(approval="auto", min_cohort=1, min_contributors=1, min_cell=2)
    assert isinstance(ask(m.SurveyRequest, NAMES[:1], SIZES[:1]), m.SurveyReply)
    assert isinstance(ask(m.SurveyRequest, NAMES, SIZES), Refusal)
    zeros = np.zeros(3)
    assert isinstance(ask(m.ScalingRequest, zeros, zeros, np.zeros(2)), Refusal)
    (total, squares) = ask(m.ScalingRequest, zeros[:2], zeros[:2], np.zeros(1)).sums
    assert total.tolist() == [6, 5]
    assert squares.tolist() == [14, 9]
