"""What sites agree on, and what the server makes of replies that do not fit."""

import dataclasses

import numpy as np
import pytest

from configs.errors import DataRefused, ProtocolError
from strategies.fedhk_replies import check_finish, check_prepare, check_seeds
from strategies.fedhk_setup import agree_on_views, schema_conflicts
from strategies.messages import (
    FinishReply,
    HelloReply,
    Moments,
    PrepareReply,
    SeedReply,
    ViewDescription,
)
from tests.strategies.samples import RUN


def view(name, held=True, columns=("a", "b"), schema_hash="h", **changes):
    d = len(columns)
    fields = {
        "units": ("",) * d,
        "bounds": np.zeros((d, 2)),
        "bounded": np.zeros(d, dtype=bool),
        **changes,
    }
    return ViewDescription(name, columns, schema_hash=schema_hash, held=held, **fields)


def hello(**sites):
    return {site: HelloReply(RUN, site, "1", tuple(views)) for site, views in sites.items()}


def test_views_stand_in_the_order_of_the_first_schema():
    agreed = agree_on_views(
        hello(a=[view("x", held=False), view("y"), view("z")], b=[view("z"), view("x")])
    )
    assert agreed.names == ("x", "y", "z")
    assert agreed.held["a"].tolist() == [False, True, True]
    assert agreed.held["b"].tolist() == [True, False, True]
    assert agreed.dims == (2, 2, 2)
    assert agreed.n_columns == 6


def test_a_view_that_nobody_holds_is_left_out():
    agreed = agree_on_views(hello(a=[view("x"), view("y", held=False)]))
    assert agreed.names == ("x",)


def test_declared_bounds_win_over_the_pooled_range():
    declared = view("x", bounds=np.array([[0.0, 9.0], [0, 0]]), bounded=np.array([True, False]))
    agreed = agree_on_views(hello(a=[declared]))
    (bounds,) = agreed.bounds((np.array([1.0, 2.0]),), (np.array([3.0, 4.0]),))
    assert bounds.tolist() == [[0.0, 9.0], [2.0, 4.0]]


def test_a_chain_of_sites_ties_views_together():
    chain = hello(a=[view("x"), view("y")], b=[view("y"), view("z")], c=[view("z")])
    assert agree_on_views(chain).names == ("x", "y", "z")
    broken = hello(a=[view("w"), view("x")], b=[view("y"), view("z")], c=[view("z")])
    with pytest.raises(DataRefused, match=r"\[w, x\] and \[y, z\]"):
        agree_on_views(broken)


def test_conflicts_name_the_later_site_and_the_column():
    found = schema_conflicts(
        hello(
            a=[view("x")],
            b=[view("x", columns=("a", "c"), schema_hash="other")],
            c=[view("x")],
            d=[view("x", held=False, schema_hash="unused")],
        )
    )
    assert list(found) == ["b"]
    for words in ("'b'", "'a'", "'x'", "'c'"):
        assert words in found["b"].public_message


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": ()},
        {"units": ("ms",)},
        {"bounds": np.zeros((2, 3))},
        {"bounds": np.zeros(4)},
        {"bounded": np.zeros(3, dtype=bool)},
    ],
)
def test_a_view_that_does_not_fit_itself_is_no_view(changes):
    with pytest.raises(ProtocolError, match="do not fit"):
        view("x", **changes)


# -- replies ---------------------------------------------------------------------------------

VIEWS = agree_on_views(hello(a=[view("x"), view("y", columns=("c",))]))


def moments(d=2, **changes):
    fields = {name: np.ones(d) for name in ("count", "mean", "m2", "minimum", "maximum")}
    return Moments(**{**fields, **changes})


def prepare(**changes):
    fields = {
        "n_rows": 5,
        "holding": np.array([5, 4]),
        "partly_missing": np.array([1, 0]),
        "moments": (moments(), moments(1)),
    }
    return PrepareReply(RUN, **{**fields, **changes})


def test_a_fitting_prepare_reply_passes():
    check_prepare(prepare(), VIEWS)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_rows": 0},
        {"n_rows": 4},
        {"holding": np.array([5])},
        {"holding": np.array([-1, 4])},
        {"partly_missing": np.array([6, 0])},
        {"partly_missing": np.array([-1, 0])},
        {"moments": (moments(),)},
        {"moments": (moments(1), moments(1))},
        {"moments": (moments(m2=np.array([1.0, -1.0])), moments(1))},
        {"moments": (moments(minimum=np.array([2.0, 1.0])), moments(1))},
        {"moments": (moments(count=np.array([6.0, 1.0])), moments(1))},
        {"moments": (moments(count=np.array([-1.0, 1.0])), moments(1))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_prepare_reply_that_contradicts_itself_is_refused(changes):
    with pytest.raises(ProtocolError):
        check_prepare(prepare(**changes), VIEWS)


def seeds(**changes):
    fields = {
        "centers": (np.zeros((2, 3, 2)), np.zeros((2, 3, 1))),
        "counts": np.ones((2, 3)),
        "spread_sums": (np.ones((3, 2)), np.ones((3, 1))),
    }
    return SeedReply(RUN, **{**fields, **changes})


def test_fitting_seeds_pass_also_where_none_were_asked():
    check_seeds(seeds(), VIEWS, 2)
    none = seeds(centers=(np.zeros((0, 0, 2)), np.zeros((0, 0, 1))), counts=np.zeros((0, 0)))
    check_seeds(none, VIEWS, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": np.ones((1, 3))},
        {"counts": -np.ones((2, 3))},
        {"counts": np.ones(2)},
        {"centers": (np.zeros((2, 3, 2)),)},
        {"centers": (np.zeros((2, 3, 2)), np.zeros((2, 3, 2)))},
        {"spread_sums": (np.ones((3, 2)), np.ones((2, 1)))},
    ],
)
def test_seeds_that_do_not_fit_are_refused(changes):
    with pytest.raises(ProtocolError):
        check_seeds(seeds(**changes), VIEWS, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_rows": 6},
        {"dispersion": np.ones(3)},
        {"dispersion": -np.ones(2)},
        {"mean_membership": np.ones(2)},
        {"mean_membership": np.array([2.0, -0.5, -0.5])},
    ],
)
def test_final_statistics_that_do_not_fit_are_refused(changes):
    reply = FinishReply(RUN, 5, np.ones(2), np.full(3, 1 / 3), 1.0)
    check_finish("a", reply, 3, 2, {"a": 5})
    with pytest.raises(ProtocolError):
        check_finish("a", dataclasses.replace(reply, **changes), 3, 2, {"a": 5})
