"""Key ``features``: the columns that an earlier run selected, written in one way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from configs.feature_choice import FeatureChoice, parse_features
from configs.plan import RunPlan

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def plan(features, method="fedhk-mvfc"):
    fields = {"method": method, "n_clusters": 4, "features": features}
    return RunPlan.parse(fields, source="plan.toml")


def test_a_run_and_a_share_are_read():
    assert plan(f"{UUID}@0.4").feature_choice == FeatureChoice(UUID, 0.4)
    assert plan("12345678@1").feature_choice == FeatureChoice("12345678", 1.0)
    assert plan("").feature_choice is None


@pytest.mark.parametrize("share", ["0.4", "0.40", ".4", "4e-1"])
def test_equal_choices_make_equal_plans(share):
    written = plan(f"{UUID}@{share}")
    assert written.features == f"{UUID}@0.4"
    assert written.plan_id == plan(f"{UUID}@0.4").plan_id
    assert written.plan_id != plan(f"{UUID}@0.5").plan_id
    assert written.plan_id != plan("").plan_id


@given(
    run_id=st.text("0123456789abcdef-", min_size=8, max_size=64),
    ratio=st.floats(0.0, 1.0, exclude_min=True),
)
def test_what_is_written_is_read_again(run_id, ratio):
    choice = FeatureChoice(run_id, ratio)
    assert parse_features(str(choice)) == choice


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        ("1234567@0.4", "features is '1234567@0.4': give '' or 'RUN_ID@RATIO'"),
        ("a" * 65 + "@0.4", "give '' or 'RUN_ID@RATIO'"),
        ("../../etc/x@0.4", "(0-9, a-f and '-') as its result.json has it"),
        (UUID.upper() + "@0.4", "give '' or 'RUN_ID@RATIO'"),
        ("12345678@12345678@0.4", "give '' or 'RUN_ID@RATIO'"),
        (UUID, "give '' or 'RUN_ID@RATIO'"),
        (f"{UUID}@", "features ends in '@': give a share of the features, above 0 and at most 1"),
        (f"{UUID}@0", "features ends in '@0'"),
        (f"{UUID}@-0.1", "features ends in '@-0.1'"),
        (f"{UUID}@1.01", "features ends in '@1.01'"),
        (f"{UUID}@nan", "features ends in '@nan'"),
        (f"{UUID}@all", "features ends in '@all'"),
    ],
)
def test_what_is_no_choice_is_refused_in_one_sentence(features, sentence):
    with pytest.raises(ConfigError) as caught:
        plan(features)
    assert str(caught.value).startswith("plan.toml: features ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("tensor-fmvc", "the sites of a vertical run hold different views"),
        ("fed-mufsht", "a selection of a selection is not made"),
    ],
)
def test_other_methods_say_why_they_cannot(method, reason):
    with pytest.raises(ConfigError) as caught:
        plan(f"{UUID}@0.4", method)
    sentence = str(caught.value)
    assert sentence.startswith(f"plan.toml: features is set but method is '{method}': {reason}")
    assert sentence.endswith('leave it out or use method = "fedhk-mvfc".')
    assert plan("", method).feature_choice is None
