"""Vertical runs that are refused, lose a site, or meet one that answers what it should not."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from configs.errors import ConfigError, DataRefused
from configs.schema import DataSchema
from configs.site import Policy, SiteConfig
from fedmvc_server.simulation import simulate, simulate_folders
from privacy.alignment import make_linkage_key
from strategies import messages as m
from strategies.messages import from_bytes, to_bytes
from tests.federation.harness import accuracy, federate
from tests.federation.tensor_harness import (
    Tape,
    edit_rows,
    folder_workers,
    hospitals,
    lone,
    replacing,
    tables,
    vertical_plan,
    vertical_workers,
    view_file,
)

VIEWS, TRUTH = tables()
QUICK = {"max_rounds": 5}


def refused(result, code, *words):
    """Check that a run was refused before round 1, in one sentence; returns it."""
    assert (result.status, result.exit_code) == ("failed", code), result.stop_reason
    assert result.rounds == 0
    assert result.history == []
    assert result.site_results == {}
    assert result.model is None
    sentence = result.stop_reason
    assert [word for word in words if word not in sentence] == []
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    return sentence


# -- arrays that cannot be the same records --------------------------------------------------


def test_arrays_of_different_lengths_are_3_with_both_numbers():
    views = VIEWS | {"mercy": VIEWS["mercy"][:-1]}
    with pytest.raises(DataRefused, match="'mercy' has 89 rows, site 'anna' has 90"):
        simulate(vertical_plan(3, **QUICK), lone(views))


@pytest.mark.parametrize("sparse", [False, True])
def test_infinite_cells_are_3(sparse):
    views, _ = tables(sparse=sparse)
    table = views["anna"].toarray() if sparse else views["anna"].copy()
    table[1, 2] = table[2, 2] = np.inf
    views["anna"] = csr_matrix(table) if sparse else table
    with pytest.raises(DataRefused, match="'anna' has 2 infinite cells"):
        simulate(vertical_plan(3, **QUICK), lone(views))


def test_one_cluster_is_2():
    with pytest.raises(ConfigError, match="n_clusters is 1"):
        vertical_plan(1)


def test_one_site_is_2():
    result = simulate(vertical_plan(3, **QUICK), lone({"anna": VIEWS["anna"]}))
    refused(result, 2, "needs at least 2 sites and has 1")


def test_more_clusters_than_rows_are_3_with_both_numbers():
    result = simulate(vertical_plan(91, **QUICK), lone(VIEWS))
    refused(result, 3, "n_clusters is 91", "share 90 patients")


@pytest.mark.parametrize("n_views", [0, 2])
@pytest.mark.parametrize("on_missing", ["stop", "continue"])
def test_a_site_with_another_number_of_views_than_one_is_3(n_views, on_missing):
    own = {"anna": [VIEWS["anna"], None, None, None]}
    own["mercy"] = [None, VIEWS["mercy"], None, None]
    own["north"] = [None, None, VIEWS["north"], VIEWS["north"]]
    if n_views == 0:
        own["north"] = [None] * 4
        own["anna"] = [VIEWS["anna"], None, None, None]
        own["mercy"] = [None, VIEWS["mercy"], None, None]
        own["other"] = [None, None, VIEWS["north"], None]
        own["third"] = [None, None, None, VIEWS["north"]]
    plan = vertical_plan(3, quorum={"on_missing": on_missing}, **QUICK)

    result = simulate(plan, {name: {"views": views} for name, views in own.items()})

    if on_missing == "stop":
        refused(result, 3, "'north'", f"{n_views} views", "1 from each site")
    else:
        assert result.status == "completed", result.stop_reason
        assert f"{n_views} views" in result.dropped["north"]
        assert "north" not in result.sites


DEGENERATE = {
    "identical rows": (np.full((90, 2), 0.3), ["all 90 rows", "identical"]),
    "two different rows": (
        np.repeat([[0.0, 1.0], [2.0, 5.0]], 45, axis=0),
        ["2 different rows", "n_clusters is 3"],
    ),
    "no cell": (np.full((90, 2), np.nan), ["0 rows with data of 90"]),
    "two rows with data": (
        np.vstack([np.full((88, 2), np.nan), [[0.0, 1.0], [2.0, 5.0]]]),
        ["2 rows with data", "n_clusters is 3"],
    ),
    "values beyond all range": (VIEWS["mercy"] * 1e200, ["beyond 1e+150", "larger unit"]),
}


@pytest.mark.parametrize("profile", ["plus", "paper"])
@pytest.mark.parametrize("case", DEGENERATE)
def test_a_view_without_structure_is_3_and_named(case, profile):
    view, words = DEGENERATE[case]
    plan = vertical_plan(3, profile=profile, **QUICK)
    result = simulate(plan, lone(VIEWS | {"mercy": view}))
    refused(result, 3, "'mercy'", *words)


@pytest.mark.parametrize("case", DEGENERATE)
def test_continue_goes_on_without_that_view(case):
    view, words = DEGENERATE[case]
    plan = vertical_plan(3, quorum={"on_missing": "continue"}, **QUICK)
    result = simulate(plan, lone(VIEWS | {"mercy": view}))
    assert result.status == "completed", result.stop_reason
    assert list(result.dropped) == ["mercy"]
    assert words[0] in result.dropped["mercy"]
    assert list(result.metrics["views"]) == ["anna", "north"]
    assert sorted(result.site_results) == ["anna", "north"]


def test_a_single_site_left_before_round_1_is_2():
    plan = vertical_plan(3, quorum={"on_missing": "continue"}, **QUICK)
    flat = np.full((90, 2), 0.3)
    result = simulate(plan, lone({"anna": VIEWS["anna"], "mercy": flat}))
    assert (result.status, result.exit_code, result.rounds) == ("failed", 2, 0)
    assert "needs at least 2 sites and has 1" in result.stop_reason


# -- folders ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Write three folders of 120 records, 96 of them shared; no test writes here."""
    out = tmp_path_factory.mktemp("refused") / "sites"
    return hospitals(out, sites=3, n=120, overlap=0.8, prefix="MRN-")


