"""A site's own file."""

import pytest

from configs.errors import ConfigError
from configs.site import SiteConfig

MINIMAL = {"name": "st-anna", "data": {"ecg": "ecg.csv"}}


def test_everything_but_name_and_data_has_the_documented_default(tmp_path):
    (tmp_path / "site.toml").write_text('name = "st-anna"\n[data]\necg = "ecg.csv"\n')
    site = SiteConfig.load(tmp_path)
    assert site.data == {"ecg": "ecg.csv"}
    assert site.dialect.model_dump() == {
        "delimiter": ",",
        "decimal": ".",
        "encoding": "utf-8",
        "missing": ("", "NA", "NaN", "NULL", "?"),
    }
    assert site.policy.model_dump() == {
        "approval": "required",
        "require": (),
        "min_cohort": 50,
        "min_contributors": 3,
        "min_cell": 10,
        "epsilon_budget": 8.0,
        "delta_budget": 1e-4,
        "share_consistency": False,
        "share_labels": False,
        "cohort": "",
        "auto_runs_a_month": 100,
    }
    assert site.keys.model_dump() == {
        "identity": "state/identity.pem",
        "node": "state/node.key",
        "linkage": "state/linkage.key",
        "roster": "roster.json",
    }
    assert (site.device.device, site.device.dtype) == ("auto", "float64")


def test_file_round_trip(tmp_path):
    site = SiteConfig.parse(
        {
            **MINIMAL,
            "policy": {"approval": "auto", "require": ["dp"]},
            "dialect": {"delimiter": "\t"},
        }
    )
    site.dump(tmp_path)
    assert SiteConfig.load(tmp_path) == site


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "../x"}, "name is '../x'; allowed: 1 to 64 letters, digits"),
        ({"name": ""}, "name is ''; allowed: 1 to 64 letters, digits"),
        ({"data": {}}, "data is {}; allowed: a table of view = file, at least one."),
        ({"data": {"ecg": 1}}, "data.ecg is 1; allowed: a table of view = file"),
        ({"polcy": {}}, "site.toml: unknown key 'polcy': did you mean 'policy'?"),
        ({"min_cohort": 5}, "'min_cohort' belongs to table [policy]"),
        (
            {"policy": {"approval": "never"}},
            "policy.approval is 'never'; allowed: 'required', 'auto'",
        ),
        ({"policy": {"require": ["tls"]}}, "policy.require[0] is 'tls'; allowed: a list of"),
        (
            {"policy": {"min_cohort": 0}},
            "policy.min_cohort is 0; allowed: a whole number, 1 or more.",
        ),
        ({"dialect": {"delimiter": ";;"}}, "dialect.delimiter is ';;'; allowed: one character."),
        ({"dialect": {"decimal": ","}}, "dialect.delimiter and dialect.decimal are both ','"),
        ({"dialect": {"encoding": "utf9"}}, "dialect.encoding is 'utf9', which is no known text"),
        (
            {"dialect": {"encoding": "base64"}},
            "dialect.encoding is 'base64', which is no known text",
        ),
        ({"device": {"device": "gpu"}}, "device.device is 'gpu'; allowed: 'auto', 'cpu', 'cuda'"),
        (
            {"device": {"dtype": "float16"}},
            "device.dtype is 'float16'; allowed: 'float64', 'float32'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(changes, sentence):
    with pytest.raises(ConfigError) as caught:
        SiteConfig.parse({**MINIMAL, **changes})
    assert sentence in str(caught.value)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1"])
def test_documented_devices_are_taken(device):
    assert SiteConfig.parse({**MINIMAL, "device": {"device": device}}).device.device == device


def test_absent_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"site file 'site\.toml' does not exist"):
        SiteConfig.load(tmp_path)
