"""Which columns a site brings to a run on what an earlier run selected."""

import json

import numpy as np
import pytest

from configs.errors import DataRefused
from configs.plan import RunPlan
from configs.schema import DataSchema
from fedmvc_client.feature_choice import describe_chosen, load_chosen
from fedmvc_client.outcomes import SelectionResult, VerticalResult
from fedmvc_client.sources import ArraySource, FolderSource
from fedmvc_client.worker import folder_worker
from fedmvc_server.synthesize import synthesize_cardio
from strategies import messages as m

RUN = "1234abcd-0000-4000-8000-000000000000"
SCHEMA = DataSchema.parse(
    {
        "id": "id",
        "views": [
            {
                "name": "blood",
                "columns": [
                    {"name": "na", "dtype": "float", "unit": "mmol/l", "bounds": [100, 180]},
                    {"name": "k", "dtype": "float", "unit": "mmol/l"},
                    {"name": "crp", "dtype": "float", "unit": "mg/l", "bounds": [0, 500]},
                ],
            },
            {"name": "ecg", "columns": [{"name": "rr", "dtype": "float"}]},
        ],
    }
)
BLOOD, ECG = np.arange(12.0).reshape(4, 3), np.arange(4.0).reshape(4, 1)


def plan(ratio=None, run_id=RUN):
    features = "" if ratio is None else f"{run_id}@{ratio}"
    return RunPlan.parse({"method": "fedhk-mvfc", "n_clusters": 2, "features": features})


def selection(columns, ranking):
    """Return a selection whose features are numbered over ``columns`` = {view: names}."""
    sizes = [len(names) for names in columns.values()]
    d = sum(sizes)
    return m.FeatureSelection(
        views=tuple(columns),
        columns=tuple(map(tuple, columns.values())),
        ranking=np.array(ranking),
        scores=np.linspace(1.0, 0.1, d),
        observed_share=np.ones(d),
        weights=np.ones((d, 2)),
        scaling=tuple(
            m.FeatureScaling(np.zeros(s), np.ones(s), np.zeros(s, dtype=bool)) for s in sizes
        ),
        frequencies=np.zeros(d),
        documents=np.zeros(len(sizes)),
        ratio=0.5,
        rank="gated_pivot",
        text=False,
        plan_id="a" * 64,
    )


#: crp, rr, na, k: best first; its columns stand in another order than the site's schema has.
SELECTION = selection({"ecg": ["rr"], "blood": ["crp", "na", "k"]}, [1, 0, 2, 3])


def left(found):
    return SelectionResult(("0", "1", "2", "3"), np.zeros(4, dtype=np.int64), found, 2)


def source(found=SELECTION, views=(BLOOD, ECG)):
    earlier = {} if found is None else {RUN: left(found)}
    return ArraySource("st-anna", views, SCHEMA, earlier=earlier)


def test_a_plan_without_features_changes_nothing():
    found = describe_chosen(source(None), plan())
    assert [v.columns for v in found] == [("na", "k", "crp"), ("rr",)]
    assert load_chosen(source(None), plan()).views["blood"].shape == (4, 3)


def test_chosen_columns_stand_in_the_order_of_the_schema_and_keep_unit_and_bounds():
    blood, ecg = describe_chosen(source(), plan(0.75))

    assert (blood.name, blood.columns, blood.units) == ("blood", ("na", "crp"), ("mmol/l", "mg/l"))
    assert blood.bounds.tolist() == [[100.0, 180.0], [0.0, 500.0]]
    assert blood.bounded.tolist() == [True, True]
    assert blood.schema_hash == SCHEMA.schema_hash("blood")  # of the whole view
    assert (ecg.columns, ecg.held) == (("rr",), True)


@pytest.mark.parametrize(
    ("ratio", "columns"),
    [
        (0.25, {"blood": [2]}),
        (0.5, {"blood": [2], "ecg": [0]}),
        (0.75, {"blood": [0, 2], "ecg": [0]}),
        (1.0, {"blood": [0, 1, 2], "ecg": [0]}),
        (1e-9, {"blood": [2]}),
    ],
)
def test_records_keep_the_chosen_columns_and_every_row(ratio, columns):
    records = load_chosen(source(), plan(ratio))

    assert records.ids == ("0", "1", "2", "3")
    whole = {"blood": BLOOD, "ecg": ECG}
    assert list(records.views) == list(columns)
    for name, places in columns.items():
        assert np.array_equal(records.views[name], whole[name][:, places])
    described = {v.name: len(v.columns) for v in describe_chosen(source(), plan(ratio))}
    assert described == {name: len(places) for name, places in columns.items()}


def test_a_view_that_the_site_lacks_is_described_and_not_held():
    lacking = source(views=(BLOOD, None))
    assert [(v.name, v.held) for v in describe_chosen(lacking, plan(0.5))] == [
        ("blood", True),
        ("ecg", False),
    ]
    assert list(load_chosen(lacking, plan(0.5)).views) == ["blood"]