@pytest.fixture
def data(pristine, tmp_path):
    """Copy the folders for one test to spoil."""
    return shutil.copytree(pristine, tmp_path / "sites")


def left_in(data, out):
    """Return the files that a run left: at the server, and at the sites beside their own."""
    own = {"site.toml", "schema.toml", "roster.json", "linkage.key"}
    own |= {"identity.pem", "identity.pub"}
    books = {"audit.jsonl", *(f"register.db{end}" for end in ("", "-shm", "-wal"))}
    at_sites = {
        p.name
        for p in data.rglob("*")
        if p.is_file() and p.suffix != ".csv" and p.parent.name != "plans"
    }
    return {p.name for p in out.iterdir()}, at_sites - own - books


def test_too_small_an_overlap_is_3_and_its_size_goes_nowhere(data, tmp_path):
    """No other test's numbers are 96; the sites get no message after their tokens."""
    tape = Tape()
    plan = vertical_plan(3, min_overlap=97, **QUICK)
    result = federate(
        plan, folder_workers(data), grid_class=tape.grid_class(), out=tmp_path / "run"
    )

    sentence = refused(result, 3, "3 sites", "tensor.min_overlap = 97")
    assert "96" not in sentence
    kinds = {type(from_bytes(body)).__name__ for body in tape.bodies("down")}
    assert kinds == {"HelloRequest", "LinkRequest"}
    written = (tmp_path / "run" / "result.json").read_text()
    document = json.loads(written)
    del document["wall_s"], document["run_id"], document["plan_id"], document["versions"]
    del document["bytes_up"], document["bytes_down"]
    assert "96" not in json.dumps(document)
    assert left_in(data, tmp_path / "run")[0] == {"result.json"}


