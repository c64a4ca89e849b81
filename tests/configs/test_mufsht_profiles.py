"""What the profiles and the switches of Fed-MUFSHT stand for."""

import pytest

from configs.errors import ConfigError
from configs.mufsht_profiles import resolve_mufsht


def test_gated_is_the_default_and_says_so():
    settings = resolve_mufsht()
    assert settings == resolve_mufsht("gated")
    assert (settings.profile, settings.search, settings.rank) == ("gated", "off", "gated_pivot")
    assert settings.learning == {
        "tau": 0.1,
        "beta": 0.01,
        "lam": 0.1,
        "mu": 0.005,
        "simplex": "view",
    }


def test_the_paper_profile_is_the_closed_loop():
    settings = resolve_mufsht("paper")
    assert (settings.search, settings.rank, settings.stages) == ("weights", "row_norm", "both")
    assert (settings.tau, settings.mu, settings.variant) == (1.0, 0.5, "hc-thro")


def test_text_has_penalties_of_its_own_and_a_given_one_counts():
    assert (resolve_mufsht(text=True).beta, resolve_mufsht(text=True).lam) == (1e-4, 0.0)
    settings = resolve_mufsht(text=True, beta=0.5, lam=0.2)
    assert (settings.beta, settings.lam, settings.text) == (0.5, 0.2, True)


@pytest.mark.parametrize("key", ["tau", "beta", "lam", "mu"])
def test_0_is_a_value_and_not_left_out(key):
    assert getattr(resolve_mufsht(**{key: 0.0}), key) == 0.0


@pytest.mark.parametrize(
    ("hcl", "acm", "variant"),
    [
        (True, True, "hc-thro"),
        (False, False, "thro"),
        (False, True, "no-hcl"),
        (True, False, "no-acm"),
    ],
)
def test_the_switches_of_the_swarm_are_the_ablations(hcl, acm, variant):
    assert resolve_mufsht("paper", hcl=hcl, acm=acm).variant == variant


def test_one_stage_alone():
    first = resolve_mufsht("paper", stages="search")
    assert (first.search, first.stages) == ("weights", "search")
    second = resolve_mufsht("paper", stages="tensor")
    assert (second.search, second.stages, second.rank) == ("off", "tensor", "row_norm")


@pytest.mark.parametrize(
    ("profile", "chosen", "sentence"),
    [
        ("robust", {}, "profile is 'robust'; allowed: 'gated', 'paper'."),
        (None, {"search": "swarm"}, "search is 'swarm'; allowed: 'off', 'keys', 'weights'."),
        (None, {"rank": "norm"}, "rank is 'norm'; allowed: 'gated_pivot', 'row_norm'."),
        (None, {"simplex": "both"}, "simplex is 'both'; allowed: 'view', 'sample', 'none'."),
        (
            None,
            {"weighting": "nmi"},
            "weighting is 'nmi'; allowed: 'softmax', 'linear', 'uniform'.",
        ),
        (None, {"stages": "one"}, "stages is 'one'; allowed: 'both', 'search', 'tensor'."),
        (None, {"ratio": 0.0}, "ratio is 0.0: give a number above 0 and at most 1."),
        (None, {"ratio": 1.5}, "ratio is 1.5: give a number above 0 and at most 1."),
        (None, {"agg_temp": 0.0}, "agg_temp is 0.0: give a number above 0."),
        (None, {"mix": -0.1}, "mix is -0.1: give a number at least 0 and at most 1."),
        (None, {"local_sweeps": 0}, "local_sweeps is 0: give a whole number, 1 or more."),
        (None, {"tau": -1.0}, "tau is -1.0: give a number at least 0."),
        (None, {"mu": float("nan")}, "mu is nan: give a number at least 0."),
        (None, {"text": "yes"}, "text is 'yes': give true or false."),
        (None, {"hcl": 1}, "hcl is 1: give true or false."),
        (
            None,
            {"stages": "search"},
            "stages is 'search' but search is 'off': without tensor learning only search = "
            "'weights' makes weights.",
        ),
        (
            None,
            {"stages": "tensor", "search": "keys"},
            "stages is 'tensor' but search is 'keys': leave one of them out, or use stages = "
            "'both'.",
        ),
        (
            None,
            {"acm": False},
            "acm is false but search is 'off': it is part of the search; leave it out or set "
            "search = 'weights'.",
        ),
        (
            "paper",
            {"stages": "tensor", "hcl": False},
            "hcl is false but search is 'off': it is part of the search; leave it out or set "
            "search = 'weights'.",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_sentence(profile, chosen, sentence):
    with pytest.raises(ConfigError) as caught:
        resolve_mufsht(profile, **chosen)
    assert str(caught.value) == sentence
