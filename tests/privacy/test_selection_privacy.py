"""What is said of masked and noisy selections before they are approved, and in the certificate."""

import pytest

from configs.plan import RunPlan
from privacy.certificate import certificate
from privacy.disclosure import disclosures
from privacy.selection_privacy import SITE_LEVEL_UTILITY

SITES = ["bonn", "kiel", "ulm"]
MASKED = {"secure_aggregation": True, "participants": SITES}
#: The sites' NMI decide, and none can have more than half of the weight.
WEIGHED = {"weighting": "softmax", "agg_temp": 1.5}
NOISY = {"mechanism": "gaussian", "epsilon": 2.0, "clip": 0.5}


def plan(privacy, **mufsht):
    fields = {"method": "fed-mufsht", "n_clusters": 4, "mufsht": mufsht, "privacy": privacy}
    return RunPlan.parse(fields)


def said(privacy, **mufsht):
    return " ".join(disclosures(plan(privacy, **mufsht)))


@pytest.mark.parametrize(
    ("options", "words", "absent"),
    [
        (WEIGHED, "first gets, in the clear, one figure q", "divided by the number of sites"),
        (WEIGHED, "the weight gamma of each site by name", "text"),
        (WEIGHED, "a site's gamma is at most 0.4934 (with equal ones it is 0.3333)", "choices"),
        (WEIGHED, "also where a server lies about q", "nearly"),
        ({**WEIGHED, "agg_temp": 4.0}, "a site's gamma is at most 0.3910", "0.4934"),
        ({}, "divided by the number of sites", "q"),
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
    assert "chooses the weights that sites start from after round 1 can single one record" in text
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
@pytest.mark.parametrize("options", [{}, WEIGHED])
def test_sentences_are_sentences(privacy, options):
    if privacy.get("mechanism"):
        options = {}
    for sentence in disclosures(plan(privacy, **options)):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert "  " not in sentence


def test_the_certificate_names_the_quality_the_masks_do_not_hide():
    weighed, uniform = (
        certificate(plan(MASKED, **options), SITES)["not_covered"] for options in (WEIGHED, {})
    )
    assert "each site's NMI, which the server sees in the clear" in weighed
    assert "one site can have up to half of the weight in a sum" in weighed
    assert "NMI" not in uniform
    assert "secure aggregation without noise is not anonymity" in uniform


def test_the_certificate_says_how_little_noise_leaves():
    found = certificate(plan(NOISY), SITES)
    assert found["not_covered"].endswith(SITE_LEVEL_UTILITY)
    assert (found["unit"], found["bounds"]) == ("one site", "declared in schema.toml")
    text = certificate(plan({**MASKED}, text=True), SITES)
    assert text["bounds"] == "none needed: each document is scaled to unit length"