def test_an_overlap_of_just_min_overlap_runs(data):
    result = federate(vertical_plan(3, min_overlap=96, **QUICK), folder_workers(data))
    assert result.status == "completed", result.stop_reason
    assert result.metrics["rows"] == 96


@pytest.mark.parametrize("on_missing", ["stop", "continue"])
def test_another_id_rule_is_3_and_named(data, on_missing):
    path = data / "riverside" / "schema.toml"
    DataSchema.load(path).model_copy(update={"id_rule": "upper"}).dump(path)
    plan = vertical_plan(3, quorum={"on_missing": on_missing}, **QUICK)

    result = simulate_folders(plan, data)

    if on_missing == "stop":
        refused(result, 3, "'riverside'", "'upper'", "'trim'", "schema.toml")
    else:
        assert result.status == "completed", result.stop_reason
        assert result.sites == ["charite-nord", "st-anna"]
        assert "'upper'" in result.dropped["riverside"]


def no_key(path):
    path.unlink()


def open_key(path):
    path.chmod(0o644)


def damaged_key(path):
    path.write_text(path.read_text()[:-4])


def folder_as_key(path):
    path.unlink()
    path.mkdir()


KEYS = {
    "missing": (no_key, "does not exist: run `fedmvc-client keygen --linkage`"),
    "open": (open_key, "open to other users of this machine (mode 0644): run chmod 600"),
    "damaged": (damaged_key, "is damaged"),
    "a folder": (folder_as_key, "cannot be read"),
}


@pytest.mark.parametrize("case", KEYS)
def test_a_linkage_key_that_cannot_be_used_is_2(data, tmp_path, case):
    spoil, words = KEYS[case]
    spoil(data / "riverside" / "state" / "linkage.key")
    result = simulate_folders(vertical_plan(3, **QUICK), data, out=tmp_path / "run")
    sentence = refused(result, 2, "'riverside'", "'linkage.key'", words)
    assert str(tmp_path) not in sentence
    assert left_in(data, tmp_path / "run") == ({"result.json"}, set())


def test_the_key_of_another_federation_shares_nobody(data):
    path = data / "riverside" / "state" / "linkage.key"
    path.unlink()
    make_linkage_key(path)
    result = simulate_folders(vertical_plan(3, **QUICK), data)
    refused(result, 3, "tensor.min_overlap = 50", "same linkage key")


def test_ids_that_are_equal_by_the_rule_are_3_with_their_number_and_no_id(data, tmp_path):
    def twice(rows):
        again = [[row[0].replace("M", "\uff2d"), *row[1:]] for row in rows[:4]]  # a wide M
        return [*rows, *again]

    edit_rows(view_file(data / "riverside"), twice)
    result = simulate_folders(vertical_plan(3, **QUICK), data, out=tmp_path / "run")
    sentence = refused(result, 3, "'riverside'", "4 of 124 ids repeat", "id_rule 'trim'")
    assert "MRN" not in sentence
    assert left_in(data, tmp_path / "run") == ({"result.json"}, set())


def with_config(folder, **changes):
    fields = SiteConfig.load(folder).model_dump(mode="json")
    SiteConfig.parse({**fields, **changes}).dump(folder)


@pytest.mark.parametrize("on_missing", ["stop", "continue"])
def test_fewer_shared_rows_than_min_cohort_are_4(data, tmp_path, on_missing):
    """The site has 120 records, enough, and shares 96 of them."""
    with_config(
        data / "riverside", policy={"approval": "auto", "share_labels": True, "min_cohort": 97}
    )
    plan = vertical_plan(3, quorum={"on_missing": on_missing}, **QUICK)
    result = simulate_folders(plan, data, out=tmp_path / "run")
    if on_missing == "stop":
        sentence = refused(result, 4, "'riverside'", "policy.min_cohort = 97")
        assert "96" not in sentence
        assert left_in(data, tmp_path / "run") == ({"result.json"}, set())
    else:
        assert result.status == "completed", result.stop_reason
        assert "policy.min_cohort = 97" in result.dropped["riverside"]
        assert list(result.metrics["views"]) == ["charite-nord", "st-anna"]


