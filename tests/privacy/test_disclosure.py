"""What is said of who learns what, in `plans show` and in the certificate."""

import pytest

from configs.plan import RunPlan
from privacy.certificate import certificate
from privacy.disclosure import disclosures

SITES = ["riverside", "st-anna"]


def plan(method="tensor-fmvc", **fields):
    return RunPlan.parse({"method": method, "n_clusters": 4, **fields})


def said(*arguments, **fields):
    return " ".join(disclosures(plan(*arguments, **fields)))


@pytest.mark.parametrize(
    "words",
    [
        "Measurements and ids stay at the site",
        "Every site learns which of its patients all other sites hold too",
        "is itself health data, so use a list of patients who consented to the study",
        "The server learns how long each site's list is and how many patients",
        "The server and one site together can name every common row and read all sites' labels",
        "test whether a guessed id is on any site's list, at the cost of one hash a guess",
        "when a site leaves, the others replace the key",
        "deletes the tokens after matching, which is a promise and not a proof",
        "a label (1 of 4 clusters) for each common row",
        "the labels that its view gives alone, and which common rows it has no measurement of",
        "a blend of all sites' labels of each common row",
        "At the end every site receives the final label",
    ],
)
def test_a_vertical_run_says_who_learns_what(words):
    assert words in said()


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (1, "(scrypt with n = 2**1, about 4.9 µs of one core)"),
        (12, "(scrypt with n = 2**12, about 10 ms of one core)"),
        (16, "(scrypt with n = 2**16, about 160 ms of one core)"),
        (16, "(scrypt with n = 2**16, about 160 ms of one core)"),
    ],
)
def test_the_price_of_a_guess_follows_the_plan(cost, words):
    assert words in said(tensor={"link_cost": cost})


def test_the_plans_numbers_stand_in_the_sentences():
    text = said(n_clusters=7, max_rounds=12, tensor={"min_overlap": 200, "z_encoding": "float16"})
    assert "fewer than 200 in all lists the run is refused, and no site is told" in text
    assert "in each round, at most 12, the server gets" in text
    assert "(1 of 7 clusters)" in text
    assert "Z (float16)" in text


@pytest.mark.parametrize(("profile", "encoding"), [("plus", "int8"), ("paper", "float64")])
def test_the_profile_chooses_how_the_blend_travels(profile, encoding):
    assert f"Z ({encoding})" in said(profile=profile)


@pytest.mark.parametrize(
    ("options", "words", "absent"),
    [
        ({}, "centres of a k-means over the site's records", "no centre is proposed"),
        ({"init": "box"}, "no centre is proposed by a site", "k-means"),
        ({}, "sums over all of the site's records for each cluster", "the site's own model"),
        ({"aggregation": "weighted"}, "the site's own model", "sums over all of the site's"),
    ],
)
def test_a_horizontal_run_says_what_its_options_send(options, words, absent):
    text = said("fedhk-mvfc", fedhk=options)
    assert words in text
    assert absent not in text
    assert "token" not in text
    assert "least and greatest value of each column" in text


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ("12345678-9abc@0.4", "the columns that run 12345678 selected at a share of 0.4 are used"),
        ("12345678-9abc@1", "the columns that run 12345678 selected at a share of 1 are used"),
    ],
)
def test_a_run_on_selected_columns_says_what_they_tell(features, words):
    text = said("fedhk-mvfc", features=features)
    assert words in text
    assert "what that run found in the data of all its sites" in text
    assert "selected at" not in said("fedhk-mvfc")


@pytest.mark.parametrize(
    "words",
    [
        "Rows, ids, row order, labels, embeddings and imputed values stay at the site.",
        "the names, units and declared bounds of the columns",
        "with at least policy.min_cell observed cells how many they are and their sum",
        "Each round, at most 5, the server gets one figure q",
        "the site's weights W times the weight gamma",
        "W holds 4 numbers for each column",
        "without secure aggregation the server sees those of each single site and can read an "
        "unusual record from them almost as it is",
        "of a site with few records much of any record: the site trusts the server not to",
        "with two sites each can work out much of the other's",
        "what is selected tells something about the patients of all sites",
        "There is no differential privacy and no secure aggregation.",
    ],
)
def test_a_selection_says_who_learns_what(words):
    assert words in said("fed-mufsht")


@pytest.mark.parametrize(
    ("options", "words", "absent"),
    [
        ({"weighting": "uniform"}, "no figure on their quality is sent", "one figure q"),
        ({"weighting": "linear"}, "one figure q", "divided by the number of sites"),
        ({"search": "keys"}, "which columns the site itself would choose", "documents"),
        ({}, "and their sum", "would choose"),
        ({"text": True}, "for each word how many documents have it", "the pooled mean"),
        ({"text": True}, "these sums are that document's own", "variance"),
    ],
)
def test_a_selection_says_what_its_options_send(options, words, absent):
    text = said("fed-mufsht", mufsht=options)
    assert words in text
    assert absent not in text


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("fedhk-mvfc", {}),
        ("fedhk-mvfc", {"features": "12345678@0.4"}),
        ("tensor-fmvc", {}),
        ("fed-mufsht", {}),
        ("fed-mufsht", {"mufsht": {"text": True, "search": "keys", "weighting": "uniform"}}),
    ],
)
def test_sentences_are_sentences(method, fields):
    for sentence in disclosures(plan(method, **fields)):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert "  " not in sentence


KEYS = [
    "relation",
    "unit",
    "mechanism",
    "sigma",
    "sensitivity",
    "noise_multiplier",
    "exchanges",
    "epsilon",
    "epsilon_if_others_collude",
    "delta",
    "accountant",
    "noise",
    "participants",
    "tolerated_dropouts",
    "colluders",
    "threshold",
    "bounds",
    "assumptions",
    "not_covered",
]


def test_a_plain_run_promises_nothing():
    found = certificate(plan("fedhk-mvfc"), SITES)

    assert list(found) == KEYS
    assert found["bounds"] == "pooled extremes exchanged before round 1"
    assert certificate(plan("fedhk-mvfc"), SITES, "declared")["bounds"] == "declared"
    assert (found["mechanism"], found["epsilon"], found["unit"]) == ("none", None, None)
    assert found["not_covered"].startswith("no differential privacy and no secure aggregation")


def test_the_certificate_of_a_selection_repeats_every_disclosure_and_promises_nothing():
    found = certificate(plan("fed-mufsht"), SITES)

    assert list(found) == KEYS
    assert (found["mechanism"], found["epsilon"]) == ("none", None)
    assert found["bounds"] == "pooled means and variances exchanged before round 1"
    assert [s for s in disclosures(plan("fed-mufsht")) if s not in found["not_covered"]] == []
    assert "from which an unusual record can be read" in found["assumptions"]
    assert "linkage key" not in found["assumptions"]


def test_the_vertical_certificate_repeats_every_disclosure_and_promises_nothing():
    found = certificate(plan(), SITES)

    assert list(found) == KEYS
    assert found["participants"] == SITES
    assert found["mechanism"] == "none"
    assert found["epsilon"] is None
    assert found["bounds"] == "each site scales by its own extremes, which stay there"
    assert certificate(plan(), SITES, "none")["bounds"] == "none"
    assert found["not_covered"].startswith("No differential privacy and no secure aggregation.")
    assert [s for s in disclosures(plan()) if s not in found["not_covered"]] == []
    assert "never give the linkage key to the server" in found["assumptions"]
