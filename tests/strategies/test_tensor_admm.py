"""The server's half of TensorFMVC beside full tensors; sites that lack rows, and sites that go."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from configs.errors import ProtocolError, QuorumLost
from configs.tensor_profiles import MU_MAX, resolve_tensor
from strategies.tensor_admm import (
    TensorDriver,
    TensorResult,
    doubts,
    view_weights,
    vote_shares,
)
from strategies.tensor_blending import DenseTensor, StreamedTensor, Threshold
from strategies.tensor_svd import shrink

N, K = 40, 3
SITES = ("a", "b", "c")
TRACES = {"a": 4.0, "b": 5.0, "c": 9.0}


def labels_of(seed, sites=SITES, noise=0.3, missing=0.0, n_rows=N, n_clusters=K):
    """Labels that agree in part; which rows are missing does not depend on the seed."""
    rng = np.random.default_rng(seed)
    base = np.random.default_rng(99).integers(0, n_clusters, n_rows)
    found = {}
    for m, site in enumerate(sites):
        own = np.where(rng.random(n_rows) < noise, rng.integers(0, n_clusters, n_rows), base)
        lacks = np.random.default_rng([7, m]).random(n_rows) < missing
        found[site] = np.where(lacks, -1, own)
    return found


def driver(labels, profile="plus", traces=None, tol=1e-6, max_rounds=1000, **options):
    options = {"z_encoding": "float64"} | options
    return TensorDriver(
        resolve_tensor(profile, **options),
        K,
        labels,
        traces or {site: TRACES.get(site, 1.0) for site in labels},
        tol=tol,
        max_rounds=max_rounds,
    )


def one_hot(labels, sites=SITES):
    h = np.zeros((N, K, len(sites)))
    for m, site in enumerate(sites):
        for n, k in enumerate(labels[site]):
            if k >= 0:
                h[n, k, m] = 1.0
    return h


class Naive:
    """The ADMM as the specification writes it, with H, G and Q as full tensors."""

    def __init__(self, settings, labels, lam=None):
        self.settings, self.mu = settings, settings.mu0
        h = one_hot(labels)
        self.held = h.any(axis=1)
        self.q = np.zeros_like(h)
        self.lam, self.g, self.fill = settings.lam, np.zeros_like(h), None
        if settings.profile == "plus":
            p = self.filled(h)
            sigma = np.linalg.svd(p.reshape(-1, p.shape[2]), compute_uv=False)
            self.lam = lam or settings.kappa * self.mu * sigma.max()
            self.shrink(h)

    def filled(self, p):
        """Entries that a site lacks are free: the last G, at first the others' mean."""
        if self.fill is None:
            mean = np.zeros(p.shape[:2])
            for n, row in enumerate(self.held):
                if row.any():
                    mean[n] = p[n][:, row].mean(axis=1)
            self.fill = np.repeat(mean[:, :, None], p.shape[2], axis=2)
        return np.where(self.held[:, None, :], p, self.fill)

    def shrink(self, p):
        s = self.settings
        self.g, self.penalty = shrink(
            self.filled(p), self.lam / self.mu, s.p, s.orientation, s.gst_iterations, "svd"
        )
        self.fill = self.g

    def advance(self, labels):
        h = one_hot(labels)
        self.shrink(h + self.q / self.mu)
        gap = np.where(self.held[:, None, :], h - self.g, 0.0)
        self.q = self.q + self.mu * gap
        self.mu = min(self.settings.mu_growth * self.mu, MU_MAX)
        return np.abs(gap).max()

    def blend(self, m):
        return np.where(self.held[:, None, :], self.g - self.q / self.mu, 0.0)[:, :, m]


# -- alpha ----------------------------------------------------------------------------------------

traces_of = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6).map(np.array)


@given(traces_of, st.floats(1.05, 50.0))
def test_alpha_sums_to_one_and_minimises(traces, r):
    alpha = view_weights(traces, r)
    assert alpha.sum() == pytest.approx(1.0)
    rng = np.random.default_rng(0)
    least = (alpha**r * traces).sum()
    for other in rng.dirichlet(np.ones(traces.size), 50):
        mixed = 0.9 * alpha + 0.1 * other
        assert (mixed**r * traces).sum() >= least * (1 - 1e-12)
        assert (other**r * traces).sum() >= least * (1 - 1e-12)