def test_a_site_need_not_know_every_view_that_was_selected_from():
    found = selection({"blood": ["na", "k", "crp"], "mri": ["volume"]}, [3, 2, 1, 0])
    assert [v.columns for v in describe_chosen(source(found), plan(0.5))] == [("crp",)]


@pytest.mark.parametrize(
    ("found", "views", "ratio", "sentence"),
    [
        (
            None,
            (BLOOD, ECG),
            0.5,
            "site 'st-anna' has no selection of run 1234abcd in its results: take part in that run "
            "first",
        ),
        (
            selection({"blood": ["na", "lactate", "ph"], "ecg": ["rr"]}, [0, 1, 2, 3]),
            (BLOOD, ECG),
            0.75,
            "site 'st-anna': view 'blood' lacks 2 of the 3 columns that run 1234abcd selected, for "
            "instance 'lactate': use the schema.toml of that run, or select again",
        ),
        (
            SELECTION,
            (None, ECG),
            0.25,
            "site 'st-anna' holds 0 of the 1 columns that run 1234abcd selected at 0.25: name a "
            "larger share in features or leave the run",
        ),
        (
            selection({"mri": ["volume", "mass"]}, [0, 1]),
            (BLOOD, ECG),
            1.0,
            "site 'st-anna' holds 0 of the 2 columns that run 1234abcd selected at 1: name a "
            "larger share in features or leave the run",
        ),
    ],
)
def test_what_a_site_cannot_bring_is_refused_in_one_sentence(found, views, ratio, sentence):
    for use in (describe_chosen, load_chosen):
        with pytest.raises(DataRefused) as caught:
            use(source(found, views), plan(ratio))
        assert str(caught.value) == sentence


def test_an_earlier_run_without_a_selection_is_none():
    labels = np.zeros(4, dtype=np.int64)
    other = VerticalResult(("0", "1", "2", "3"), labels, labels, labels, 2)
    clustering = ArraySource("a", (BLOOD, ECG), SCHEMA, earlier={RUN: other})
    assert clustering.selection(RUN) is None
    assert clustering.selection("ffffffff") is None
    assert source().selection(RUN) is SELECTION


# -- a site's folder -------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Return a site that kept a selection: ecg_y, imaging_x, imaging_y, ecg_x."""
    synthesize_cardio(tmp_path / "sites", n=120, sites=2, partition="iid")
    site = tmp_path / "sites" / "st-anna"
    kept = selection(
        {"ecg": ["ecg_x", "ecg_y"], "imaging": ["imaging_x", "imaging_y"]}, [1, 2, 3, 0]
    )
    results = site / "results" / RUN
    results.mkdir(parents=True)
    np.savez(results / "selection.npz", **kept.arrays())
    (results / "selection.json").write_text(json.dumps(kept.description()))
    return site


def ask(worker, request):
    return m.from_bytes(worker.handle(m.to_bytes(request)))


def hello(plan, run_id="f" * 12):
    return m.HelloRequest(run_id, plan.plan_id, plan.canonical())


def test_a_folder_reads_what_the_run_left(folder):
    found = FolderSource(folder).selection(RUN)
    assert found.selected(0.5) == {"ecg": ("ecg_y",), "imaging": ("imaging_x",)}
    assert FolderSource(folder).selection("f" * 12) is None


def test_the_worker_describes_and_measures_the_chosen_columns_only(folder):
    worker, chosen = folder_worker(folder), plan(0.5)

    views = ask(worker, hello(chosen)).views
    request = m.PrepareRequest(
        "f" * 12, chosen.plan_id, ("ecg", "imaging"), np.array([1, 1], dtype=np.int64)
    )
    reply = ask(worker, request)

    assert [v.columns for v in views] == [("ecg_y",), ("imaging_x",)]
    whole = FolderSource(folder).load().views
    assert [moments.mean.tolist() for moments in reply.moments] == [
        pytest.approx([whole["ecg"][:, 1].mean()]),
        pytest.approx([whole["imaging"][:, 0].mean()]),
    ]


def test_a_server_that_asks_for_all_columns_is_refused(folder):
    worker, chosen = folder_worker(folder), plan(0.5)
    ask(worker, hello(chosen))
    request = m.PrepareRequest(
        "f" * 12, chosen.plan_id, ("ecg", "imaging"), np.array([2, 2], dtype=np.int64)
    )
    assert isinstance(ask(worker, request), m.Refusal)


def test_the_worker_refuses_a_run_that_it_took_no_part_in(folder):
    reply = ask(folder_worker(folder), hello(plan(0.4, "0" * 8)))
    assert (reply.code, reply.message) == (
        3,
        "site 'st-anna' has no selection of run 00000000 in its results: take part in that run "
        "first",
    )


@pytest.mark.parametrize("name", ["selection.json", "selection.npz"])
def test_a_damaged_selection_is_named_and_no_path(folder, name):
    (folder / "results" / RUN / name).write_bytes(b"PK\x03\x04 half of it")
    with pytest.raises(DataRefused) as caught:
        FolderSource(folder).selection(RUN)
    assert "cannot read its selection of run" in str(caught.value)
    assert "restore selection.json and selection.npz" in str(caught.value)
    assert str(folder) not in str(caught.value)
