"""Every reply of a selection that the server refuses, and the edges that it takes."""

import numpy as np
import pytest

from configs.errors import ProtocolError
from strategies.agreed_views import AgreedViews
from strategies.messages import (
    FitReply,
    RefineReply,
    ScalingReply,
    ShareReply,
    SurveyReply,
    ViewDescription,
)
from strategies.mufsht_replies import (
    check_quality,
    check_refined,
    check_scaling,
    check_share,
    check_survey,
)
from tests.strategies.samples import RUN


def described(name, columns):
    d = len(columns)
    return ViewDescription(
        name, columns, ("",) * d, np.zeros((d, 2)), np.zeros(d, dtype=bool), "h", True
    )


#: Two views, of two columns and of one.
VIEWS = AgreedViews(
    ("ecg", "blood"),
    (described("ecg", ("rr", "qt")), described("blood", ("crp",))),
    {"a": np.array([True, True])},
)


def changed(kind, fields, changes, *ids):
    """Make a reply of named sums with some of them changed; `kind` has ``sums`` last."""
    values = {**fields, **changes}
    return kind(RUN, *ids, tuple(np.array(v, dtype=float) for v in values.values()))


# -- survey --------------------------------------------------------------------------------------

COUNTS = {
    "rows": [10],
    "holding": [8, 10],
    "count": [8, 0, 10],
    "exposed": [10, 0, 10],
    "first": [3, 0, 10],
    "fractional": [0, 0],
}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, False),
        ({}, True),
        ({"first": [-3.5, 0, 1e9]}, False),
        ({"fractional": [1, 0]}, True),
        (
            {"holding": [0, 10], "count": [0, 0, 1], "exposed": [0, 0, 10], "first": [0, 0, 1]},
            True,
        ),
    ],
    ids=["numbers", "text", "sums of any size", "weights of words", "a view that it lacks"],
)
def test_counts_that_records_can_have_are_taken(changes, text):
    check_survey(changed(SurveyReply, COUNTS, changes), VIEWS, text=text)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rows": [0], "holding": [0, 0], "count": [0, 0, 0], "exposed": [0, 0, 0]}, False),
        ({"rows": [10.5]}, False),
        ({"holding": [8, 11]}, False),
        ({"holding": [-1, 10]}, False),
        ({"holding": [8.5, 10]}, False),
        ({"count": [9, 0, 10]}, False),
        ({"count": [8, -1, 10]}, False),
        ({"count": [7.5, 0, 10]}, False),
        ({"exposed": [10, 10, 10]}, False),
        ({"exposed": [10, 0, 0]}, False),
        ({"exposed": [8, 0, 10]}, False),
        ({"fractional": [0.5, 0]}, True),
        ({"fractional": [0, 2]}, True),
        ({"fractional": [1, 0]}, False),
        ({"first": [9, 0, 10]}, True),
        ({"first": [-1, 0, 10]}, True),
        ({"first": [2.5, 0, 10]}, True),
    ],
)
def test_counts_that_no_records_have_are_refused(changes, text):
    with pytest.raises(ProtocolError, match="counts of its records do not fit each other"):
        check_survey(changed(SurveyReply, COUNTS, changes), VIEWS, text=text)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_other_columns_are_refused(name):
    longer = changed(SurveyReply, COUNTS, {name: [*COUNTS[name], 0]})
    with pytest.raises(ProtocolError, match="the counts do not have the shapes"):
        check_survey(longer, VIEWS, text=False)
    rest = {key: value for key, value in COUNTS.items() if key != name}
    with pytest.raises(ProtocolError, match="the counts do not have the shapes"):
        check_survey(changed(SurveyReply, rest, {}), VIEWS, text=False)


# -- scaling -------------------------------------------------------------------------------------


