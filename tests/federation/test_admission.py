"""Before round 1: who is refused, with which exit code, in which words."""

import numpy as np
import pytest

from configs.schema import DataSchema
from configs.site import Policy
from fedmvc_server.cardio import gaussian_views
from fedmvc_server.simulation import simulate
from strategies import messages as m
from strategies.messages import from_bytes, to_bytes
from tests.federation.harness import federate, plan_of, split, workers_of

VIEWS, TRUTH = gaussian_views(90, 0, n_clusters=3, dims=(2, 2))
QUICK = {"profile": "paper", "max_rounds": 3, "n_init": 1}


def three_sites():
    return split(VIEWS, TRUTH, "iid", 3)[0]


def quick(on_missing="stop", min_sites=1, **options):
    quorum = {"on_missing": on_missing, "min_sites": min_sites, "timeout_s": 5.0}
    return plan_of(3, quorum=quorum, **{**QUICK, **options})


def with_policy(name, **policy):
    workers = workers_of(three_sites())
    workers[name].source.policy = Policy(**{"approval": "auto", "min_cohort": 1, **policy})
    return workers


def schema(**second_view):
    """Return the three sites' schema, the second view changed."""
    view = {
        "name": "lab",
        "columns": [
            {"name": "crp", "dtype": "float", "unit": "mg/l"},
            {"name": "ldh", "dtype": "float", "bounds": [0, 900]},
        ],
        **second_view,
    }
    ecg = {"name": "ecg", "columns": [{"name": c, "dtype": "float"} for c in ("rr", "qt")]}
    return DataSchema.parse({"id": "id", "views": [ecg, view]})


# -- policy and data -------------------------------------------------------------------------

REFUSALS = [
    ({"approval": "required"}, "approval"),
    ({"require": ["dp"]}, "policy.require"),
    ({"min_cohort": 31}, "policy.min_cohort is 31"),
]


@pytest.mark.parametrize(("policy", "words"), REFUSALS)
def test_a_policy_that_refuses_ends_the_run_with_4_and_the_sites_name(policy, words):
    result = federate(quick(), with_policy("site-01", **policy))
    assert (result.status, result.exit_code) == ("failed", 4)
    assert "'site-01'" in result.stop_reason
    assert words in result.stop_reason
    assert result.rounds == 0
    assert result.model is None
    assert result.site_results == {}


@pytest.mark.parametrize(("policy", "words"), REFUSALS)
def test_continue_goes_on_without_the_site(policy, words):
    result = federate(quick("continue"), with_policy("site-01", **policy))
    assert (result.status, result.exit_code) == ("completed", 0)
    assert result.sites == ["site-00", "site-02"]
    assert words in result.dropped["site-01"]
    assert result.metrics["rows"] == 60
    assert sorted(result.site_results) == ["site-00", "site-02"]


@pytest.mark.parametrize(("policy", "words"), REFUSALS)
def test_continue_below_min_sites_ends_the_run_with_the_refusals_code(policy, words):
    """Architecture, section 6: the refusal's code, unless min_sites remain."""
    result = federate(quick("continue", min_sites=3), with_policy("site-01", **policy))
    assert (result.status, result.exit_code) == ("failed", 4)
    assert "'site-01'" in result.stop_reason
    assert words in result.stop_reason


def refused_by_data():
    sites = three_sites()
    workers = workers_of(sites)
    workers["site-02"].source._views[1] = sites["site-02"]["views"][1][:-1]
    return workers


def test_data_that_do_not_fit_end_the_run_with_3_and_the_sites_name():
    result = federate(quick(), refused_by_data())
    assert (result.status, result.exit_code) == ("failed", 3)
    assert "'site-02'" in result.stop_reason
    assert "29 rows" in result.stop_reason
    assert "30" in result.stop_reason


def test_data_that_do_not_fit_leave_the_others_where_the_plan_says_continue():
    result = federate(quick("continue"), refused_by_data())
    assert (result.status, result.exit_code) == ("completed", 0)
    assert "29 rows" in result.dropped["site-02"]


def test_the_first_refusal_in_name_order_is_the_one_reported():
    workers = with_policy("site-02", approval="required")
    workers["site-01"].source.policy = Policy(approval="auto", require=["dp"])
    reason = federate(quick(), workers).stop_reason
    assert reason.startswith("site 'site-01' ")
    assert reason.endswith("; nor in the run: 'site-02' (the log says why)")


