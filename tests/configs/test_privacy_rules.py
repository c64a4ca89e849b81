"""Table [privacy]: what is filled in, what is refused, and the numbers of the secure sums."""

import itertools

import pytest

from configs.compatibility import largest_weight
from configs.errors import ConfigError
from configs.plan import RunPlan
from configs.secure_terms import check_terms, default_dropouts

SITES = ["st-anna", "st-benno", "st-clara"]
MASKED = {"secure_aggregation": True, "participants": SITES}
NOISY = {"mechanism": "gaussian", "epsilon": 1.0}


def plan(privacy, **changes):
    fields = {"method": "fedhk-mvfc", "n_clusters": 4, "max_rounds": 10, "profile": "paper"}
    return RunPlan.parse({**fields, "privacy": privacy, **changes}, source="plan.toml")


@pytest.mark.parametrize(
    ("n", "d", "t"),
    [
        *((3, 0, 3), (4, 1, 3), (5, 1, 4), (6, 1, 5), (7, 1, 6)),
        *((8, 2, 6), (13, 2, 11), (14, 3, 11), (21, 3, 18), (32, 5, 27)),
    ],
)
def test_default_dropouts_and_threshold_against_one_colluder(n, d, t):
    assert default_dropouts(n, 1) == d
    assert n - d == t
    check_terms(n, 1, d, t)


def test_terms_are_safe_exactly_where_all_conditions_hold():
    for n, c, d, t in itertools.product(range(1, 12), range(4), range(5), range(1, 12)):
        opens = t <= n - d and 2 * t > n + c and (n - c) * d < (d + 1) * (t - c)
        safe = c >= 1 and opens and n - d - c >= 2
        try:
            check_terms(n, c, d, t)
        except ConfigError:
            assert not safe, (n, c, d, t)
        else:
            assert safe, (n, c, d, t)


def test_a_masked_plan_spells_out_what_follows_from_its_participants():
    first = plan(MASKED)
    terms = first.secure_terms()
    assert (terms.n_sites, terms.tolerated_dropouts, terms.threshold) == (3, 0, 3)
    assert first.quorum.min_sites == 3
    assert first.fedhk.init == "spread"
    # counts and moments, 10 rounds, the final figures, and 5 spares
    assert terms.exchanges == 1 + 10 + 1 + 5
    assert RunPlan.parse(first.fields()).plan_id == first.plan_id
    assert plan({**MASKED, "participants": SITES[::-1]}).plan_id == first.plan_id


def test_noise_fills_in_what_it_needs():
    noisy = plan(NOISY)
    assert noisy.privacy.noise == "local"
    assert noisy.privacy.delta == 1e-5
    assert (noisy.fedhk.n_init, noisy.fedhk.init, noisy.fedhk.acceleration) == (1, "spread", "none")
    masked = plan({**MASKED, **NOISY, "participants": [*SITES, "st-doris"]})
    assert masked.privacy.noise == "distributed"
    assert masked.secure_terms().tolerated_dropouts == 1
    assert masked.secure_terms().exchanges == 10 + 5


def labels_at_random(**fields):
    privacy = {"mechanism": "randomised-response", "epsilon": 1.0}
    return RunPlan.parse(
        {"method": "tensor-fmvc", "n_clusters": 3, **fields, "privacy": privacy}, source="plan.toml"
    )


def test_label_privacy_sends_one_list_of_labels_unless_the_plan_says_otherwise():
    private = labels_at_random()
    assert private.max_rounds == 0
    assert (private.privacy.delta, private.privacy.noise) == (None, None)
    assert not private.protected
    assert labels_at_random(max_rounds=3).max_rounds == 3
    assert RunPlan.parse(private.fields()).plan_id == private.plan_id


def test_the_papers_noise_has_one_start_and_a_delta():
    paper = plan({"mechanism": "paper", "epsilon": 1.0}, fedhk={"aggregation": "weighted"})
    assert (paper.fedhk.n_init, paper.privacy.delta, paper.privacy.noise) == (1, 1e-5, None)
    assert paper.fedhk.init == "kmeans"


@pytest.mark.parametrize("method", ["fedhk-mvfc", "tensor-fmvc", "fed-mufsht"])
def test_no_other_run_is_without_rounds(method):
    with pytest.raises(ConfigError, match="max_rounds is 0; allowed: a whole number, 1 or more"):
        RunPlan.parse({"method": method, "n_clusters": 3, "max_rounds": 0})