def test_alpha_literally():
    assert view_weights(np.array([1.0, 2.0, 4.0]), 2.0).tolist() == pytest.approx(
        [4 / 7, 2 / 7, 1 / 7]
    )


def test_equal_traces_and_large_exponents_weigh_alike():
    assert view_weights(np.full(5, 3.0), 5.0).tolist() == [0.2] * 5
    np.testing.assert_allclose(view_weights(np.array([1.0, 9.0, 80.0]), 1e7), 1 / 3, atol=1e-6)


def test_a_trace_of_zero_takes_the_weight_and_zeros_share_it():
    assert view_weights(np.array([0.0, 2.0]), 5.0).tolist() == [1.0, 0.0]
    assert view_weights(np.array([0.0, 2.0, 0.0]), 5.0).tolist() == [0.5, 0.0, 0.5]
    assert view_weights(np.zeros(4), 5.0).tolist() == [0.25] * 4
    # below the floor one trace is as good as another
    assert view_weights(np.array([0.0, 1e-30, 1e-16]), 5.0, 1e-12).tolist() == [1 / 3] * 3


def test_alpha_does_not_overflow():
    assert view_weights(np.array([1e-300, 1e300]), 1.01).tolist() == [1.0, 0.0]


def test_weights_sent_are_alpha_to_the_r_divided_by_their_mean_in_plus_only():
    plus, paper = driver(labels_of(0)), driver(labels_of(0), "paper")
    raised = view_weights(np.array([4.0, 5.0, 9.0]), 5.0) ** 5
    for m, site in enumerate(SITES):
        assert plus.query(site).weight == pytest.approx(raised[m] / raised.mean())
        assert paper.query(site).weight == pytest.approx(raised[m])
    plus.advance(labels_of(1), {"a": 1.0, "b": 1.0, "c": 1.0})
    assert [plus.query(site).weight for site in SITES] == [1.0] * 3
    assert plus.view_weights.tolist() == pytest.approx([1 / 3] * 3)


# -- the rounds beside full tensors ---------------------------------------------------------------


@pytest.mark.parametrize("missing", [0.0, 0.25])
@pytest.mark.parametrize(
    ("profile", "orientation"),
    [("plus", "unfold"), ("plus", "view"), ("paper", "unfold"), ("paper", "identity")],
)
def test_rounds_are_the_full_admm(profile, orientation, missing):
    starts = labels_of(0, missing=missing)
    lam = {"lam": 0.02} if profile == "paper" else {}
    run = driver(starts, profile, orientation=orientation, **lam)
    starts = {site: np.where(own >= 0, run.names[site][own], -1) for site, own in starts.items()}
    # in "view" lambda is from the largest singular value of any slice
    slow = Naive(run.settings, starts, run.lam if orientation == "view" else None)
    assert run.lam > 0
    assert run.lam == pytest.approx(slow.lam)
    for round_ in range(60):
        for m, site in enumerate(SITES):
            query = run.query(site)
            assert query.mu == slow.mu
            if profile == "paper" and round_ == 0:
                assert query.z is None  # there is no tensor term yet
                continue
            found = query.z * query.scale
            np.testing.assert_allclose(found, slow.blend(m), atol=1e-9)
            assert not found[starts[site] < 0].any()
        labels = labels_of(1 + min(round_, 40), missing=missing)
        residual = slow.advance(labels)
        run.advance(labels, TRACES)
        assert run.residual == (np.inf if round_ <= 40 else pytest.approx(residual, abs=1e-9))
        assert run.objective == pytest.approx(
            run.weights @ [4.0, 5.0, 9.0] + slow.lam * slow.penalty
        )
    assert np.abs(slow.g).max() > 0.5


def test_the_dual_sign_of_the_print_blows_up():
    """P = H - Q/mu, as printed, with Q += mu (H - G): the gap does not close."""
    slow = Naive(resolve_tensor("plus"), labels_of(0))
    h = one_hot(labels_of(0))
    for _ in range(60):
        slow.shrink(h - slow.q / slow.mu)
        slow.q = slow.q + slow.mu * (h - slow.g)
        slow.mu *= 1.05
    assert np.abs(h - slow.g).max() > 1.0
    right = Naive(resolve_tensor("plus"), labels_of(0))
    assert [right.advance(labels_of(0)) for _ in range(60)][-1] < 0.05