def test_a_folder_with_two_views_is_3(data):
    folder = data / "riverside"
    schema = (folder / "schema.toml").read_text()
    assert "ecg" in schema
    shutil.copy(view_file(data / "st-anna"), folder / "ecg.csv")
    with_config(folder, data={"laboratory": "laboratory.csv", "ecg": "ecg.csv"})
    refused(simulate_folders(vertical_plan(3, **QUICK), data), 3, "'riverside'", "2 views")


# -- during the rounds -----------------------------------------------------------------------


def leaves_after(number, name):
    def observer(grid, state):
        if state.history[-1].round == number:
            grid.disconnect(name)

    return observer


def test_a_missing_site_ends_the_run_with_6_and_its_name(data, tmp_path):
    result = federate(
        vertical_plan(3, max_rounds=9, tol=0.0),
        folder_workers(data),
        observer=leaves_after(2, "riverside"),
        out=tmp_path / "run",
    )
    assert (result.status, result.exit_code) == ("stopped", 6)
    assert "'riverside'" in result.stop_reason
    assert "quorum.on_missing is 'stop'" in result.stop_reason
    assert result.rounds == 2
    assert result.site_results == {}
    assert result.metrics == {}
    assert left_in(data, tmp_path / "run")[0] == {"result.json", "rounds.csv"}
    assert not list(data.glob("*/results"))


@pytest.mark.parametrize("profile", ["plus", "paper"])
def test_continue_gives_the_result_without_the_missing_sites_view(profile):
    plan = vertical_plan(3, quorum={"on_missing": "continue"}, max_rounds=8, profile=profile)
    result = federate(plan, vertical_workers(VIEWS), observer=leaves_after(2, "mercy"))
    assert (result.status, result.exit_code) == ("completed", 0), result.stop_reason
    assert result.sites == ["anna", "north"]
    assert "unavailable" in result.dropped["mercy"]
    assert "site 'mercy' left in round 3: the result is without its view" in result.warnings
    for key in ("views", "view_weights", "agreement", "agreement_nmi"):
        assert list(result.metrics[key]) == ["anna", "north"]
    assert np.shape(result.metrics["pairwise_agreement"]) == (2, 2)
    assert [len(row["view_weights"]) for row in result.history[:4]] == [3, 3, 2, 2]
    assert list(result.history[3]["site_weights"]) == ["anna", "north"]
    assert sum(result.history[-1]["view_weights"]) == pytest.approx(1.0)
    assert sorted(result.site_results) == ["anna", "north"]
    labels = result.site_results["anna"].labels
    np.testing.assert_array_equal(labels, result.site_results["north"].labels)
    if profile == "plus":
        assert accuracy(TRUTH[labels >= 0], labels[labels >= 0]) > 0.8


def test_min_sites_holds_in_a_vertical_run_too():
    plan = vertical_plan(3, quorum={"on_missing": "continue", "min_sites": 3}, max_rounds=8)
    result = federate(plan, vertical_workers(VIEWS), observer=leaves_after(2, "mercy"))
    assert (result.status, result.exit_code) == ("stopped", 6)
    assert "2 sites are left, quorum.min_sites is 3" in result.stop_reason
    assert "'mercy'" in result.stop_reason


def test_a_lone_site_that_the_plan_lets_go_on_ends_with_its_own_view():
    plan = vertical_plan(3, quorum={"on_missing": "continue"}, max_rounds=8, tol=0.0)
    two = {name: VIEWS[name] for name in ("anna", "mercy")}
    result = federate(plan, vertical_workers(two), observer=leaves_after(2, "mercy"))
    assert result.status == "completed", result.stop_reason
    assert result.metrics["view_weights"] == {"anna": 1.0}
    assert "site 'mercy' left in round 3: the result is without its view" in result.warnings
    assert (result.site_results["anna"].labels >= 0).sum() == 87  # rows of its own view only


