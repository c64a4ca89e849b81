"""A site's files: what is read, what is counted, and how each fault is told."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from configs.errors import DataRefused
from configs.schema import DataSchema
from configs.site import SiteConfig
from fedmvc_client.data import load_site

SCHEMA = DataSchema.parse(
    {
        "id": "patient_id",
        "views": [
            {
                "name": "ecg",
                "columns": [
                    {"name": "rr", "dtype": "float", "bounds": [300, 2000]},
                    {"name": "qt", "dtype": "float"},
                ],
            },
            {
                "name": "person",
                "columns": [
                    {"name": "age", "dtype": "int", "bounds": [0, 120]},
                    {"name": "smoker", "dtype": "bool"},
                    {"name": "sex", "dtype": "category", "levels": ["m", "f"]},
                ],
            },
        ],
    }
)
ECG = "patient_id,rr,qt\n007,800,1.5\n01,900,2.5\n"
PERSON = "patient_id,age,smoker,sex\n01,40,true,f\n007,50,no,m\n"


def load(folder, *, files=None, **config):
    """Write files (name -> text or bytes) and read them as the site st-anna."""
    files = {"ecg.csv": ECG} if files is None else files
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    views = {name.split(".")[0]: name for name in files}
    site = SiteConfig.parse({"name": "st-anna", "data": views, **config})
    return load_site(folder, SCHEMA, site)


def load_parquet(folder, columns, name="ecg"):
    folder.mkdir(exist_ok=True)
    parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
    site = SiteConfig.parse({"name": "st-anna", "data": {name: f"{name}.parquet"}})
    return load_site(folder, SCHEMA, site)


def test_views_are_joined_on_the_id_and_sorted_by_it(tmp_path):
    data = load(tmp_path, files={"ecg.csv": ECG, "person.csv": PERSON})
    assert data.ids == ("007", "01")
    assert list(data.views) == ["ecg", "person"]
    np.testing.assert_array_equal(data.views["ecg"], [[800, 1.5], [900, 2.5]])
    np.testing.assert_array_equal(data.views["person"], [[50, 0, 1, 0], [40, 1, 0, 1]])
    assert all(view.dtype == np.float64 for view in data.views.values())
    assert data.schema is SCHEMA


def test_ids_are_text(tmp_path):
    data = load(tmp_path, files={"ecg.csv": "patient_id,rr,qt\n1,1,1\n01,1,1\n1.0,1,1\nNA,1,1\n"})
    assert data.ids == ("01", "1", "1.0", "NA")


def test_a_site_may_hold_a_subset_of_the_views(tmp_path):
    assert list(load(tmp_path, files={"person.csv": PERSON}).views) == ["person"]


def test_a_record_may_lack_a_view(tmp_path):
    person = "patient_id,age,smoker,sex\n01,40,1,f\n99,30,0,f\n"
    data = load(tmp_path, files={"ecg.csv": ECG, "person.csv": person})
    assert data.ids == ("007", "01", "99")
    assert np.isnan(data.views["ecg"][2]).all()
    assert np.isnan(data.views["person"][0]).all()
    assert data.report.rows == 3
    assert data.report.lacking_view == {"ecg": 1, "person": 1}
    assert data.report.missing["ecg"] == {"rr": 0, "qt": 0}


def test_missing_and_non_finite_cells_are_counted(tmp_path):
    ecg = "patient_id,rr,qt\na,NA,inf\nb,,-Infinity\nc,?,nan\nd,NULL,1\ne,500,2\n"
    person = "patient_id,age,smoker,sex\na,NA,,f\nb,3,NA,?\nc,4,true,m\nd,5,F,m\ne,6,T,m\n"
    data = load(tmp_path, files={"ecg.csv": ecg, "person.csv": person})
    assert data.report.missing == {
        "ecg": {"rr": 4, "qt": 3},
        "person": {"age": 1, "smoker": 2, "sex": 1},
    }
    np.testing.assert_array_equal(data.views["ecg"][3:], [[np.nan, 1], [500, 2]])
    np.testing.assert_array_equal(data.views["person"][1], [3, np.nan, np.nan, np.nan])


def test_cells_outside_the_bounds_are_counted_and_kept(tmp_path):
    data = load(
        tmp_path, files={"ecg.csv": "patient_id,rr,qt\na,299,1\nb,2001,1\nc,2000,1\nd,NA,1\n"}
    )
    assert data.report.outside_bounds == {"ecg": {"rr": 2}}
    assert data.views["ecg"][0, 0] == 299


@pytest.mark.parametrize(
    "text",
    [
        "patient_id,rr,qt\r\n007,800,1.5\r\n01,900,2.5\r\n",
        "patient_id,rr,qt\n007, 800 ,1.5\n\n01,900,2.5\n\n",
        '"patient_id","rr","qt"\n"007","800","1.5"\n" 01 ",900,2.5',
        "\ufeffpatient_id,rr,qt\n007,8e2,1.5\n01,+900,2.5\n",
    ],
)
def test_ways_to_write_the_same_file(tmp_path, text):
    data = load(tmp_path, files={"ecg.csv": text})
    assert data.ids == ("007", "01")
    np.testing.assert_array_equal(data.views["ecg"], [[800, 1.5], [900, 2.5]])


def test_missing_tokens_may_have_spaces_around_them(tmp_path):
    data = load(tmp_path, files={"ecg.csv": "patient_id,rr,qt\na, NA ,1\nb,2, ?\n"})
    np.testing.assert_array_equal(data.views["ecg"], [[np.nan, 1], [2, np.nan]])


def test_dialect(tmp_path):
    text = "patient_id;rr;qt\nä;800,25;-\nb;900;1,5\n".encode("latin-1")
    dialect = {"delimiter": ";", "decimal": ",", "encoding": "latin-1", "missing": ["-"]}
    data = load(tmp_path, files={"ecg.csv": text}, dialect=dialect)
    assert data.ids == ("b", "ä")
    np.testing.assert_array_equal(data.views["ecg"], [[900, 1.5], [800.25, np.nan]])


def test_a_point_is_no_decimal_where_the_comma_is(tmp_path):
    text = "patient_id;rr;qt\na;1.234;1\n"
    with pytest.raises(
        DataRefused, match=r"column 'rr' of dtype 'float' holds no number at line 2"
    ):
        load(tmp_path, files={"ecg.csv": text}, dialect={"delimiter": ";", "decimal": ","})


def test_parquet_equals_csv(tmp_path):
    csv = load(tmp_path, files={"person.csv": PERSON}).views["person"]
    columns = {
        "sex": pa.array(["f", "m"]).dictionary_encode(),
        "smoker": [True, False],
        "age": pa.array([40, 50], pa.int16()),
        "patient_id": pa.array(["01", "007"]).dictionary_encode(),
    }
    data = load_parquet(tmp_path, columns, "person")
    assert data.ids == ("007", "01")
    np.testing.assert_array_equal(data.views["person"], csv)


def test_parquet_nulls_and_types(tmp_path):
    columns = {
        "patient_id": ["a", "b"],
        "rr": pa.array([None, None]),
        "qt": pa.array([1.5, None], pa.float32()),
    }
    data = load_parquet(tmp_path, columns)
    np.testing.assert_array_equal(data.views["ecg"], [[np.nan, 1.5], [np.nan, np.nan]])
    assert data.report.missing == {"ecg": {"rr": 2, "qt": 1}}


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"patient_id": [1, 2], "rr": [1.0, 2.0], "qt": [1.0, 2.0]},
            "id column 'patient_id' is of type int64: ids are text, so store them as text.",
        ),
        (
            {"patient_id": ["a", "b"], "rr": [True, False], "qt": [1.0, 2.0]},
            "column 'rr' is of type bool but the schema says 'float': convert it.",
        ),
        (
            {"patient_id": ["a", "b"], "rr": ["1", "x"], "qt": [1.0, 2.0]},
            "column 'rr' of dtype 'float' holds no number at row 2",
        ),
        ({"patient_id": ["a", "b"], "rr": [1.0, 2.0]}, "column 'qt' is missing"),
    ],
)
def test_parquet_faults(tmp_path, columns, sentence):
    with pytest.raises(DataRefused) as caught:
        load_parquet(tmp_path, columns)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("patient_id,rr\na,1\n", "column 'qt' is missing: add it to the file, or repair"),
        ("patient_id,rr,q\na,1,2\n", "column 'qt' is missing: add it to the file, or repair"),
        ("id,rr,qt\na,1,2\n", "id column 'patient_id' is missing: add it to the file"),
        (
            "patient_id;rr;qt\na;1;2\n",
            "the header is one single column, so check dialect.delimiter",
        ),
        ("patient_id,rr,qt,name\na,1,2,x\n", "column 'name' is not in the schema: remove it"),
        ("patient_id,rr,qt,rr\na,1,2,3\n", "column 'rr' stands 2 times: keep one."),
        ("", "its file is empty: it needs a header line and at least one row."),
        ("\n\n", "its file is empty: it needs a header line and at least one row."),
        ("patient_id,rr,qt\n", "its file has columns but no row: give it at least one record."),
        ("patient_id,rr,qt\na,1,2\nb,3\n", "line 3 has 2 cells but the header has 3: repair"),
        (
            "patient_id,rr,qt\n\na,1,2\n\nb,1,2,3\n",
            "line 5 has 4 cells but the header has 3: repair",
        ),
        (
            "patient_id,rr,qt\na,1,2\nb,77x,2\n",
            "column 'rr' of dtype 'float' holds no number at line 3",
        ),
        (
            "patient_id,rr,qt\n\na,1,2\n\nb,1,77x\n",
            "column 'qt' of dtype 'float' holds no number at line 5",
        ),
        ("patient_id,rr,qt\na,1,2\n ,3,4\n", "line 3 has no id in column 'patient_id'"),
        ("patient_id,rr,qt\na,1,2\nb,1,2\na,3,4\n", "line 4 repeats the id of line 2"),
        (
            b"patient_id,rr,qt\n\xff,1,2\n",
            "its file is not utf-8 text (byte 17): set dialect.encoding",
        ),
    ],
)
def test_csv_faults(tmp_path, text, sentence):
    with pytest.raises(DataRefused) as caught:
        load(tmp_path, files={"ecg.csv": text})
    message = str(caught.value)
    assert message.startswith("site 'st-anna', view 'ecg': ")
    assert sentence in message
    assert "\n" not in message
    assert "77x" not in message
    assert str(tmp_path) not in message
    assert "ecg.csv" in caught.value.local_detail


def test_a_closest_name_is_told_at_the_site_only(tmp_path):
    with pytest.raises(DataRefused) as caught:
        load(tmp_path, files={"ecg.csv": "patient_id,rr,qt2\na,1,2\n"})
    assert "qt2" not in str(caught.value)
    assert caught.value.local_detail.endswith("the file's closest column is 'qt2'")


@pytest.mark.parametrize("row", ["7788,7788,1.5", "7788,901.5,1.5"])
def test_a_file_without_a_header_does_not_leak_its_first_record(tmp_path, row):
    with pytest.raises(DataRefused, match="id column 'patient_id' is missing") as caught:
        load(tmp_path, files={"ecg.csv": f"{row}\n01,900,2.5\n"})
    assert "7788" not in str(caught.value)
    assert "901" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("a,4.5,1,m", "column 'age' of dtype 'int' holds no whole number at line 2"),
        ("a,4,maybe,m", "column 'smoker' of dtype 'bool' holds neither true nor false at line 2"),
        ("a,4,1,x", "column 'sex' of dtype 'category' holds no level of the schema at line 2"),
    ],
)
def test_cells_that_do_not_fit_their_dtype(tmp_path, row, sentence):
    with pytest.raises(DataRefused) as caught:
        load(tmp_path, files={"person.csv": f"patient_id,age,smoker,sex\n{row}\n"})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"ecg.xlsx": "x"}, "view 'ecg': its file ends in '.xlsx'; known endings: .csv"),
        ({"ecg.parquet": ""}, "view 'ecg': its file is empty"),
        (
            {"ecg.parquet": "PAR1 but no more"},
            "view 'ecg': its file is not a readable Parquet file",
        ),
        (
            {"mri.csv": ECG},
            "[data] names view 'mri', which the schema does not have; its views: ecg",
        ),
    ],
)
def test_files_that_are_no_view(tmp_path, files, sentence):
    with pytest.raises(DataRefused) as caught:
        load(tmp_path, files=files)
    assert sentence in str(caught.value)


def test_an_absent_file_is_named_by_its_view(tmp_path):
    site = SiteConfig.parse({"name": "st-anna", "data": {"ecg": "ecg.csv"}})
    with pytest.raises(DataRefused, match=r"view 'ecg': its file does not exist: check \[data\]"):
        load_site(tmp_path, SCHEMA, site)


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "ecg.csv").mkdir()
    site = SiteConfig.parse({"name": "st-anna", "data": {"ecg": "ecg.csv"}})
    with pytest.raises(DataRefused, match=r"view 'ecg': its file cannot be read"):
        load_site(tmp_path, SCHEMA, site)


CELL = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


@settings(max_examples=40, deadline=None)
@given(
    rows=st.dictionaries(
        st.text("0123456789abc-", min_size=1, max_size=5),
        st.tuples(CELL, CELL),
        min_size=1,
        max_size=12,
    ),
    shuffle=st.randoms(use_true_random=False),
)
def test_shuffled_columns_and_rows_give_bit_identical_arrays(tmp_path_factory, rows, shuffle):
    def written(order, names):
        lines = [",".join(names)]
        for key in order:
            cells = {"patient_id": key, "rr": rows[key][0], "qt": rows[key][1]}
            lines.append(",".join("NA" if cells[n] is None else str(cells[n]) for n in names))
        return "\n".join(lines)

    folder = tmp_path_factory.mktemp("site")
    plain = load(folder, files={"ecg.csv": written(list(rows), ["patient_id", "rr", "qt"])})
    keys, names = list(rows), ["patient_id", "rr", "qt"]
    random.Random.shuffle(shuffle, keys)
    random.Random.shuffle(shuffle, names)
    shuffled = load(folder, files={"ecg.csv": written(keys, names)})
    assert plain.ids == shuffled.ids == tuple(sorted(rows))
    assert plain.views["ecg"].tobytes() == shuffled.views["ecg"].tobytes()
    expected = [[np.nan if cell is None else cell for cell in rows[key]] for key in sorted(rows)]
    np.testing.assert_array_equal(plain.views["ecg"], np.array(expected))
    assert plain.report == shuffled.report


def test_reading_as_text_gives_the_same_bits_as_reading_as_numbers(tmp_path):
    """One padded token sends the whole file down the slow path: its numbers must not change."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((200, 2)) * 10.0 ** rng.integers(-300, 300, (200, 2))
    rows = [f"{i:03d},{a!r},{b!r}" for i, (a, b) in enumerate(values.tolist())]
    text = "\n".join(["patient_id,rr,qt", *rows, "999,{},1"])
    fast = load(tmp_path, files={"ecg.csv": text.format("NA")}).views["ecg"]
    slow = load(tmp_path, files={"ecg.csv": text.format(" NA")}).views["ecg"]
    assert fast.tobytes() == slow.tobytes()
    np.testing.assert_array_equal(fast[:200], values)
