"""What sites agree on, and what the server makes of replies that do not fit."""

import dataclasses

import numpy as np
import pytest

from configs.errors import DataRefused, ProtocolError
from configs.profiles import resolve_heat_kernel
from strategies.acceleration import Query
from strategies.agreed_views import agree_on_views, schema_conflicts
from strategies.fedhk_replies import (
    check_finish,
    check_prepare,
    check_seeds,
    check_sums,
    statistics_limits,
    statistics_shapes,
)
from strategies.messages import (
    ChangeCoder,
    CodedStatistics,
    FinishReply,
    HelloReply,
    Moments,
    PrepareReply,
    SeedReply,
    StatisticsReply,
    SufficientStatistics,
    ViewDescription,
)
from strategies.preparation import Preparation
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


def test_the_description_that_most_sites_give_counts_and_a_hash_alone_does_not():
    """A site that lies about its columns under the right hash is refused, not the honest ones."""
    found = schema_conflicts(
        hello(
            a=[view("x", columns=("a",))],
            b=[view("x")],
            c=[view("x")],
            d=[view("x", bounds=np.array([[0.0, 1.0], [0, 0]]), bounded=np.array([True, False]))],
        )
    )
    assert sorted(found) == ["a", "d"]
    assert "only 'b' has column 'b'" in found["a"].public_message
    assert "column 'a'" in found["d"].public_message
    assert list(schema_conflicts(hello(a=[view("x", columns=("a",))], b=[view("x")]))) == ["b"]


def test_a_run_without_any_view_is_refused_in_words():
    with pytest.raises(DataRefused, match="no site of the run holds a view"):
        agree_on_views(hello(a=[], b=[view("x", held=False)]))


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


def range_of(*extremes):
    """Moments of three columns' extremes over 10 records."""
    low, high = np.array(extremes, dtype=float).T
    return Moments(np.full(low.size, 10.0), (low + high) / 2, high - low, low, high)


def prepared(heat_kernel="minmax"):
    """Two views of 10 records; their scaled ranges are [-2, 2] and [-5, 5], and [-1, 1]."""
    return Preparation.pool(
        resolve_heat_kernel(None, 3, heat_kernel=heat_kernel, scaling="none"),
        [10],
        [np.array([10, 10])],
        [np.array([0, 0])],
        [[range_of((0, 4), (5, 15)), range_of((1, 3))]],
    )


def check(reply, n_starts=2, n_clusters=3, n_rows=4):
    check_seeds(reply, VIEWS, prepared(), n_starts, n_clusters, n_rows)


def test_fitting_seeds_pass_also_where_none_were_asked():
    check(seeds())
    check(seeds(counts=np.full((2, 3), 4.0 / 3.0)))
    check(seeds(centers=(np.full((2, 3, 2), -2.0), np.ones((2, 3, 1)))))
    none = seeds(centers=(np.zeros((0, 0, 2)), np.zeros((0, 0, 1))), counts=np.zeros((0, 0)))
    check(none, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": np.ones((1, 3))},
        {"counts": -np.ones((2, 3))},
        {"counts": np.ones(2)},
        {"centers": (np.zeros((2, 3, 2)),)},
        {"centers": (np.zeros((2, 3, 2)), np.zeros((2, 3, 2)))},
        {"spread_sums": (np.ones((3, 2)), np.ones((2, 1)))},
        {"counts": np.full((2, 3), 1.5)},
        {"counts": np.full((2, 3), 1e308)},
        {"centers": (np.full((2, 3, 2), 2.1), np.zeros((2, 3, 1)))},
        {"centers": (np.full((2, 3, 2), 1e200), np.zeros((2, 3, 1)))},
        {"spread_sums": (np.ones((3, 2)), np.full((3, 1), 1e308))},
        {"spread_sums": (np.ones((3, 2)), np.array([[1.0], [-4.1], [1.0]]))},
    ],
)
def test_seeds_that_do_not_fit_are_refused(changes):
    with pytest.raises(ProtocolError):
        check(seeds(**changes))


def test_more_centres_than_asked_are_refused():
    with pytest.raises(ProtocolError, match="proposes 3 centres, asked were 2"):
        check(seeds(), n_clusters=2)


QUERY = Query(
    np.array([0]), (np.zeros((1, 3, 2)), np.zeros((1, 3, 1))), np.full((1, 2), 0.5), np.ones(1)
)


def check_blocks(numerator, mass, dispersion, rows=4, heat_kernel="minmax"):
    """Check sums whose every entry has the value given (one a column in numerator and mass)."""
    preparation = prepared(heat_kernel)
    reply = StatisticsReply(
        RUN,
        1,
        SufficientStatistics(
            tuple(np.full(a.shape, n) for a, n in zip(QUERY.centers, numerator, strict=True)),
            tuple(np.full(a.shape, w) for a, w in zip(QUERY.centers, mass, strict=True)),
            np.full((1, 2), dispersion),
        ),
    )
    shapes = statistics_shapes(QUERY, preparation)
    check_sums("a", reply, shapes, {}, statistics_limits(preparation), {"a": rows})


def test_sums_of_as_many_records_as_the_site_has_pass():
    """Four records, coefficient at most 1 (2 where one of two cells is there), values at most 5."""
    largest = ([[16.0, 40.0], [4.0]], [[8.0, 8.0], [4.0]], 4.0)
    check_blocks(*largest)
    # |x - mean| is at most 2, 5 and 1
    check_blocks([[32.0, 200.0], [4.0]], [[16.0, 40.0], [4.0]], 4.0, heat_kernel="absdev")


@pytest.mark.parametrize(
    ("numerator", "mass", "dispersion"),
    [
        ([[16.1, 40.0], [4.0]], [[8.0, 8.0], [4.0]], 4.0),
        ([[-16.1, 40.0], [4.0]], [[8.0, 8.0], [4.0]], 4.0),
        ([[16.0, 40.0], [1e308]], [[8.0, 8.0], [4.0]], 4.0),
        ([[16.0, 40.0], [4.0]], [[8.0, 8.1], [4.0]], 4.0),
        ([[16.0, 40.0], [4.0]], [[8.0, 8.0], [4.0]], 4.1),
    ],
)
def test_sums_that_no_records_can_give_are_refused(numerator, mass, dispersion):
    with pytest.raises(ProtocolError, match="above what 4 records can give"):
        check_blocks(numerator, mass, dispersion)


@pytest.mark.parametrize(("scale", "fits"), [(1.2, True), (1.3, False), (1e30, False)])
def test_coded_changes_are_bounded_too(scale, fits):
    """Largest change of the second column: 4 * 4 records * 2 * 5 = 160, in 127 steps."""
    preparation = prepared()
    shapes = statistics_shapes(QUERY, preparation)
    scales = np.zeros((1, len(shapes)), dtype=np.float32)
    scales[0, 0] = scale
    codes = tuple(np.ones(shape, dtype=np.int8) for shape in shapes)
    arguments = (shapes, {"a": ChangeCoder("int8")}, statistics_limits(preparation), {"a": 4})
    coded = CodedStatistics(RUN, 1, -1, codes, scales)
    if fits:
        check_sums("a", coded, *arguments)
    else:
        with pytest.raises(ProtocolError, match="above what 4 records can give"):
            check_sums("a", coded, *arguments)


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