def changed(**fields):
    return lambda reply: dataclasses.replace(reply, **fields)


def repacked(n, n_clusters, label):
    packed = m.pack_labels(np.full(n, label), n_clusters)
    return changed(labels=packed)


def with_number(name, text):
    """Write a number into the header that no honest encoder gives."""

    def tamper(reply):
        body = to_bytes(dataclasses.replace(reply, **{name: 0.123456789}))
        length = int.from_bytes(body[:4], "little")
        head = body[4 : 4 + length].replace(b"0.123456789", text)
        return len(head).to_bytes(4, "little") + head + body[4 + length :]

    return tamper


def raising(reply):
    raise RuntimeError("patient 4711 weighs 82.25 kg")


# mercy has 88 of the 90 rows
ROUND_FAILURES = {
    "a label of K": (repacked(88, 4, 3), "a packed label is 3, but 3 clusters"),
    "labels of more rows": (repacked(90, 3, 0), "shape (23,)"),
    "labels of fewer rows": (repacked(80, 3, 0), "shape (20,)"),
    "no label": (changed(labels=np.zeros(0, np.uint8)), "22 bytes"),
    "bits behind the last label": (
        lambda reply: dataclasses.replace(reply, labels=np.append(reply.labels[1:], reply.labels)),
        "22 bytes",
    ),
    "labels of another type": (changed(labels=np.zeros(22)), "labels of a SweepReply"),
    "a trace that is NaN": (with_number("trace", b"NaN"), "NaN, which is not finite"),
    "an infinite trace": (with_number("trace", b"1e999"), "trace holds a number that is not"),
    "a negative trace": (changed(trace=-1.0), "not a number of 0 or more"),
    "an earlier round": (changed(round=2), "another round"),
    "another run": (changed(run_id="0" * 36), "another run"),
    "another kind": (lambda reply: m.OutcomeReply(reply.run_id, 90), "another kind"),
    "a refusal": (lambda reply: m.Refusal(3, "no more data"), "refused: no more data"),
    "no message": (lambda reply: b"nonsense", "not a message"),
    "an exception": (raising, "the ClientApp failed"),
}


@pytest.mark.parametrize("on_missing", ["stop", "continue"])
@pytest.mark.parametrize("case", ROUND_FAILURES)
def test_a_site_that_answers_wrongly_is_dropped_by_name(case, on_missing):
    tamper, words = ROUND_FAILURES[case]
    plan = vertical_plan(3, quorum={"on_missing": on_missing}, max_rounds=6, tol=0.0)
    result = federate(
        plan,
        vertical_workers(VIEWS),
        change={"mercy": replacing(m.SweepRequest, tamper, number=3)},
    )
    assert list(result.dropped) == ["mercy"]
    assert words in result.dropped["mercy"]
    assert "4711" not in result.dropped["mercy"]
    if on_missing == "stop":
        assert (result.status, result.exit_code) == ("stopped", 6)
        assert "'mercy'" in result.stop_reason
        assert "quorum.on_missing is 'stop'" in result.stop_reason
        assert not result.site_results
        return
    assert (result.status, result.exit_code) == ("completed", 0), result.stop_reason
    assert [len(row["sites"]) for row in result.history] == [3, 3, 2, 2, 2, 2]
    assert "site 'mercy' left in round 3: the result is without its view" in result.warnings
    assert sorted(result.site_results) == ["anna", "north"]


@pytest.mark.parametrize("trace", [0.0, 1e300])
def test_a_trace_of_any_size_leaves_numbers_that_are_finite(trace):
    result = federate(
        vertical_plan(3, max_rounds=6),
        vertical_workers(VIEWS),
        change={"mercy": replacing(m.SweepRequest, changed(trace=trace))},
    )
    assert result.status == "completed", result.stop_reason
    weights = list(result.metrics["view_weights"].values())
    assert np.isfinite([*weights, result.metrics["objective"]]).all()
    assert sum(weights) == pytest.approx(1.0)


