"""What `simulate` says about arrays it cannot use."""

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
        ({"a": {}}, "site 'a' has no entry 'views'"),
        ({"a": {"views": [[[1.0], [2.0, 3.0]]]}}, "not a table of numbers"),
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
