"""The certificate of every combination of method, masks and mechanism."""

import json
import math

import pytest

from configs.plan import RunPlan
from privacy.accountant import gaussian_epsilon
from privacy.certificate import certificate
from privacy.protection import heat_kernel_noise, update_noise

NAMES = ["a", "b", "c", "d"]
MASKED = {"secure_aggregation": True, "participants": NAMES}
KEYS = {
    *("relation", "unit", "mechanism", "sigma", "sensitivity", "noise_multiplier", "exchanges"),
    "epsilon",
    *("epsilon_if_others_collude", "delta", "accountant", "noise", "participants"),
    *("tolerated_dropouts", "colluders", "threshold", "bounds", "assumptions", "not_covered"),
}


def plan_of(method, privacy, **options):
    fields = {"method": method, "n_clusters": 4, "privacy": privacy, **options}
    return RunPlan.parse(fields)


def gaussian(**privacy):
    return {"mechanism": "gaussian", "epsilon": 1.0, **privacy}


PLAIN = {"profile": "paper", "fedhk": {"acceleration": "none", "init": "spread"}}
ONE = {"fedhk": {"heat_kernel": "one"}, "max_rounds": 10}
PLANS = {
    "plain": plan_of("fedhk-mvfc", {}),
    "masked": plan_of("fedhk-mvfc", MASKED, **PLAIN),
    "masked noise": plan_of("fedhk-mvfc", gaussian(**MASKED), **ONE),
    "masked local noise": plan_of("fedhk-mvfc", gaussian(**MASKED, noise="local"), **ONE),
    "local noise": plan_of("fedhk-mvfc", gaussian(), **ONE),
    "paper": plan_of(
        "fedhk-mvfc",
        {"mechanism": "paper", "epsilon": 1.0},
        profile="paper",
        fedhk={"aggregation": "weighted"},
    ),
    "masked paper": plan_of(
        "fedhk-mvfc",
        {"mechanism": "paper", "epsilon": 1.0, **MASKED},
        profile="paper",
        fedhk={"aggregation": "weighted", "init": "spread", "acceleration": "none"},
    ),
    "selection": plan_of("fed-mufsht", {}),
    "masked selection": plan_of("fed-mufsht", MASKED),
    "noisy selection": plan_of("fed-mufsht", gaussian(clip=0.5)),
    "vertical": plan_of("tensor-fmvc", {}),
    "labels by chance": plan_of(
        "tensor-fmvc", {"mechanism": "randomised-response", "epsilon": 2.0}
    ),
}


def noise_of(plan):
    return (
        update_noise(plan, 40) if plan.method == "fed-mufsht" else heat_kernel_noise(plan, [2, 2])
    )


def found(name):
    return certificate(PLANS[name], NAMES, noise=noise_of(PLANS[name]))


@pytest.mark.parametrize("name", PLANS)
def test_every_certificate_has_the_same_keys_and_is_plain_data(name):
    one = found(name)
    assert set(one) == KEYS
    assert json.loads(json.dumps(one)) == one
    assert one["mechanism"] == PLANS[name].privacy.mechanism
    assert one["participants"] == NAMES
    for key in ("bounds", "assumptions", "not_covered"):
        assert one[key].strip(), key


GUARANTEED = {"masked noise", "masked local noise", "local noise", "noisy selection"}


@pytest.mark.parametrize("name", PLANS)
def test_a_figure_stands_only_where_something_is_guaranteed(name):
    one = found(name)
    figures = ("relation", "unit", "epsilon", "epsilon_if_others_collude", "delta", "accountant")
    given = [one[key] is not None for key in figures]
    assert all(given) if name in GUARANTEED | {"labels by chance"} else not any(given)
    assert (one["sigma"] is not None) == (one["sensitivity"] is not None) == (name in GUARANTEED)


@pytest.mark.parametrize(
    ("name", "unit", "noise"),
    [
        ("masked noise", "one patient of one site", "distributed"),
        ("masked local noise", "one patient of one site", "local"),
        ("local noise", "one patient of one site", "local"),
        ("noisy selection", "one site", "local"),
    ],
)
def test_noise_is_certified_as_it_was_calibrated(name, unit, noise):
    one, plan = found(name), PLANS[name]
    calibrated = noise_of(plan)
    assert (one["unit"], one["noise"], one["delta"]) == (unit, noise, 1e-5)
    assert (one["exchanges"], one["sensitivity"]) == (plan.max_rounds, calibrated.sensitivity)
    assert 0.99 < one["epsilon"] <= 1.0
    z = one["noise_multiplier"]  # what a reader needs to check epsilon
    mu = math.sqrt(one["exchanges"]) / z
    assert one["epsilon"] == pytest.approx(gaussian_epsilon(1e-5, mu), abs=1e-3)
    assert (one["epsilon_if_others_collude"] > one["epsilon"]) == (noise == "distributed")
    assert one["sigma"] == {
        block.name: calibrated.sigma * block.weight for block in calibrated.blocks.blocks
    }


def test_a_site_that_is_not_told_who_takes_part_certifies_no_number_of_sites():
    one = certificate(PLANS["labels by chance"], None)
    assert one["participants"] is None
    assert "2 times the number of sites" in one["accountant"]
    assert "8 for the labels of one row at all 4 sites" in found("labels by chance")["accountant"]


def test_before_the_noise_is_known_no_figure_is_given():
    one = certificate(PLANS["masked noise"], NAMES)
    assert (one["relation"], one["epsilon"], one["sigma"]) == (
        "add or remove one patient",
        None,
        None,
    )


@pytest.mark.parametrize("name", PLANS)
def test_the_numbers_of_the_masks_stand_where_there_are_masks(name):
    one, masked = found(name), "masked" in name
    terms = PLANS[name].secure_terms()
    numbers = (one["tolerated_dropouts"], one["threshold"], one["colluders"])
    if not masked:
        assert numbers == (None, None, None)
        return
    noisy = "noise" in name
    assert numbers == ((1, 3, 1) if noisy else (0, 4, 1))
    if not noisy:
        assert one["exchanges"] == terms.exchanges
    assert f"at most {numbers[0]} are missing from a sum" in one["assumptions"]
    assert f"at least {4 - numbers[0] - 1} other sites" in one["assumptions"]
    assert "not restored from a copy" in one["assumptions"]


WORDS = {
    "plain": "extremes and the centres proposed at the start",
    "masked": "secure aggregation without noise is not anonymity",
    "masked paper": "secure aggregation without noise is not anonymity",
    "masked noise": "they all read 'declined'",
    "local noise": "they all read 'declined'",
    "noisy selection": "they all read 'declined'",
    "labels by chance": "who takes part",
}


@pytest.mark.parametrize("name", WORDS)
def test_what_is_not_covered_is_said(name):
    one = found(name)
    assert WORDS[name] in one["not_covered"]
    if name != "plain":
        assert "the correctness of the result against a server that lies" in one["not_covered"]


def test_where_bounds_come_from():
    assert found("plain")["bounds"] == "pooled extremes exchanged before round 1"
    assert found("masked noise")["bounds"] == "declared in schema.toml"
    derived = certificate(PLANS["masked"], NAMES, "derived from data, simulation only")
    assert derived["bounds"] == "derived from data, simulation only"
