"""What `simulate` says about arrays it cannot use."""

from types import SimpleNamespace

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.schema import DataSchema
from fedmvc_server.simulation import simulate

PLAN = {"method": "fedhk-mvfc", "profile": "paper", "n_clusters": 2}
VIEW = np.arange(20.0).reshape(10, 2)


@pytest.mark.parametrize(
    ("sites", "sentence"),
    [
        ({}, "0 sites"),
        ({"a": {}}, "site 'a' needs one entry 'views'"),
        ({"a": {"views": [VIEW], "labels": []}}, "site 'a' needs one entry 'views'"),
        ({1: {"views": [VIEW]}}, "site name 1 is none"),
        ({"a b": {"views": [VIEW]}}, "site name 'a b' is none"),
        ({"a": {"views": [VIEW + 1j]}}, "real numbers"),
        ({"a": {"views": [[[1.0], [2.0, 3.0]]]}}, "not a table of real numbers"),
        ({"a": {"views": [np.arange(3.0)]}}, "1 dimensions"),
        ({"a": {"views": [VIEW]}, "b": {"views": [VIEW, VIEW]}}, r"\[1, 2\] views"),
        ({"a": {"views": [VIEW, None]}}, "view 1 is None at all 1 sites"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_in_words(sites, sentence):
    with pytest.raises(ConfigError, match=sentence):
        simulate(PLAN, sites)


def test_a_schema_of_fewer_views_loses_no_view_in_silence():
    schema = DataSchema.from_arrays([VIEW])
    with pytest.raises(ConfigError, match="2 views, the schema has 1"):
        simulate(PLAN, {"a": {"views": [VIEW, VIEW]}}, schema=schema)


def test_an_unknown_backend_is_refused():
    with pytest.raises(ConfigError, match="'cloud' is unknown"):
        simulate(PLAN, {"a": {"views": [VIEW]}}, backend="cloud")


def test_masked_cells_are_missing_and_numpy_numbers_are_numbers():
    rng = np.random.default_rng(0)
    view = rng.normal(size=(40, 2))
    hole = view.copy()
    hole[3, 0] = np.nan
    plan = {**PLAN, "n_clusters": np.int64(2)}
    masked = simulate(plan, {"a": {"views": [np.ma.masked_invalid(hole)]}})
    assert masked.model.sha256() == simulate(PLAN, {"a": {"views": [hole]}}).model.sha256()
    assert masked.model.sha256() != simulate(PLAN, {"a": {"views": [view]}}).model.sha256()


RUN, OTHER = "1234abcd-0000-4000-8000-000000000000", "ffffffff-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("features", "given", "sentence"),
    [
        (
            f"{RUN}@0.4",
            None,
            "features names run 1234abcd but simulate was given no selection: give selection = the "
            "result of that run",
        ),
        (
            f"{RUN}@0.4",
            OTHER,
            "features names run 1234abcd but simulate was given the selection of run ffffffff: "
            "give the result of the run that features names",
        ),
        (
            "",
            OTHER,
            "simulate was given the selection of run ffffffff but the plan's features is '': set "
            f"features = '{OTHER}@0.4' or leave the selection out",
        ),
    ],
)
def test_plan_and_selection_must_speak_of_one_run(features, given, sentence):
    selection = None if given is None else SimpleNamespace(run_id=given, site_results={})
    with pytest.raises(ConfigError) as caught:
        simulate({**PLAN, "features": features}, {"a": {"views": [VIEW]}}, selection=selection)
    assert str(caught.value) == sentence


def test_a_site_that_the_earlier_run_did_not_have_is_refused_by_name():
    selection = SimpleNamespace(run_id=RUN, site_results={})
    plan = {**PLAN, "features": f"{RUN}@0.4"}
    result = simulate(plan, {"a": {"views": [VIEW]}}, selection=selection)
    assert (result.status, result.exit_code) == ("failed", 3)
    assert "site 'a' has no selection of run 1234abcd in its results" in result.stop_reason