def test_more_clusters_than_rows_is_3():
    result = federate(plan_of(91, **QUICK), workers_of(three_sites()))
    assert (result.status, result.exit_code) == ("failed", 3)
    assert "n_clusters is 91" in result.stop_reason
    assert "90 rows" in result.stop_reason


def test_as_many_clusters_as_rows_runs():
    views = [np.array([[0.0], [5.0], [11.0]])]
    result = federate(plan_of(3, heat_kernel="one"), workers_of({"a": {"views": views}}))
    assert result.status == "completed"
    assert sorted(result.site_results["a"].labels) == [0, 1, 2]


# -- views -----------------------------------------------------------------------------------

ALTERED = {
    "a column more": (
        {"columns": [{"name": "crp", "dtype": "float"}, {"name": "tsh", "dtype": "float"}]},
        "tsh",
    ),
    "another unit": (
        {
            "columns": [
                {"name": "crp", "dtype": "float", "unit": "g/l"},
                {"name": "ldh", "dtype": "float", "bounds": [0, 900]},
            ]
        },
        "crp",
    ),
    "other bounds": (
        {
            "columns": [
                {"name": "crp", "dtype": "float", "unit": "mg/l"},
                {"name": "ldh", "dtype": "float", "bounds": [0, 800]},
            ]
        },
        "ldh",
    ),
}


@pytest.mark.parametrize("altered", ALTERED)
def test_a_schema_that_differs_names_site_view_and_column(altered):
    changes, column = ALTERED[altered]
    schemas = {"site-00": schema(), "site-01": schema(), "site-02": schema(**changes)}
    result = federate(quick(), workers_of(three_sites(), schema=schemas))
    assert (result.status, result.exit_code) == ("failed", 3)
    for words in ("'site-02'", "'site-00'", "'lab'", f"'{column}'"):
        assert words in result.stop_reason
    assert result.bytes_up > 0  # names only: nobody was asked for a moment
    going_on = federate(quick("continue"), workers_of(three_sites(), schema=schemas))
    assert going_on.status == "completed"
    assert going_on.sites == ["site-00", "site-01"]
    assert "'lab'" in going_on.dropped["site-02"]


def test_a_view_that_a_site_does_not_hold_may_differ():
    schemas = {
        "site-00": schema(),
        "site-01": schema(),
        "site-02": schema(**ALTERED["another unit"][0]),
    }
    sites = three_sites()
    sites["site-02"]["views"][1] = None
    result = federate(quick(), workers_of(sites, schema=schemas))
    assert result.status == "completed", result.stop_reason


def test_views_that_nothing_ties_together_are_refused():
    sites = {"a": {"views": [VIEWS[0], None]}, "b": {"views": [None, VIEWS[1]]}}
    result = federate(quick(), workers_of(sites))
    assert (result.status, result.exit_code) == ("failed", 3)
    for words in ("view_0", "view_1", "nothing ties"):
        assert words in result.stop_reason


def test_one_site_with_both_views_ties_the_others_together():
    sites = {
        "a": {"views": [VIEWS[0][:30], None]},
        "b": {"views": [None, VIEWS[1][30:60]]},
        "c": {"views": [VIEWS[0][60:], VIEWS[1][60:]]},
    }
    result = federate(quick(), workers_of(sites))
    assert result.status == "completed"
    assert result.model.holding_share == pytest.approx([2 / 3, 2 / 3])
    assert all(kept.labels.shape == (30,) for kept in result.site_results.values())


# -- who is there ----------------------------------------------------------------------------


def test_too_few_sites_is_6_after_the_wait():
    plan = plan_of(3, quorum={"min_sites": 4, "timeout_s": 0.3}, **QUICK)
    result = federate(plan, workers_of(three_sites()))
    assert (result.status, result.exit_code) == ("failed", 6)
    assert "3 of at least 4 sites" in result.stop_reason
    assert "quorum.min_sites" in result.stop_reason


@pytest.mark.parametrize("kind", [m.HelloRequest, m.PrepareRequest, m.SeedRequest])
@pytest.mark.parametrize("on_missing", ["stop", "continue"])
def test_a_site_that_answers_nonsense_before_round_1_is_named(kind, on_missing):
    def change(worker, body):
        return b"nonsense" if isinstance(from_bytes(body), kind) else worker.handle(body)

    result = federate(quick(on_missing), workers_of(three_sites()), change={"site-01": change})
    said = result.dropped["site-01"] + result.stop_reason
    assert "not a message of this version" in said
    if on_missing == "continue":
        assert result.status == "completed"
        assert result.sites == ["site-00", "site-02"]


