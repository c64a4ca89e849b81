"""Schemas: what a column may say, and when two sites mean the same view."""

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.schema import DataSchema, Feature

ECG = {
    "name": "ecg",
    "columns": [
        {"name": "rr", "dtype": "float", "unit": "ms", "bounds": [300, 2000]},
        {"name": "sex", "dtype": "category", "levels": ["m", "f"]},
        {"name": "smoker", "dtype": "bool"},
        {"name": "age", "dtype": "int"},
    ],
}
LAB = {"name": "lab", "columns": [{"name": "crp", "dtype": "float"}]}


def schema(*views):
    return DataSchema.parse({"id": "patient_id", "views": list(views)}, source="schema.toml")


def changed(**change):
    first = {**ECG["columns"][0], **change}
    return {**ECG, "columns": [first, *ECG["columns"][1:]]}


def test_categories_and_bools_become_indicators():
    assert schema(ECG).features("ecg") == (
        Feature("rr", "ms", (300.0, 2000.0)),
        Feature("sex=m", "", (0.0, 1.0)),
        Feature("sex=f", "", (0.0, 1.0)),
        Feature("smoker", "", (0.0, 1.0)),
        Feature("age", "", None),
    )


def test_file_round_trip(tmp_path):
    schema(ECG, LAB).dump(tmp_path / "schema.toml")
    assert DataSchema.load(tmp_path / "schema.toml") == schema(ECG, LAB)


def test_the_rule_for_ids_is_trim_and_is_kept_in_the_file(tmp_path):
    upper = DataSchema.parse({"id": "patient_id", "id_rule": "upper", "views": [LAB]})
    upper.dump(tmp_path / "schema.toml")
    assert DataSchema.load(tmp_path / "schema.toml").id_rule == "upper"
    assert schema(LAB).id_rule == "trim"


def test_an_unknown_rule_for_ids_is_refused():
    with pytest.raises(ConfigError, match="id_rule is 'lower'; allowed: 'exact', 'trim', 'upper'"):
        DataSchema.parse({"id": "patient_id", "id_rule": "lower", "views": [LAB]})


def test_inline_tables_read_like_arrays_of_tables(tmp_path):
    file = tmp_path / "schema.toml"
    file.write_text(
        'id = "patient_id"\n[[views]]\nname = "lab"\ncolumns = [{name = "crp", dtype = "float"}]\n'
    )
    assert DataSchema.load(file) == schema(LAB)


def test_hash_is_of_one_view_only():
    assert schema(ECG).schema_hash("ecg") == schema(LAB, ECG).schema_hash("ecg")
    assert schema(ECG, LAB).schema_hash("ecg") != schema(ECG, LAB).schema_hash("lab")


def test_hash_is_the_same_in_every_version_and_under_every_rule_for_ids():
    upper = DataSchema.parse({"id": "patient_id", "id_rule": "upper", "views": [LAB]})
    for made in (schema(LAB), upper):
        assert made.schema_hash("lab") == (
            "6df47a9cd14e4b91930fafd619a0b4a7a219af3aca3f95c9a29cc72678ca66a7"
        )


@pytest.mark.parametrize(
    "other",
    [
        changed(unit="s"),
        changed(bounds=[300, 2001]),
        changed(name="r-r"),
        changed(dtype="int"),
        {**ECG, "columns": ECG["columns"][::-1]},
    ],
)
def test_hash_notices(other):
    assert schema(other).schema_hash("ecg") != schema(ECG).schema_hash("ecg")


def test_hash_does_not_depend_on_how_a_bound_is_written():
    assert schema(changed(bounds=[300.0, 2e3])).schema_hash("ecg") == schema(ECG).schema_hash("ecg")


def test_from_arrays_reads_no_value():
    made = DataSchema.from_arrays([np.zeros((3, 2)), np.full((3, 1), np.nan)])
    assert made.view_names == ("view_0", "view_1")
    assert made.features("view_0") == (Feature("x0", "", None), Feature("x1", "", None))
    assert made == DataSchema.from_arrays([np.ones((7, 2)), np.ones((7, 1))])


def test_unknown_view_is_named():
    with pytest.raises(ConfigError, match=r"has no view 'mri'; its views: ecg, lab\."):
        schema(ECG, LAB).features("mri")


@pytest.mark.parametrize(
    ("views", "sentence"),
    [
        ([ECG, ECG], "the schema lists view 'ecg' twice"),
        ([], "schema.toml: views is []; allowed: a list of at least one view."),
        ([{"name": "a", "columns": []}], "views[0].columns is []; allowed: a list of at least one"),
        ([changed(name="age")], "view 'ecg' lists column 'age' twice"),
        ([changed(name="sex=m")], "view 'ecg' would hold feature 'sex=m' twice"),
        ([changed(name="patient_id")], "view 'ecg' lists the id column 'patient_id' as data"),
        ([changed(dtype="flot")], "views[0].columns[0].dtype is 'flot'; allowed: 'float', 'int'"),
        (
            [changed(bound=[1, 2])],
            "unknown key 'views[0].columns[0].bound': did you mean 'bounds'?",
        ),
        ([changed(bounds=[2, 1])], "column 'rr' has bounds [2.0, 1.0]: give the smaller"),
        ([changed(bounds=[1, 1])], "column 'rr' has bounds [1.0, 1.0]: give the smaller"),
        ([changed(bounds=["a", 1])], "allowed: two numbers [least, greatest]."),
        ([changed(dtype="bool")], "column 'rr' is of dtype 'bool', which has no bounds"),
        ([changed(dtype="category", bounds=None)], "'category' but has no levels: list them"),
        ([changed(levels=["a"])], "column 'rr' is of dtype 'float' but has levels"),
        (
            [changed(dtype="category", bounds=None, levels=["a", "a"])],
            "column 'rr' lists level 'a' twice",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(views, sentence):
    with pytest.raises(ConfigError) as caught:
        schema(*views)
    assert sentence in str(caught.value)