def fewer_rows(reply):
    """Claim to hold one row less than before, with the labels of all."""
    held = np.unpackbits(reply.held)
    held[np.flatnonzero(held)[:4]] = 0
    return dataclasses.replace(reply, held=np.packbits(held))


START_FAILURES = {
    "another mask than its labels": (fewer_rows, "21 bytes"),
    "a mask of more rows": (
        lambda reply: dataclasses.replace(reply, held=np.append(reply.held, np.uint8(0))),
        "the mask of held rows does not fit",
    ),
    "a label of K": (repacked(88, 4, 3), "a packed label is 3"),
    "a label of K alone": (
        changed(alone=m.pack_labels(np.full(88, 3), 4)),
        "a packed label is 3",
    ),
    "labels alone of more rows": (changed(alone=m.pack_labels(np.zeros(96, int), 3)), "22 bytes"),
    "a trace that is NaN": (with_number("trace", b"NaN"), "NaN, which is not finite"),
    "a negative trace": (changed(trace=-1e-3), "not a number of 0 or more"),
    "another kind": (lambda reply: m.SweepReply(reply.run_id, 0, reply.labels, 1.0), "kind"),
}


@pytest.mark.parametrize("case", START_FAILURES)
def test_a_site_that_starts_wrongly_is_dropped_by_name(case):
    tamper, words = START_FAILURES[case]
    result = federate(
        vertical_plan(3, max_rounds=4),
        vertical_workers(VIEWS),
        change={"mercy": replacing(m.AlignRequest, tamper)},
    )
    assert result.status == "completed", result.stop_reason
    assert list(result.dropped) == ["mercy"]
    assert words in result.dropped["mercy"]
    assert list(result.metrics["views"]) == ["anna", "north"]
    assert result.metrics["rows"] == 90


def turned(reply):
    return dataclasses.replace(reply, tokens=np.ascontiguousarray(reply.tokens[::-1]))


LINK_FAILURES = {
    "tokens that are not sorted": (turned, "not sorted"),
    "a token twice": (
        lambda reply: dataclasses.replace(reply, tokens=reply.tokens[[0, *range(89)]]),
        "a token twice",
    ),
    "shorter tokens": (
        lambda reply: dataclasses.replace(reply, tokens=reply.tokens[:, :8].copy()),
        "expected uint8",
    ),
    "tokens of another type": (
        lambda reply: dataclasses.replace(reply, tokens=reply.tokens.astype(np.int64)),
        "tokens of a LinkReply",
    ),
}


@pytest.mark.parametrize("case", LINK_FAILURES)
def test_a_site_whose_tokens_cannot_be_matched_is_dropped_by_name(case):
    tamper, words = LINK_FAILURES[case]
    result = federate(
        vertical_plan(3, max_rounds=4),
        vertical_workers(VIEWS),
        change={"mercy": replacing(m.LinkRequest, tamper)},
    )
    assert result.status == "completed", result.stop_reason
    assert list(result.dropped) == ["mercy"]
    assert words in result.dropped["mercy"]


def test_a_site_that_keeps_another_number_of_rows_is_dropped_at_the_end():
    result = federate(
        vertical_plan(3, max_rounds=4),
        vertical_workers(VIEWS),
        change={"mercy": replacing(m.OutcomeRequest, changed(n_rows=89))},
    )
    assert result.status == "completed", result.stop_reason
    assert "another number of rows" in result.dropped["mercy"]
    assert list(result.metrics["views"]) == ["anna", "mercy", "north"]  # its labels took part


def test_a_site_whose_policy_refuses_is_4():
    workers = vertical_workers(VIEWS)
    workers["north"].source.policy = Policy(approval="required", share_labels=True)
    refused(federate(vertical_plan(3, **QUICK), workers), 4, "'north'", "approval")