@pytest.mark.parametrize("orientation", ["unfold", "sample", "cluster", "view", "identity"])
@pytest.mark.parametrize("profile", ["plus", "paper"])
def test_the_gap_closes_and_the_run_stops(profile, orientation):
    labels = labels_of(0)
    run = driver(labels, profile, orientation=orientation)
    labels = {site: run.names[site][own] for site, own in labels.items()}
    residuals = []
    while not run.done:
        run.advance(labels, TRACES)
        residuals.append(run.residual)
    assert run.converged
    assert run.residual < 1e-6
    assert run.rounds == len(residuals) < 400
    assert max(residuals[:5]) > 1e-2


def test_a_label_that_moves_keeps_the_run_going():
    run = driver(labels_of(0), tol=1e3)
    run.advance(labels_of(1), TRACES)
    assert not run.done
    run.advance(labels_of(1), TRACES)
    assert run.converged


def test_the_limit_ends_a_run_that_has_not_converged():
    run = driver(labels_of(0), max_rounds=3)
    for seed in range(3):
        assert not run.done
        run.advance(labels_of(seed + 1), TRACES)
    assert run.done
    assert not run.converged
    assert run.rounds == 3


def test_mu_stops_growing():
    run = driver(labels_of(0), mu0=1e13, mu_growth=1.3)
    run.advance(labels_of(0), TRACES)
    assert run.query("a").mu == MU_MAX
    run.advance(labels_of(0), TRACES)
    assert run.query("a").mu == MU_MAX
    assert np.isfinite(run.query("a").z).all()


@pytest.mark.parametrize("orientation", ["unfold", "identity"])
def test_int8_is_what_encoding_the_full_blend_gives(orientation):
    exact = driver(labels_of(0), orientation=orientation)
    coarse = driver(labels_of(0), orientation=orientation, z_encoding="int8")
    for round_ in range(5):
        for site in SITES:
            z, query = exact.query(site).z, coarse.query(site)
            assert query.z.dtype == np.int8
            assert query.scale == pytest.approx(np.abs(z).max() / 127)
            assert np.abs(query.z * query.scale - z).max() <= query.scale * 0.5001
        for run in (exact, coarse):
            run.advance(labels_of(round_ + 1), TRACES)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_blocks_of_rows_join_without_a_seam(missing):
    """More rows than a block holds, and a site that goes: every blend is the dense tensor's."""
    rounds = [list(labels_of(s, missing=missing, n_rows=25_000).values()) for s in range(4)]
    held = [own >= 0 if missing else None for own in rounds[0]]
    pair = [kind(25_000, K, held, "unfold", "float64") for kind in (StreamedTensor, DenseTensor)]
    threshold = Threshold(20.0, 0.9, 10)
    for run in pair:
        run.add(rounds[0])
    assert pair[0].largest_singular_value() == pytest.approx(pair[1].largest_singular_value())
    for count, labels in enumerate(rounds):
        residuals = []
        for run in pair:
            run.add([own for m, own in enumerate(labels) if count < 2 or m != 1])
            residuals.append(run.split(threshold, 0.9 if count else None))
            if count == 1:
                run.drop(1)
        assert residuals[0] == pytest.approx(residuals[1], abs=1e-9)
        assert pair[0].penalty == pytest.approx(pair[1].penalty)
        for (z, _), (expected, _) in zip(pair[0].blends, pair[1].blends, strict=True):
            np.testing.assert_allclose(z, expected, atol=1e-9)


def test_the_gap_is_exact_below_the_bound_only():
    """Above it a run cannot stop, and looking further would cost time."""
    labels = list(labels_of(0, n_rows=25_000).values())
    found = []
    for until in (np.inf, 1e-6, 0.0):
        run = StreamedTensor(25_000, K, [None] * 3, "unfold", "int8")
        run.add(labels)
        found.append((run.split(Threshold(20.0, 0.9, 10), 0.9, until), run.blends))
    (exact, blends), (some, _), (none, _) = found
    assert exact >= some >= 1e-6 > none == 0.0
    for _, others in found:
        for (z, scale), (expected, expected_scale) in zip(others, blends, strict=True):
            assert np.array_equal(z, expected)
            assert scale == expected_scale