def test_labels_at_random_to_begin_with_are_no_labels_to_protect():
    with pytest.raises(ConfigError, match="epsilon would pay for noise: use 'plus'"):
        labels_at_random(profile="paper")


@pytest.mark.parametrize(
    ("mechanism", "key", "value"),
    [
        ("randomised-response", "delta", 1e-5),
        ("randomised-response", "noise", "local"),
        ("paper", "noise", "local"),
        ("paper", "clip", 1.0),
        ("none", "delta", 1e-5),
    ],
)
def test_a_key_of_another_mechanism_is_refused(mechanism, key, value):
    privacy = {"mechanism": mechanism, key: value}
    if mechanism != "none":
        privacy["epsilon"] = 1.0
    method = "tensor-fmvc" if mechanism == "randomised-response" else "fedhk-mvfc"
    fields = {"method": method, "n_clusters": 3, "privacy": privacy}
    if mechanism == "paper":
        fields["fedhk"] = {"aggregation": "fedavg"}
    with pytest.raises(ConfigError, match=f"which has no {key}: leave it out"):
        RunPlan.parse(fields)


def test_a_plain_plan_has_no_secure_terms():
    assert plan({}).secure_terms() is None
    assert not plan({}).protected


@pytest.mark.parametrize(
    ("privacy", "changes", "sentence"),
    [
        ({"epsilon": 1.0}, {}, "privacy.epsilon is set but privacy.mechanism is 'none'"),
        ({"participants": SITES}, {}, "participants is set but privacy.secure_aggregation is fal"),
        ({"mechanism": "gaussian"}, {}, "privacy.epsilon is missing"),
        ({**NOISY, "noise": "distributed"}, {}, "the server would see each site's share of the no"),
        ({**MASKED, "participants": SITES[:2]}, {}, "a sum may hold 1 honest sites and needs 2"),
        ({**MASKED, "participants": [*SITES, "st-anna"]}, {}, "lists site 'st-anna' twice"),
        ({**MASKED, "participants": ["a b"]}, {}, "participants[0] is 'a b'; allowed"),
        ({"secure_aggregation": True}, {}, "privacy.participants is empty"),
        ({"secure_aggregation": True, "participants": []}, {}, "privacy.participants is empty"),
        (
            {**MASKED, "participants": [*SITES, "x"], "tolerated_dropouts": 1},
            {},
            "tolerated_dropouts is 1 without noise",
        ),
        (
            {
                **{**MASKED, "participants": [*SITES, "x"], "tolerated_dropouts": 1},
                **{"mechanism": "paper", "epsilon": 1.0},
            },
            {"fedhk": {"aggregation": "weighted"}},
            "tolerated_dropouts is 1 without noise that guarantees something",
        ),
        ({**MASKED, "threshold": 2}, {}, "lets a server that names different sets"),
        ({**MASKED, "min_contributors": 4}, {}, "a sum may hold 3 of 3 sites"),
        (MASKED, {"quorum": {"min_sites": 2}}, "quorum.min_sites is 2 but privacy.participants"),
        (MASKED, {"quorum": {"on_missing": "continue"}}, "quorum.on_missing is 'continue'"),
        (MASKED, {"fedhk": {"init": "kmeans"}}, "fedhk.init = 'kmeans' shows the server"),
        (MASKED, {"fedhk": {"encoding": "float32"}}, "leave encoding out"),
        (
            MASKED,
            {"fedhk": {"aggregation": "weighted", "local_clusters": {"st-anna": 2}}},
            "leave local_clusters out",
        ),
        (MASKED, {"fedhk": {"aggregation": "nmi_softmax"}}, "is not available in this version"),
        (NOISY, {"profile": None}, "the default profile 'robust' takes scaling or bandwidth from"),
        (NOISY, {"profile": "robust"}, ": profile 'robust' takes scaling or bandwidth from"),
        (NOISY, {"fedhk": {"scaling": "none"}}, "leaves records without a bound"),
        (NOISY, {"fedhk": {"n_init": 5}}, "every start costs as much as the first"),
        (NOISY, {"fedhk": {"init": "box"}}, "use 'spread', the start that needs no data"),
        (NOISY, {"fedhk": {"acceleration": "anderson"}}, "undoes steps that were already paid"),
        (NOISY, {"features": "1234abcd@0.4"}, "columns that other releases of the same"),
        ({**NOISY, "clip": 1.0}, {}, "leave clip out"),
        (
            {"mechanism": "paper", "epsilon": 1.0},
            {},
            'use mechanism = "gaussian", which guarantees',
        ),
        ({"mechanism": "randomised-response", "epsilon": 1.0}, {}, "protects labels and method"),
    ],
)
def test_what_privacy_cannot_be_combined_with_is_refused_in_one_sentence(
    privacy, changes, sentence
):
    with pytest.raises(ConfigError) as caught:
        plan(privacy, **changes)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("plan.toml: ")
    assert "\n" not in str(caught.value)