def test_a_node_registered_under_another_name_is_refused():
    def change(worker, body):
        reply = from_bytes(worker.handle(body))
        if isinstance(reply, m.HelloReply):
            reply = m.HelloReply(reply.run_id, "site-00", reply.version, reply.views)
        return to_bytes(reply)

    result = federate(quick(), workers_of(three_sites()), change={"site-01": change})
    assert result.exit_code == 8
    assert "registered as 'site-01'" in result.stop_reason
    assert "calls itself 'site-00'" in result.stop_reason
    assert "into its site.toml" in result.stop_reason


# -- data that say little --------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["paper", "robust"])
def test_a_constant_column_is_warned_about_and_has_no_effect(profile):
    constant = [np.column_stack([VIEWS[0], np.full(90, 0.1)]), VIEWS[1]]
    plan = plan_of(3, profile=profile, max_rounds=30)
    with_it = simulate(
        plan,
        {"a": {"views": [v[:40] for v in constant]}, "b": {"views": [v[40:] for v in constant]}},
    )
    without = simulate(
        plan, {"a": {"views": [v[:40] for v in VIEWS]}, "b": {"views": [v[40:] for v in VIEWS]}}
    )
    (warning,) = (w for w in with_it.warnings if "constant" in w)
    assert "'x2'" in warning
    assert "'view_0'" in warning
    assert with_it.model.centers[0][:, 2] == pytest.approx(0.1)
    assert np.array_equal(with_it.site_results["a"].labels, without.site_results["a"].labels)
    if profile == "paper":  # "robust" takes its fuzzifier from the number of columns
        assert with_it.model.view_weights == pytest.approx(without.model.view_weights, abs=1e-9)


def test_a_constant_view_has_weight_zero():
    flat = {
        "a": {"views": [VIEWS[0][:40], np.ones((40, 2))]},
        "b": {"views": [VIEWS[0][40:], np.ones((50, 2))]},
    }
    result = simulate(plan_of(3, profile="paper"), flat)
    assert result.status == "completed"
    assert result.model.view_weights.tolist() == [1.0, 0.0]
    assert sum("constant" in w for w in result.warnings) == 2


@pytest.mark.parametrize("profile", ["paper", "robust"])
@pytest.mark.parametrize("aggregation", ["exact", "weighted", "nmi_softmax"])
def test_identical_rows_end_with_equal_memberships_and_say_so(profile, aggregation):
    same = {
        name: {"views": [np.full((n, 2), 0.1), np.full((n, 1), 7.0)]}
        for name, n in (("a", 20), ("b", 30))
    }
    result = simulate(plan_of(3, profile=profile, aggregation=aggregation), same)
    assert (result.status, result.exit_code) == ("completed", 0)
    assert result.rounds < 15
    for kept in result.site_results.values():
        assert kept.membership == pytest.approx(np.full_like(kept.membership, 1 / 3))
    assert any(w.startswith("no structure") for w in result.warnings)
    assert result.model.view_weights.sum() == pytest.approx(1.0)
    for centers, value in zip(result.model.centers, (0.1, 7.0), strict=True):
        assert centers == pytest.approx(np.full_like(centers, value))


def test_one_row_a_site_runs():
    sites = {f"s{i}": {"views": [VIEWS[0][i : i + 1], VIEWS[1][i : i + 1]]} for i in range(6)}
    result = simulate(plan_of(2, profile="paper"), sites)
    assert result.status == "completed", result.stop_reason


def test_a_record_without_any_view_gets_equal_memberships():
    views = [v.copy() for v in VIEWS]
    for view in views:
        view[5] = np.nan
    result = simulate(plan_of(3, profile="paper"), {"a": {"views": views}})
    assert result.status == "completed"
    assert result.site_results["a"].membership[5] == pytest.approx([1 / 3] * 3)


def test_numbers_whose_squares_overflow_are_refused_with_their_column():
    rng = np.random.default_rng(0)
    huge = rng.normal(size=(60, 2)) * np.array([1.0, 1e200])
    sites = {"a": {"views": [huge]}, "b": {"views": [rng.normal(size=(60, 2))]}}
    result = federate(plan_of(2), workers_of(sites))
    assert result.exit_code == 3
    assert "site 'a': column 2 of view 'view_0'" in result.stop_reason
