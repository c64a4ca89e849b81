"""What is said of masked and noisy selections before they are approved, and in the certificate."""

import pytest

from configs.plan import RunPlan
from privacy.certificate import certificate
from privacy.disclosure import disclosures
from privacy.selection_privacy import SITE_LEVEL_UTILITY

SITES = ["bonn", "kiel", "ulm"]
MASKED = {"secure_aggregation": True, "participants": SITES}
NOISY = {"mechanism": "gaussian", "epsilon": 2.0, "clip": 0.5}


def plan(privacy, **mufsht):
    fields = {"method": "fed-mufsht", "n_clusters": 4, "mufsht": mufsht, "privacy": privacy}
    return RunPlan.parse(fields)


def said(privacy, **mufsht):
    return " ".join(disclosures(plan(privacy, **mufsht)))


@pytest.mark.parametrize(
    ("options", "words", "absent"),
    [
        ({}, "first gets, in the clear, one figure q", "divided by the number of sites"),
        ({}, "the weight gamma of each site by name", "text"),
        ({}, "a site's gamma can be up to 0.9999,", "choices"),
        ({"agg_temp": 1.0}, "a site's gamma can be up to 0.5761,", "0.9999"),
        ({"weighting": "linear"}, "a site's gamma can be up to 1.0000,", "0.9999"),
        ({"weighting": "uniform"}, "divided by the number of sites", "q"),
        ({"search": "keys"}, "the sites' choices of columns are added up masked", "documents"),
        ({"text": True}, "for each word how many documents have it", "cut to them"),
        ({}, "Values outside their bounds are cut to them.", "documents"),
    ],
)
def test_a_masked_selection_says_what_its_options_send(options, words, absent):
    text = said(MASKED, **options)
    assert words in text
    assert f" {absent} " not in text
    assert "The server opens sums over at least 3 of the 3 participants (bonn, kiel, ulm)" in text
    assert "a server that chooses the weights that sites start from can single one record" in text
    assert "no secure aggregation" not in text
    assert "without secure aggregation" not in text


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        (NOISY, "Without masks the server sees this site's own noisy"),
        (NOISY, "each site adds all of the noise"),
        ({**MASKED, **NOISY}, "leave the site with noise and masked, and nothing else does"),
        ({**MASKED, **NOISY}, "each site adds its part of the noise"),
        (NOISY, "shortened to the length privacy.clip = 0.5"),
        (NOISY, "The noise hides the site as a whole"),
        (NOISY, "epsilon = 2 over the whole run"),
        (NOISY, SITE_LEVEL_UTILITY[1:]),
    ],
)
def test_a_noisy_selection_says_what_is_promised_and_how_little_is_left(privacy, words):
    text = said(privacy)
    assert words in text
    assert "patient" not in text.replace("patients of all sites", "")
    assert "in the clear" not in text


@pytest.mark.parametrize("privacy", [MASKED, NOISY, {**MASKED, **NOISY}])
@pytest.mark.parametrize("options", [{}, {"weighting": "uniform"}])
def test_sentences_are_sentences(privacy, options):
    if privacy.get("mechanism"):
        options = {**options, "weighting": "uniform"}
    for sentence in disclosures(plan(privacy, **options)):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert "  " not in sentence


def test_the_certificate_names_the_quality_the_masks_do_not_hide():
    weighed, uniform = (
        certificate(plan(MASKED, **options), SITES)["not_covered"]
        for options in ({}, {"weighting": "uniform"})
    )
    assert "each site's NMI, which the server sees in the clear" in weighed
    assert "NMI" not in uniform
    assert "secure aggregation without noise is not anonymity" in uniform


def test_the_certificate_says_how_little_noise_leaves():
    found = certificate(plan(NOISY), SITES)
    assert found["not_covered"].endswith(SITE_LEVEL_UTILITY)
    assert (found["unit"], found["bounds"]) == ("one site", "declared in schema.toml")
    text = certificate(plan({**MASKED}, text=True), SITES)
    assert text["bounds"] == "none needed: each document is scaled to unit length"
