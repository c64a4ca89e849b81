"""The published result of a selection: who is chosen, as files and back, what is no selection."""

import csv
import dataclasses
import io
import json
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError, ProtocolError
from strategies.feature_selection import FeatureSelection, n_selected
from tests.strategies.samples import feature_scaling, selection


def numbered(ranking, sizes, ratio=0.4):
    """Return a selection of given view sizes whose columns are numbered from 0 in each view."""
    d = len(ranking)
    return FeatureSelection(
        views=tuple(f"v{v}" for v in range(len(sizes))),
        columns=tuple(tuple(f"c{j}" for j in range(size)) for size in sizes),
        ranking=np.array(ranking),
        scores=np.arange(d, dtype=float),
        observed_share=np.ones(d),
        weights=np.arange(2.0 * d).reshape(d, 2) / 7,
        scaling=tuple(feature_scaling(size) for size in sizes),
        frequencies=np.zeros(d),
        documents=np.zeros(len(sizes)),
        ratio=ratio,
        rank="row_norm",
        text=False,
        plan_id="0" * 64,
    )


@st.composite
def selections(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    ranking = draw(st.permutations(range(sum(sizes))))
    return numbered(ranking, sizes, draw(st.floats(1e-6, 1.0)))


# -- who is chosen -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "n_features", "expected"),
    [(0.4, 10, 4), (0.4, 3, 1), (0.5, 3, 2), (0.01, 10, 1), (1.0, 7, 7), (0.3, 1, 1)],
)
def test_a_share_of_the_features_is_at_least_one(ratio, n_features, expected):
    assert n_selected(ratio, n_features) == expected


def test_the_best_are_selected_under_their_names():
    found = selection()
    assert found.sizes == (2, 1)
    assert found.names == [("ecg", "rr"), ("ecg", "qt"), ("blood", "crp")]
    assert found.support().tolist() == [False, True, False]
    assert found.selected() == {"ecg": ("qt",), "blood": ()}


def test_another_ratio_cuts_the_same_order():
    found = selection()
    assert found.support(0.7).tolist() == [False, True, True]
    assert found.selected(0.7) == {"ecg": ("qt",), "blood": ("crp",)}
    assert found.selected(1.0) == {"ecg": ("rr", "qt"), "blood": ("crp",)}
    assert found.ratio == 0.4


def test_columns_stand_in_the_order_of_the_view_not_of_the_ranking():
    assert numbered([3, 1, 2, 0], (4,), 0.75).selected() == {"v0": ("c1", "c2", "c3")}


@settings(max_examples=50, deadline=None)
@given(found=selections(), ratios=st.tuples(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0)))
def test_a_larger_share_keeps_what_a_smaller_one_selects(found, ratios):
    few, many = (found.support(ratio) for ratio in sorted(ratios))
    assert (many | ~few).all()
    assert few.sum() == n_selected(min(ratios), len(few))
    assert few[found.ranking[: few.sum()]].all()
    assert sum(len(columns) for columns in found.selected().values()) == found.support().sum()


def test_rows_are_a_table_best_first():
    first, second, third = selection().rows()
    assert first == {
        "rank": 1,
        "view": "ecg",
        "column": "qt",
        "score": 2.0,
        "observed_share": 0.5,
        "selected": True,
    }
    assert (second["rank"], second["view"], second["column"]) == (2, "blood", "crp")
    assert (third["rank"], third["column"], third["selected"]) == (3, "rr", False)


# -- as files and back -------------------------------------------------------------------------


def unpacked(files):
    """Read ``selection.npz`` and ``selection.json`` as whoever was given them does."""
    with np.load(io.BytesIO(files["selection.npz"]), allow_pickle=False) as kept:
        arrays = {name: kept[name] for name in kept.files}
    return arrays, json.loads(files["selection.json"])


@settings(max_examples=25, deadline=None)
@given(found=selections())
def test_a_selection_comes_back_from_its_files_bit_by_bit(found):
    again = FeatureSelection.from_parts(*unpacked(found.files()))
    assert again.files() == found.files()
    assert again.sizes == found.sizes
    assert again.selected() == found.selected()
    for key, value in found.arrays().items():
        assert again.arrays()[key].dtype == value.dtype
        np.testing.assert_array_equal(again.arrays()[key], value)