@pytest.mark.parametrize("orientation", ["unfold", "view", "cluster", "sample", "identity"])
def test_blends_do_not_depend_on_the_number_of_threads(orientation):
    def blends(threads):
        n_rows, sites = 5_000, tuple("abcdef")
        settings = resolve_tensor("plus", orientation=orientation, z_encoding="float64")
        first, second = (labels_of(s, sites, n_rows=n_rows, n_clusters=10) for s in (0, 1))
        traces = dict.fromkeys(sites, 1.0)
        with threadpool_limits(threads):
            run = TensorDriver(settings, 10, first, traces, tol=1e-6, max_rounds=9)
            run.advance(second, traces)
        return [run.query(site).z for site in sites]

    for one, two in zip(blends(1), blends(2), strict=True):
        assert np.array_equal(one, two)


def test_only_unfold_is_streamed():
    with pytest.raises(ValueError, match="view"):
        StreamedTensor(4, 2, [None], "view", "int8")


# -- the start ------------------------------------------------------------------------------------


def test_names_undo_any_renaming_in_plus():
    base = np.repeat([0, 1, 2], [20, 12, 8])
    names = {"a": [2, 0, 1], "b": [0, 1, 2], "c": [1, 2, 0]}
    starts = {site: np.array(names[site])[base] for site in SITES}
    run = driver(starts)
    assert [run.names[site][starts[site]].tolist() for site in SITES] == [base.tolist()] * 3
    assert run.result().vote.tolist() == base.tolist()


def test_names_stay_in_paper():
    run = driver(labels_of(0), "paper")
    assert [run.names[site].tolist() for site in SITES] == [[0, 1, 2]] * 3


def test_the_vote_leaves_out_rows_that_no_site_holds():
    starts = labels_of(0)
    for own in starts.values():
        own[3] = -1
    starts["a"][5] = starts["b"][5] = -1
    vote = driver(starts).result().vote
    assert vote[3] == -1
    assert vote[5] >= 0
    assert (np.delete(vote, 3) >= 0).all()


def test_the_vote_takes_the_names_of_the_result():
    starts = {site: np.repeat([0, 1, 2], [20, 12, 8]) for site in SITES}
    run = driver(starts)
    other = np.array([1, 2, 0])[starts["a"]]
    run.advance(dict.fromkeys(SITES, other), TRACES)
    result = run.result()
    assert result.labels.tolist() == result.vote.tolist() == other.tolist()
    assert result.agreement.tolist() == [1.0] * 3


def test_what_views_say_alone_is_reported_and_does_not_steer():
    """Profile "paper" starts at random; its vote is about what each view found by itself."""
    starts, alone = labels_of(0, noise=1.0), labels_of(5, noise=0.1)
    settings = resolve_tensor("paper", orientation="unfold")
    run = TensorDriver(settings, K, starts, TRACES, alone=alone, tol=1e-6, max_rounds=9)
    plain = driver(starts, "paper", orientation="unfold")
    for _ in range(2):
        for each in (run, plain):
            each.advance(labels_of(1), TRACES)
    assert np.array_equal(run.query("a").z, plain.query("a").z)
    base = np.random.default_rng(99).integers(0, K, N)
    assert same_pairs(run.result().vote, base) > 0.9 > same_pairs(plain.result().vote, base)


def same_pairs(a, b):
    """Share of the pairs of rows that both put together or both put apart."""
    return ((a[:, None] == a) == (b[:, None] == b)).mean()


def test_lambda_is_kappa_times_what_would_erase_everything():
    starts = labels_of(0, noise=0.0)
    run = driver(starts, kappa=0.3)
    assert run.lam == pytest.approx(0.3 * np.sqrt(3 * N))  # three equal columns of N ones


# -- sites that go --------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", ["unfold", "identity"])
@pytest.mark.parametrize("missing", [0.0, 0.25])
def test_after_a_drop_the_others_go_on_with_their_own_history(orientation, missing):
    starts = labels_of(0, missing=missing)
    run = driver(starts, orientation=orientation)
    common = {s: np.where(own >= 0, run.names[s][own], -1) for s, own in starts.items()}
    slow = Naive(run.settings, common, run.lam)
    for seed in range(3):
        labels = labels_of(seed, missing=missing)
        run.advance(labels, TRACES)
        slow.advance(labels)
    run.drop("b")
    assert run.sites == ["a", "c"]
    assert run.view_weights.tolist() == pytest.approx(
        view_weights(np.array([4.0, 9.0]), 5.0).tolist()
    )
    slow.q, slow.held = slow.q[:, :, [0, 2]], slow.held[:, [0, 2]]
    slow.fill = slow.fill[:, :, [0, 2]]
    labels = {site: labels_of(9, missing=missing)[site] for site in ("a", "c")}
    run.advance(labels, {"a": 1.0, "c": 2.0})
    h = one_hot(labels, ("a", "c"))
    slow.shrink(h + slow.q / slow.mu)
    slow.q = slow.q + slow.mu * np.where(slow.held[:, None, :], h - slow.g, 0.0)
    slow.mu *= 1.05
    for m, site in enumerate(("a", "c")):
        np.testing.assert_allclose(run.query(site).z, slow.blend(m), atol=1e-9)
    assert list(run.result().site_labels) == ["a", "c"]


