"""Which numbers a profile stands for."""

import math

import pytest

from configs.errors import ConfigError
from configs.profiles import HeatKernelSettings, resolve_heat_kernel

PAPER = HeatKernelSettings(2.0, 5.0, "minmax", "minmax", 1.0, 5, False)


def test_paper_profile_is_the_papers():
    assert resolve_heat_kernel("paper", 40) == PAPER


@pytest.mark.parametrize("profile", [None, "robust"])
@pytest.mark.parametrize(("n_columns", "fuzzifier"), [(4, 2.0), (10, 2.0), (11, 1.1), (400, 1.1)])
def test_robust_is_the_default_and_its_fuzzifier_follows_the_columns(profile, n_columns, fuzzifier):
    settings = resolve_heat_kernel(profile, n_columns)
    assert settings == HeatKernelSettings(fuzzifier, 5.0, "one", "standard", "auto", 5, True)


@pytest.mark.parametrize("profile", [None, "paper"])
@pytest.mark.parametrize(
    "given",
    [
        {"fuzzifier": 1.3},
        {"view_exponent": 2},
        {"heat_kernel": "absdev"},
        {"scaling": "none"},
        {"bandwidth": "auto"},
    ],
)
def test_one_explicit_value_takes_the_rest_from_the_paper(profile, given):
    settings = resolve_heat_kernel(profile, 40, **given)
    (name, value) = next(iter(given.items()))
    assert getattr(settings, name) == value
    for other in {"fuzzifier", "view_exponent", "heat_kernel", "scaling", "bandwidth"} - {name}:
        assert getattr(settings, other) == getattr(PAPER, other)


def test_plain_run_anneals_only_on_demand():
    assert resolve_heat_kernel(None, 4, fuzzifier=2.0).anneal is False
    assert resolve_heat_kernel(None, 4, fuzzifier=2.0, anneal=True).anneal is True
    assert resolve_heat_kernel("paper", 4, n_init=3, anneal=True).n_init == 3


@pytest.mark.parametrize(
    "given",
    [
        {"fuzzifier": 2.0},
        {"view_exponent": 5.0},
        {"heat_kernel": "one"},
        {"scaling": "standard"},
        {"bandwidth": "auto"},
    ],
)
def test_robust_refuses_explicit_values(given):
    with pytest.raises(ConfigError, match=f'"robust" sets {next(iter(given))} itself: leave out'):
        resolve_heat_kernel("robust", 4, **given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"fuzzifier": 1.0}, "fuzzifier is 1.0: give a finite number above 1"),
        ({"fuzzifier": math.inf}, "fuzzifier is inf"),
        ({"fuzzifier": "2"}, "fuzzifier is '2'"),
        ({"view_exponent": 0.5}, "view_exponent is 0.5: give a finite number above 1"),
        ({"fuzzifier": 100.5}, "fuzzifier is 100.5: give at most 100 (2.0 is the paper's value)"),
        ({"view_exponent": 2000}, "view_exponent is 2000: give at most 100 (5.0 is the paper's"),
        ({"bandwidth": 0.0}, "bandwidth is 0.0: give a finite number above 0"),
        ({"bandwidth": math.nan}, "bandwidth is nan"),
        ({"bandwidth": "wide"}, "bandwidth is 'wide'"),
        ({"n_init": 0}, "n_init is 0: give a whole number of starts, 1 or more"),
        ({"n_init": 2.5}, "n_init is 2.5"),
        ({"heat_kernel": "gauss"}, "heat_kernel is 'gauss'; allowed: 'minmax', 'absdev', 'one'"),
        ({"scaling": "log"}, "scaling is 'log'; allowed: 'minmax', 'standard', 'none'"),
    ],
)
def test_out_of_range_values_are_refused_by_name(given, sentence):
    with pytest.raises(ConfigError) as caught:
        resolve_heat_kernel(None, 4, **given)
    assert sentence in str(caught.value)


def test_unknown_profile_is_refused():
    with pytest.raises(ConfigError, match="profile is 'best'; allowed: 'robust', 'paper'"):
        resolve_heat_kernel("best", 4)