def test_every_field_comes_back():
    scaling = (
        dataclasses.replace(feature_scaling(2), center=np.array([0.1, -3.0])),
        dataclasses.replace(feature_scaling(1), spread=np.array([0.25]), dead=np.array([True])),
    )
    found = dataclasses.replace(selection(), scaling=scaling, text=True)
    again = FeatureSelection.from_parts(*unpacked(found.files()))
    for field in dataclasses.fields(FeatureSelection):
        mine, theirs = getattr(again, field.name), getattr(found, field.name)
        if isinstance(theirs, np.ndarray):
            np.testing.assert_array_equal(mine, theirs)
        elif field.name != "scaling":
            assert mine == theirs
    for mine, theirs in zip(again.scaling, scaling, strict=True):
        for key in ("center", "spread", "dead"):
            np.testing.assert_array_equal(getattr(mine, key), getattr(theirs, key))
    assert again.ranking.dtype == np.int64


def test_the_table_and_the_description_say_what_was_selected():
    files = selection().files()
    table = list(csv.DictReader(io.StringIO(files["features.csv"].decode())))
    assert [row["column"] for row in table] == ["qt", "crp", "rr"]
    assert [row["selected"] for row in table] == ["True", "False", "False"]
    assert [float(row["score"]) for row in table] == [2.0, 1.0, 0.0]
    _, description = unpacked(files)
    assert description["selected"] == {"ecg": ["qt"], "blood": []}
    assert description["columns"] == {"ecg": ["rr", "qt"], "blood": ["crp"]}


def test_names_with_commas_and_umlauts_stay_whole():
    found = dataclasses.replace(selection(), columns=(('QRS, "lang"', "Größe"), ("crp",)))
    files = found.files()
    table = list(csv.DictReader(io.StringIO(files["features.csv"].decode())))
    assert [row["column"] for row in table] == ["Größe", "crp", 'QRS, "lang"']
    assert FeatureSelection.from_parts(*unpacked(files)).columns == found.columns


# -- what is no selection ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"views": ("ecg",)},
        {"views": ("ecg", "blood", "x-ray")},
        {"columns": (("rr",), ("crp",))},
        {"columns": (("rr", "qt", "crp"),)},
        {"columns": (("rr",), ("qt", "crp"))},
        {"scores": np.zeros(2)},
        {"scores": np.zeros((3, 1))},
        {"observed_share": np.zeros(4)},
        {"frequencies": np.zeros(2)},
        {"documents": np.zeros(3)},
        {"weights": np.zeros(3)},
        {"weights": np.zeros((2, 2))},
        {"weights": np.zeros((3, 2, 1))},
        {"scaling": (feature_scaling(2),)},
        {"scaling": (feature_scaling(1), feature_scaling(2))},
        {"scaling": (feature_scaling(2), dataclasses.replace(feature_scaling(1), dead=np.ones(0)))},
        {"ratio": 0.0},
        {"ratio": -0.4},
        {"ratio": 1.1},
        {"ratio": float("nan")},
        {"ratio": float("inf")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_parts_that_do_not_fit_are_refused(changes):
    with pytest.raises(ProtocolError, match=r"the parts of a selection of \d features do not fit"):
        dataclasses.replace(selection(), **changes)


@pytest.mark.parametrize(
    "ranking", [[0, 1], [0, 1, 1], [0, 1, 3], [-1, 0, 1], [0, 1, 2, 2], [[0, 1, 2]], []]
)
def test_an_order_of_other_features_is_refused(ranking):
    with pytest.raises(ProtocolError, match="is no order of its 3 features"):
        dataclasses.replace(selection(), ranking=np.array(ranking, dtype=np.int64))


@pytest.mark.parametrize("key", ["ranking", "weights", "center", "documents"])
def test_files_with_an_array_too_few_or_of_other_features_are_refused(key):
    arrays, description = unpacked(selection().files())
    with pytest.raises(KeyError, match=key):
        FeatureSelection.from_parts(
            {name: a for name, a in arrays.items() if name != key}, description
        )
    with pytest.raises((ProtocolError, ValueError)):
        FeatureSelection.from_parts(arrays | {key: arrays[key][1:]}, description)


@pytest.mark.parametrize("key", ["views", "columns", "ratio", "rank", "text", "plan_id"])
def test_a_description_without_a_part_is_refused(key):
    arrays, description = unpacked(selection().files())
    operator.delitem(description, key)
    with pytest.raises(KeyError, match=key):
        FeatureSelection.from_parts(arrays, description)


def test_a_description_of_other_columns_is_refused():
    arrays, description = unpacked(selection().files())
    description["columns"]["ecg"].append("st")
    with pytest.raises(ProtocolError, match="selection of 4 features do not fit"):
        FeatureSelection.from_parts(arrays, description)
    del description["columns"]["ecg"]
    with pytest.raises(KeyError, match="ecg"):
        FeatureSelection.from_parts(arrays, description)


@pytest.mark.parametrize("ratio", [0, 1.5, float("nan"), True])
def test_a_ratio_out_of_range_selects_nothing(ratio):
    with pytest.raises(ConfigError, match="ratio is"):
        numbered([1, 0, 2], (3,)).selected(ratio)