def test_second_sums():
    sums = {"total": [1, -2, 0], "squares": [4, 4, 0]}
    check_scaling(changed(ScalingReply, sums, {}), VIEWS)
    with pytest.raises(ProtocolError, match="a sum of squares is below 0"):
        check_scaling(changed(ScalingReply, sums, {"squares": [4, -1e-9, 0]}), VIEWS)
    for name in sums:
        with pytest.raises(ProtocolError, match="the second sums do not have the shapes"):
            check_scaling(changed(ScalingReply, sums, {name: [1, 2]}), VIEWS)


# -- rounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("quality", [0.0, 0.5, 1.0])
def test_a_quality_is_an_nmi(quality):
    check_quality(FitReply(RUN, 1, quality))


@pytest.mark.parametrize("quality", [-1e-9, 1.0 + 1e-9, 2.0, float("nan")])
def test_a_quality_that_is_no_nmi_is_refused(quality):
    with pytest.raises(ProtocolError, match="NMI is not between 0 and 1"):
        check_quality(FitReply(RUN, 1, quality))


SHARES = {
    "weights": [[0.1, 0.2], [0.0, 0.0], [-3.0, 0.5]],
    "mass": [0.25, 0.0, 0.25],
    "alpha": [0.1, 0.15],
    "norms": [0.3, 3.1],
    "objective": [-12.0],
}


def shared(**changes):
    return changed(ShareReply, SHARES, changes, 1)


def test_weighted_sums_that_fit_the_weight_are_taken():
    check_share(shared(), VIEWS, 2, 0.25)
    check_share(shared(alpha=[0.0, 0.25 + 1e-12]), VIEWS, 2, 0.25)
    nothing = {name: np.zeros_like(np.array(value)) for name, value in SHARES.items()}
    check_share(shared(**nothing), VIEWS, 2, 0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"mass": [0.5, 0.0, 0.25]},
        {"mass": [0.2, 0.0, 0.25]},
        {"mass": [-0.25, 0.0, 0.25]},
        {"alpha": [0.5, 0.5]},
        {"alpha": [-0.1, 0.35]},
        {"norms": [-0.3, 3.1]},
        {"weights": [[0.1, 0.2], [1.0, 0.0], [-3.0, 0.5]]},
    ],
    ids=[
        "more weight than it has",
        "less",
        "negative",
        "alpha of weight 1",
        "negative alpha",
        "negative norm",
        "weights of a feature that it lacks",
    ],
)
def test_weighted_sums_that_do_not_fit_the_weight_are_refused(changes):
    with pytest.raises(ProtocolError, match="do not fit the site's weight"):
        check_share(shared(**changes), VIEWS, 2, 0.25)


@pytest.mark.parametrize("name", SHARES)
def test_weighted_sums_of_other_shapes_are_refused(name):
    longer = np.concatenate([SHARES[name], SHARES[name]])
    with pytest.raises(ProtocolError, match="the weighted sums do not have the shapes"):
        check_share(shared(**{name: longer}), VIEWS, 2, 0.25)
    with pytest.raises(ProtocolError, match="the weighted sums do not have the shapes"):
        check_share(shared(), VIEWS, 3, 0.25)


# -- choices -------------------------------------------------------------------------------------


def test_a_choice_has_as_many_features_as_were_asked_for():
    check_refined(RefineReply(RUN, (np.array([1.0, 0.0, 1.0]),)), VIEWS, 2)


@pytest.mark.parametrize(
    "chosen", [[1, 1, 1], [1, 0, 0], [0, 0, 0], [2, 0, 0], [0.5, 0.5, 1], [-1, 1, 2]]
)
def test_a_choice_of_another_number_is_refused(chosen):
    with pytest.raises(ProtocolError, match="the choice is not one of 2 features"):
        check_refined(RefineReply(RUN, (np.array(chosen, dtype=float),)), VIEWS, 2)


@pytest.mark.parametrize("sums", [(), (np.ones(2),), (np.ones(3), np.ones(3))])
def test_a_choice_of_other_columns_is_refused(sums):
    with pytest.raises(ProtocolError, match="the choices do not have the shapes"):
        check_refined(RefineReply(RUN, sums), VIEWS, 2)