def test_a_dropped_site_is_gone_and_the_last_one_stays():
    run = driver(labels_of(0, ("a", "b")), traces={"a": 1.0, "b": 2.0})
    run.drop("a")
    with pytest.raises(ProtocolError, match="'a' is not one of the 1"):
        run.query("a")
    with pytest.raises(ProtocolError, match="'a'"):
        run.drop("a")
    with pytest.raises(QuorumLost, match="'b' was the last of 1"):
        run.drop("b")


def test_one_site_runs_alone():
    run = driver(labels_of(0, ("a",)), traces={"a": 1.0})
    assert run.query("a").weight == 1.0
    assert run.view_weights.tolist() == [1.0]


# -- the result -----------------------------------------------------------------------------------


def test_the_result_is_the_weighted_vote_of_the_last_labels():
    starts = {site: np.array([0, 0, 1, 1, 2, 2]) for site in SITES}
    run = driver(starts)
    last = {
        "a": np.array([0, 1, 1, 1, 2, 2]),
        "b": np.array([0, 2, 1, 1, 2, 2]),
        "c": np.array([0, 2, 1, 0, 2, 1]),
    }
    # a's small trace makes its alpha outvote b and c together
    run.advance(last, {"a": 1e-6, "b": 1.0, "c": 1.0})
    result = run.result()
    assert result.labels.tolist() == last["a"].tolist()
    assert result.vote.tolist() == starts["a"].tolist()
    assert result.agreement.tolist() == pytest.approx([5 / 6] * 3)
    assert result.pairwise.tolist() == [[1.0] * 3] * 3
    assert result.view_weights.sum() == pytest.approx(1.0)
    for site in SITES:
        assert np.array_equal(result.site_labels[site], last[site])


def test_agreement_counts_the_rows_a_site_holds_and_is_sklearns_nmi():
    from sklearn.metrics import normalized_mutual_info_score

    starts = labels_of(0, missing=0.3)
    run = driver(starts)
    result = run.result()
    for m, site in enumerate(SITES):
        held = starts[site] >= 0
        own = run.names[site][starts[site][held]]
        assert result.agreement[m] == pytest.approx((own == result.labels[held]).mean())
        expected = normalized_mutual_info_score(own, result.labels[held])
        assert result.agreement_nmi[m] == pytest.approx(expected)
        for other, name in enumerate(SITES):
            both = held & (starts[name] >= 0)
            theirs = run.names[name][starts[name][both]]
            same = (run.names[site][starts[site][both]] == theirs).mean()
            assert result.pairwise[m, other] == pytest.approx(same)


def test_sites_without_a_common_row_agree_on_nothing():
    starts = {"a": np.array([0, 1, -1, -1]), "b": np.array([-1, -1, 0, 1])}
    result = driver(starts, traces={"a": 1.0, "b": 1.0}).result()
    assert result.pairwise.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert (result.labels >= 0).all()


def test_one_cluster_everywhere_is_full_agreement():
    result = driver({s: np.zeros(5, dtype=int) for s in SITES}).result()
    assert result.agreement_nmi.tolist() == [1.0] * 3


# -- refusals -------------------------------------------------------------------------------------


def changed(site, labels):
    return labels_of(0, missing=0.25) | {site: labels}


