"""The site half of a selection behind masks or noise: what leaves, and what is refused."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from configs.errors import ConfigError, DataRefused, ProtocolError
from configs.plan import RunPlan
from configs.schema import DataSchema
from fedmvc_client.participants.mufsht_sums import MUFSHTSums
from fedmvc_client.worker import array_worker
from fedmvc_server.array_sites import bounded_schema
from strategies import messages as m
from strategies.feature_rounds import FeatureSurvey, initial_weights
from tests.federation.mufsht_harness import SIZES, hospitals
from tests.strategies.samples import PLAN, RUN

SITES, _ = hospitals(n=60)
NAMES = tuple(sorted(SITES))
DIMS = tuple(d for d, _ in SIZES)
MASKED = {"secure_aggregation": True, "participants": list(NAMES), "max_rows": 1000}
#: The sites' NMI decide, and none can have more than half of the weight.
WEIGHED = {"weighting": "softmax", "agg_temp": 1.5}
NOISY = {"mechanism": "gaussian", "epsilon": 4.0, "clip": 0.5}


def plan(privacy=MASKED, n_clusters=3, **mufsht):
    return RunPlan.parse(
        {
            "method": "fed-mufsht",
            "n_clusters": n_clusters,
            "max_rounds": 2,
            "mufsht": {"local_sweeps": 1, **mufsht},
            "privacy": privacy,
        }
    )


SCHEMA = bounded_schema(
    DataSchema.from_arrays(SITES["site-00"]["views"]), {n: s["views"] for n, s in SITES.items()}
)
BOUNDS = [
    np.array([f.bounds for f in SCHEMA.features(name)]).reshape(-1, 2) for name in SCHEMA.view_names
]


class Site:
    """One site's sums, and the requests that the server of a run would send it."""

    def __init__(self, name="site-00", run_plan=None, views=None, schema=SCHEMA):
        self.plan = run_plan or plan()
        source = array_worker(name, views or SITES[name]["views"], schema).source
        self.sums = MUFSHTSums(self.plan, RUN, source, source.load())
        self.units = m.FeatureUnits(self.plan, BOUNDS)
        self.survey = m.SurveyRequest(RUN, PLAN, SCHEMA.view_names, np.array(DIMS))
        self.start = initial_weights(sum(DIMS), self.plan.n_clusters, 0)

    def surveyed(self):
        found = self.units.unpack_survey(self.sums.sums(self.survey))
        return FeatureSurvey.of(found, DIMS, text=False)

    def scaled(self):
        """Scale by this site's own moments; return the first fit's request."""
        survey = self.surveyed()
        parts = survey.origin, survey.frequencies, survey.documents
        self.scale = m.ScalingRequest(RUN, PLAN, *parts, m.history_of(self.survey))
        second = self.units.unpack_scaling(self.sums.sums(self.scale), survey.count)
        weight = 1 / 3 if self.plan.mufsht.weighting == "uniform" else 0.0
        history = m.history_of(self.scale)
        return m.FitRequest(RUN, PLAN, 1, self.start, survey.scaling(*second), weight, history)

    def asked(self):
        """Answer the first fit in the clear; return a function that makes the table after it."""
        request = self.scaled()
        self.sums.ask(request)
        return partial(table, history=m.history_of(request))

    def declared(self):
        """Adopt what precedes the rounds of a noisy run; return the first fit's request."""
        middles = np.concatenate(BOUNDS).mean(axis=1)
        zeros = np.zeros(sum(DIMS))
        self.sums.adopt(self.survey)
        self.sums.adopt(m.ScalingRequest(RUN, PLAN, middles, zeros, np.zeros(len(DIMS))))
        scaling = tuple(m.declared_feature_scaling(b) for b in BOUNDS)
        return m.FitRequest(RUN, PLAN, 1, self.start, scaling, 1.0)


def table(*weights, names=NAMES, round_=1, history=""):
    return m.ShareTableRequest(RUN, PLAN, round_, tuple(names), np.array(weights), history)


# -- masked ----------------------------------------------------------------------------------------