def selection(mufsht, privacy=None):
    fields = {"method": "fed-mufsht", "n_clusters": 4, "mufsht": mufsht}
    return RunPlan.parse({**fields, "privacy": privacy or MASKED}, source="plan.toml")


@pytest.mark.parametrize("mufsht", [{}, {"agg_temp": 0.1}, {"weighting": "uniform"}])
def test_a_masked_selection_weighs_all_sites_alike_unless_the_plan_says_otherwise(mufsht):
    masked = selection(mufsht)
    assert masked.mufsht.weighting == "uniform"
    assert masked.plan_id == selection({**mufsht, "weighting": "uniform"}).plan_id
    assert selection(mufsht, {"min_contributors": 3}).mufsht.weighting == mufsht.get(
        "weighting", "softmax"
    )


@pytest.mark.parametrize(
    ("mufsht", "n_sites", "sentence"),
    [
        (
            {"weighting": "linear"},
            3,
            "mufsht.weighting = 'linear' lets a server that lies about the sites' NMI give one of "
            "them all of the weight, so that the masked sum is its weights W alone: use 'uniform' "
            "(the default with secure aggregation), or 'softmax' with an agg_temp of 1.443 or more",
        ),
        (
            {"weighting": "softmax"},
            3,
            "mufsht.weighting = 'softmax' with agg_temp = 0.1 lets a server that lies about the "
            "sites' NMI give one of 3 sites 0.9999 of the weight, so that the masked sum is mostly "
            "its weights W: use 'uniform' (the default with secure aggregation), or 'softmax' with "
            "an agg_temp of 1.443 or more",
        ),
        ({"weighting": "softmax", "agg_temp": 1.44}, 3, "give one of 3 sites 0.5003 of the weight"),
        ({"weighting": "softmax", "agg_temp": 0.45}, 10, "or 'softmax' with an agg_temp of 0.456"),
    ],
)
def test_a_masked_selection_never_lets_one_site_have_most_of_the_weight(mufsht, n_sites, sentence):
    sites = [f"site-{k}" for k in range(n_sites)]
    with pytest.raises(ConfigError) as caught:
        selection(mufsht, {**MASKED, "participants": sites})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("n_sites", "agg_temp"), [(3, 1.443), (10, 0.456), (32, 0.292)])
def test_a_temperature_that_a_refusal_names_is_high_enough(n_sites, agg_temp):
    sites = [f"site-{k}" for k in range(n_sites)]
    weighed = {"weighting": "softmax", "agg_temp": agg_temp}
    assert selection(weighed, {**MASKED, "participants": sites}).mufsht.weighting == "softmax"
    assert 0.497 < largest_weight(n_sites, agg_temp) <= 0.5
    with pytest.raises(ConfigError, match="mostly its weights W"):
        selection({**weighed, "agg_temp": agg_temp - 2e-3}, {**MASKED, "participants": sites})


@pytest.mark.parametrize(
    ("mufsht", "sentence"),
    [
        ({"weighting": "softmax"}, "use 'uniform' with noise"),
        ({"search": "keys"}, "lets each site vote for columns"),
        ({"text": True}, "pools how many records hold each word"),
    ],
)
def test_a_noisy_selection_releases_one_update_a_round_and_nothing_else(mufsht, sentence):
    fields = {"method": "fed-mufsht", "n_clusters": 4, "mufsht": mufsht}
    with pytest.raises(ConfigError, match=sentence):
        RunPlan.parse({**fields, "privacy": {**NOISY, "clip": 1.0}})