@pytest.mark.parametrize(
    ("labels", "traces", "words"),
    [
        ({"a": np.zeros(N, int)}, TRACES, "labels came from 1 sites"),
        (changed("d", np.zeros(N, int)), TRACES, "labels came from 4 sites"),
        (changed("b", np.zeros(N - 1, int)), TRACES, r"'b' has labels of shape \(39,\).*40 rows"),
        (changed("b", np.full(N, K)), TRACES, "'b' has labels from 3 to 3, but 3 clusters"),
        (changed("b", np.full(N, -2)), TRACES, "'b' has labels from -2"),
        (changed("b", np.zeros(N, int)), TRACES, "'b' has 40 labelled rows"),
        (labels_of(0, missing=0.25), {"a": 1.0, "b": 1.0}, "traces came from 2 sites"),
        (labels_of(0, missing=0.25), TRACES | {"c": -1.0}, "'c' has trace -1.0"),
        (labels_of(0, missing=0.25), TRACES | {"c": np.nan}, "'c' has trace nan"),
    ],
)
def test_replies_that_do_not_fit_are_refused(labels, traces, words):
    run = driver(labels_of(0, missing=0.25))
    before = run.query("a")
    with pytest.raises(ProtocolError, match=words):
        run.advance(labels, traces)
    assert run.rounds == 0  # refused before anything changed
    assert np.array_equal(run.query("a").z, before.z)


def test_a_full_site_cannot_leave_rows_out_later():
    run = driver(labels_of(0))
    with pytest.raises(ProtocolError, match="39 labelled rows"):
        run.advance(labels_of(0) | {"a": np.concatenate([[-1], np.zeros(N - 1, int)])}, TRACES)


def test_a_run_without_sites_is_refused():
    with pytest.raises(QuorumLost, match="0 sites"):
        driver({}, traces={"a": 1.0})


def test_labels_alone_are_checked_too():
    settings = resolve_tensor("paper")
    alone = labels_of(0) | {"b": np.full(N, -1)}
    with pytest.raises(ProtocolError, match="'b' has 0 labelled rows"):
        TensorDriver(settings, K, labels_of(0), TRACES, alone=alone, tol=1e-6, max_rounds=9)


def test_first_labels_are_checked_too():
    with pytest.raises(ProtocolError, match="'c' has labels of shape"):
        driver(labels_of(0) | {"c": np.zeros(3, int)})


# -- rows that one site lacks -----------------------------------------------------------------


@pytest.mark.parametrize("orientation", ["unfold", "identity", "cluster"])
def test_a_label_that_nobody_contradicts_is_not_driven_away(orientation):
    """With 0 for the missing label the tensor took the gap for disagreement (0% right)."""
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=120)
    lacking = rng.choice(120, 24, replace=False)
    labels = {"a": truth.copy(), "b": truth.copy()}
    labels["a"][lacking] = -1
    run = TensorDriver(
        resolve_tensor(orientation=orientation, z_encoding="float64"),
        3,
        labels,
        {"a": 1.0, "b": 1.0},
        tol=0.0,
        max_rounds=40,
    )
    common = {s: np.where(own >= 0, run.names[s][own], -1) for s, own in labels.items()}
    while not run.done:
        run.advance(common, {"a": 1.0, "b": 1.0})
        z = run.query("b").z
        assert (z[lacking].argmax(axis=1) == common["b"][lacking]).all()


# -- what a reader should doubt ---------------------------------------------------------------


def outcome(weights, labels=(0, 1, 2), vote=(0, 1, 2), n_clusters=3):
    labels, vote, none = np.array(labels), np.array(vote), np.zeros(0)
    return TensorResult(labels, vote, np.array(weights), none, none, none, {}, {}, n_clusters)


def test_one_view_that_decides_is_named_with_its_share_and_the_votes_agreement():
    names = ["site 'a'", "site 'b'", "site 'c'"]
    (sentence,) = doubts(outcome([0.1, 0.8, 0.1], vote=(0, 2, 1)), 5.0, names)
    assert sentence.startswith("site 'b' has 100% of the final vote")
    assert "the aligned vote agrees on 33% of the rows" in sentence


@pytest.mark.parametrize(
    ("weights", "r"),
    [([0.4, 0.3, 0.3], 5.0), ([0.6, 0.4], 5.0), ([0.8, 0.1, 0.1], 1.1), ([1.0], 5.0)],
)
def test_views_that_share_the_vote_are_no_reason_to_warn(weights, r):
    assert doubts(outcome(weights), r, [str(m) for m in range(len(weights))]) == []


def test_empty_clusters_are_counted():
    (sentence,) = doubts(outcome([0.5, 0.5], labels=(1, 1, -1), n_clusters=4), 5.0, ["a", "b"])
    assert sentence.startswith("3 of 4 clusters are empty")


def test_vote_shares_are_alpha_to_the_r():
    assert vote_shares(np.array([0.6, 0.4]), 2.0).tolist() == pytest.approx([36 / 52, 16 / 52])