def test_a_site_takes_its_own_weight_from_the_table():
    site = Site("site-01", plan(**WEIGHED))
    following = site.asked()
    fit = site.sums._inner._fit
    weighted, mass, alpha, _, (objective,) = site.units.unpack_share(
        site.sums.sums(following(0.25, 0.45, 0.3))
    )
    np.testing.assert_allclose(weighted, 0.45 * fit.weights, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(mass, 0.45)
    assert alpha.sum() == pytest.approx(0.45)
    assert objective == pytest.approx(fit.objective)


@pytest.mark.parametrize(
    ("weights", "names"),
    [
        ((0.3, 0.4, 0.3), ("site-00", "site-01", "x")),
        ((0.3, 0.4, 0.3), NAMES[::-1]),
        ((0.5, 0.5), NAMES[:2]),
        ((0.3, 0.4, 0.4), NAMES),
        ((1.2, -0.1, -0.1), NAMES),
        ((1.0, 0.0, 0.0), NAMES),
        # NMI of 1 and 0 give weights as e^(1/T) to 1: 0.4934 is the most of three at T = 1.5
        ((0.5, 0.25, 0.25), NAMES),
        ((0.494, 0.253, 0.253), NAMES),
    ],
)
def test_a_table_that_no_quality_can_give_is_refused(weights, names):
    site = Site(run_plan=plan(**WEIGHED))
    following = site.asked()
    with pytest.raises(ProtocolError, match="a table of weights that no NMI can give"):
        site.sums.sums(following(*weights, names=names))
    assert site.sums.sums(following(0.492, 0.254, 0.254)).size == sum(site.units.share_sizes)


def test_a_plan_whose_weights_may_leave_one_site_alone_is_none():
    with pytest.raises(ConfigError, match="give one of them all of the weight"):
        plan(weighting="linear")


def test_a_table_follows_the_question_that_the_site_was_asked():
    site = Site(run_plan=plan(**WEIGHED))
    request = site.scaled()
    other = dataclasses.replace(request, scaling=request.scaling[::-1])
    site.sums.ask(request)
    for history in ("", "0" * 64, m.history_of(site.scale), m.history_of(other)):
        with pytest.raises(ProtocolError, match="sent other requests before than the server says"):
            site.sums.sums(table(0.4, 0.3, 0.3, history=history))
    assert site.sums.sums(table(0.4, 0.3, 0.3, history=m.history_of(request))).any()


def test_what_a_site_was_sent_besides_follows_into_every_later_sum():
    """An origin, a round or a search that only this site was sent fits no honest request."""
    site = Site()
    request = site.scaled()
    moved = dataclasses.replace(site.scale, origin=site.scale.origin * 0.999)
    site.sums.adopt(moved)
    with pytest.raises(ProtocolError, match="sent other requests before"):
        site.sums.sums(request)
    site.sums.adopt(site.scale)
    first = dataclasses.replace(request, weight=0.3)
    assert site.sums.sums(first).any()
    second = dataclasses.replace(request, round=2, scaling=())
    for history in (request.history, m.history_of(request)):
        with pytest.raises(ProtocolError, match="sent other requests before"):
            site.sums.sums(dataclasses.replace(second, history=history))
    assert site.sums.sums(dataclasses.replace(second, history=m.history_of(first))).any()


def test_a_survey_that_differs_fits_no_scaling_of_the_others():
    site = Site()
    site.scaled()
    turned = dataclasses.replace(
        site.survey, views=site.survey.views[::-1], n_columns=site.survey.n_columns[::-1]
    )
    site.sums.adopt(turned)
    with pytest.raises(ProtocolError, match="sent other requests before"):
        site.sums.sums(site.scale)


def test_votes_follow_the_last_round():
    site = Site(run_plan=plan(search="keys"))
    request = site.scaled()
    site.sums.sums(request)
    votes = m.RefineRequest(RUN, PLAN, site.start, np.arange(40), 16)
    with pytest.raises(ProtocolError, match="sent other requests before"):
        site.sums.sums(votes)
    votes = dataclasses.replace(votes, history=m.history_of(request))
    assert site.sums.sums(votes).sum() == 16


def test_no_round_is_left_out_behind_masks():
    site = Site()
    request = dataclasses.replace(site.scaled(), round=2)
    with pytest.raises(ProtocolError, match="round 2 after round 0: with masks and no noise none"):
        site.sums.sums(request)


@pytest.mark.parametrize("kind", ["masked", "weighed", "noisy"])
def test_round_1_starts_where_the_seed_says(kind):
    options = WEIGHED if kind == "weighed" else {}
    site = Site(run_plan=plan(NOISY if kind == "noisy" else MASKED, **options))
    request = site.declared() if kind == "noisy" else site.scaled()
    answer = site.sums.ask if kind == "weighed" else site.sums.sums
    changed = site.start.copy()
    changed[3, 1] *= 1.0 + 1e-6
    for weights in (changed, np.zeros_like(changed), initial_weights(40, 3, 1)):
        with pytest.raises(ProtocolError, match="does not follow from the plan's seed"):
            answer(dataclasses.replace(request, weights=weights))
    answer(request)


def test_a_plan_decides_whether_the_quality_is_asked_or_the_weights_are_summed_at_once():
    weighed, uniform = Site(run_plan=plan(**WEIGHED)), Site()
    with pytest.raises(ProtocolError, match="a FitRequest cannot be summed under this plan"):
        weighed.sums.sums(weighed.scaled())
    request = uniform.scaled()
    with pytest.raises(ProtocolError, match="no answer in the clear to a FitRequest"):
        uniform.sums.ask(request)
    with pytest.raises(ProtocolError, match="a ShareTableRequest cannot be summed"):
        uniform.sums.sums(table(0.2, 0.5, 0.3))
    # nothing of what was refused has moved the site on
    assert uniform.sums.sums(request).any()
    assert 0.0 <= weighed.sums.ask(weighed.scaled()).quality <= 1.0


def test_nothing_but_the_quality_is_told_in_the_clear():
    site = Site(run_plan=plan(**WEIGHED))
    site.scaled()
    for request in (
        site.survey,
        site.scale,
        m.ShareRequest(RUN, PLAN, 1, 1.0),
        table(0.4, 0.4, 0.2),
        m.RefineRequest(RUN, PLAN, np.zeros((40, 3)), np.arange(40), 16),
        m.PrepareRequest(RUN, PLAN, ("view_0",), np.array([15])),
    ):
        with pytest.raises(ProtocolError, match="no answer in the clear"):
            site.sums.ask(request)


def test_a_weight_is_given_for_a_fit_that_waits_and_once():
    site = Site(run_plan=plan(**WEIGHED))
    request = site.scaled()
    with pytest.raises(ProtocolError, match="no round waits for one"):
        site.sums.sums(table(0.4, 0.3, 0.3, history=request.history))
    site.sums.ask(request)
    following = partial(table, history=m.history_of(request))
    with pytest.raises(ProtocolError, match="round 2 but round 1 waits"):
        site.sums.sums(following(0.4, 0.3, 0.3, round_=2))
    site.sums.sums(following(0.4, 0.3, 0.3))
    with pytest.raises(ProtocolError, match="no round waits for one"):
        site.sums.sums(following(0.3, 0.4, 0.3))


def test_broadcast_weights_are_none_that_sites_cannot_have():
    site = Site(run_plan=plan(**WEIGHED))
    request = site.scaled()
    far = dataclasses.replace(request, weights=request.weights * 1e6)
    with pytest.raises(ProtocolError, match="weights that no mean of sites' weights has"):
        site.sums.ask(far)
    short = dataclasses.replace(request, weights=request.weights[1:])
    with pytest.raises(ProtocolError, match="40 columns and 3 clusters"):
        site.sums.ask(short)


def test_an_origin_outside_the_bounds_is_refused_where_the_site_observes():
    views = [view.copy() for view in SITES["site-00"]["views"]]
    views[0][:, 0] = np.nan
    site = Site(views=views)
    site.scaled()
    for column, refused in ((0, False), (1, True)):
        origin = site.scale.origin.copy()
        origin[column] = np.concatenate(BOUNDS)[column, 1] + 1.0
        request = dataclasses.replace(site.scale, origin=origin)
        if refused:
            with pytest.raises(ProtocolError, match="an origin outside the declared bounds"):
                site.sums.sums(request)
        else:
            site.sums.sums(request)


def test_weights_above_the_masks_room_stay_with_one_sentence():
    """A scaling that no survey gives makes cells, and so weights, enormous."""
    site = Site(run_plan=plan(weighting="uniform"))
    request = site.scaled()
    tiny = tuple(dataclasses.replace(s, spread=s.spread * 1e-9) for s in request.scaling)
    with pytest.raises(DataRefused) as caught:
        site.sums.sums(dataclasses.replace(request, scaling=tiny))
    assert str(caught.value) == (
        "site 'site-00' has weights W that are longer than masks made for 1000 records a site "
        "(privacy.max_rows) have room for: raise max_rows or leave the run"
    )


def test_values_are_cut_to_the_bounds_that_were_declared():
    views = [view.copy() for view in SITES["site-00"]["views"]]
    high = BOUNDS[1][4, 1]
    views[1][:, 4] = high
    exact = Site(views=views).surveyed()
    views[1][:, 4] = high + 100.0
    cut = Site(views=views).surveyed()
    np.testing.assert_array_equal(cut.first, exact.first)


def test_a_view_that_the_site_lacks_counts_nothing():
    views = [*SITES["site-00"]["views"][:2], None]
    site = Site(views=views, run_plan=plan(weighting="uniform"))
    survey = site.surveyed()
    assert survey.holding.tolist() == [20.0, 20.0, 0.0]
    request = site.scaled()
    weighted, mass, *_ = site.units.unpack_share(site.sums.sums(request))
    assert not weighted[27:].any()
    np.testing.assert_allclose(mass[:27], 1 / 3, rtol=1e-12)
    assert not mass[27:].any()


def test_a_column_without_bounds_is_refused_unless_it_is_text():
    unbounded = DataSchema.from_arrays(SITES["site-00"]["views"])
    with pytest.raises(ConfigError, match="column 'x0' of view 'view_0' has no bounds"):
        Site(schema=unbounded)
    counts = [np.abs(np.rint(view)) for view in SITES["site-00"]["views"]]
    site = Site(run_plan=plan(text=True), views=counts, schema=unbounded)
    found = site.units.unpack_survey(site.sums.sums(site.survey))
    np.testing.assert_array_equal(found[4], np.concatenate([(v > 0).sum(axis=0) for v in counts]))


# -- noisy -----------------------------------------------------------------------------------------


def test_with_noise_a_site_gives_its_clipped_weights_and_nothing_else():
    site = Site(run_plan=plan(NOISY))
    request = site.declared()
    update = site.sums.sums(request)
    weights = site.sums._inner._fit.weights
    assert np.linalg.norm(weights) > 0.5
    assert np.linalg.norm(update) == pytest.approx(0.5, rel=1e-12)
    np.testing.assert_allclose(update, 0.5 * weights.ravel() / np.linalg.norm(weights), rtol=1e-12)
    assert update.size == site.sums.noise.blocks.size == 40 * 3
    for other in (site.survey, table(0.2, 0.5, 0.3), m.ShareRequest(RUN, PLAN, 1, 1.0)):
        with pytest.raises(ProtocolError, match="with noise nothing but rounds is summed"):
            site.sums.sums(other)
    with pytest.raises(ProtocolError, match="no answer in the clear"):
        site.sums.ask(dataclasses.replace(request, round=2))


def test_short_weights_are_sent_as_they_are():
    site = Site(run_plan=plan({**NOISY, "clip": 1e3}))
    update = site.sums.sums(site.declared())
    np.testing.assert_array_equal(update, site.sums._inner._fit.weights.ravel())


@pytest.mark.parametrize("part", ["center", "spread", "dead"])
def test_a_scaling_that_is_not_the_declared_one_to_the_bit_is_refused(part):
    site = Site(run_plan=plan(NOISY))
    request = site.declared()
    first, *rest = request.scaling
    value = getattr(first, part).copy()
    value[3] = ~value[3] if part == "dead" else np.nextafter(value[3], np.inf)
    changed = (dataclasses.replace(first, **{part: value}), *rest)
    with pytest.raises(ProtocolError, match="follows from the declared bounds alone"):
        site.sums.sums(dataclasses.replace(request, scaling=changed))
    with pytest.raises(ProtocolError, match="follows from the declared bounds alone"):
        site.sums.sums(dataclasses.replace(request, scaling=()))
    site.sums.sums(request)


def test_a_site_that_missed_the_first_round_finds_the_scaling_in_the_second():
    late, there = Site(run_plan=plan(NOISY)), Site(run_plan=plan(NOISY))
    second = dataclasses.replace(late.declared(), round=2)
    there.sums.sums(there.declared())
    assert late.sums.sums(second).shape == there.sums.sums(second).shape
