"""Run plans: one canonical form, and one good sentence for everything that cannot run."""

import json
from pathlib import Path

import pydantic
import pytest

import configs
from configs.compatibility import refusal
from configs.errors import ConfigError
from configs.plan import RunPlan
from configs.plan_tables import FedHKOptions

MINIMAL = {"method": "fedhk-mvfc", "n_clusters": 4}
PRESETS = Path(configs.__file__).parent / "presets"


def parse(**changes):
    return RunPlan.parse({**MINIMAL, **changes}, source="plan.toml")


def test_defaults():
    plan = parse()
    assert (plan.profile, plan.max_rounds, plan.tol, plan.seed, plan.features) == (
        None,
        50,
        1e-6,
        0,
        "",
    )
    assert (plan.quorum.min_sites, plan.quorum.timeout_s, plan.quorum.on_missing) == (
        1,
        600.0,
        "stop",
    )
    assert plan.fedhk == FedHKOptions(
        n_init=5,
        anneal=False,
        local_iterations=5,
        aggregation="exact",
        init="kmeans",
        acceleration="anderson",
        encoding="float64",
        gamma=1.0,
        rho=1.0,
        nmi_temperature=0.5,
    )
    assert plan.privacy.secure_aggregation is False
    assert plan.privacy.mechanism == "none"


def test_dict_and_toml_are_the_same_thing(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(
        'n_clusters = 4\nmethod = "fedhk-mvfc"\n[fedhk]\naggregation = "weighted"\n'
        "[fedhk.local_clusters]\nst-anna = 2\n"
    )
    plan = RunPlan.load(file)
    assert plan == parse(fedhk={"aggregation": "weighted", "local_clusters": {"st-anna": 2}})
    assert plan == RunPlan.model_validate(json.loads(plan.canonical()))


def test_plan_id_depends_on_content_only():
    assert parse().plan_id == parse(seed=0, tol=1e-6, fedhk={"gamma": 1}).plan_id
    assert parse().plan_id != parse(seed=1).plan_id
    assert len(parse().plan_id) == 64


def test_settings_follow_profile_and_explicit_values():
    assert parse().settings(4).heat_kernel == "one"
    assert parse(profile="paper").settings(4).heat_kernel == "minmax"
    assert parse(fedhk={"bandwidth": "auto"}).settings(4).fuzzifier == 2.0
    assert parse(fedhk={"n_init": 7}).settings(4).n_init == 7


PROFILES = {"gated", "paper", "plus", "robust"}


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_presets_run_the_profile_of_their_name(profile):
    assert RunPlan.load(PRESETS / f"{profile}.toml").profile == profile


def test_the_hospital_preset_has_masks_and_noise():
    hospital = RunPlan.load(PRESETS / "hospital.toml")
    assert hospital.privacy.secure_aggregation
    assert (hospital.privacy.mechanism, hospital.privacy.epsilon) == ("gaussian", 1.0)
    assert hospital.secure_terms().tolerated_dropouts == 1


def test_there_are_presets():
    assert {path.stem for path in PRESETS.glob("*.toml")} == PROFILES | {"hospital"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_cluster": 3}, "plan.toml: unknown key 'n_cluster': did you mean 'n_clusters'?"),
        (
            {"fedhk": {"fuzzifer": 2.0}},
            "plan.toml: unknown key 'fedhk.fuzzifer': did you mean 'fuzzifier'?",
        ),
        (
            {"aggregation": "exact"},
            "plan.toml: unknown key 'aggregation': 'aggregation' belongs to table [fedhk].",
        ),
        (
            {"quorum": {"seed": 1}},
            "plan.toml: unknown key 'quorum.seed': 'seed' belongs at the top of the file, before "
            "the first table.",
        ),
        (
            {"privacy": {"zzz": 1}},
            "plan.toml: unknown key 'privacy.zzz': known keys: secure_aggregation, "
            "participants, colluders, tolerated_dropouts, threshold, spare_exchanges, max_rows, "
            "min_contributors, mechanism, epsilon, delta, noise, clip.",
        ),
        (
            {"fedhk": {"view_exponent": 2000.0}},
            "plan.toml: fedhk.view_exponent is 2000.0; allowed: a number above 1 and at most 100.",
        ),
        (
            {"fedhk": {"fuzzifier": 101}},
            "plan.toml: fedhk.fuzzifier is 101; allowed: a number above 1 and at most 100.",
        ),
        ({"n_clusters": 0}, "plan.toml: n_clusters is 0; allowed: a whole number, 1 or more."),
        ({"n_clusters": "4"}, "plan.toml: n_clusters is '4'; allowed: a whole number, 1 or more."),
        (
            {"n_clusters": True},
            "plan.toml: n_clusters is true; allowed: a whole number, 1 or more.",
        ),
        (
            {"method": "k-means"},
            "plan.toml: method is 'k-means'; allowed: 'fedhk-mvfc', 'tensor-fmvc', 'fed-mufsht'.",
        ),
        ({"tol": float("nan")}, "plan.toml: tol is nan; allowed: a number, 0 or more."),
        ({"fedhk": 3}, "plan.toml: fedhk is 3; allowed: a table."),
        (
            {"fedhk": {"fuzzifier": 1.0}},
            "plan.toml: fedhk.fuzzifier is 1.0; allowed: a number above 1 and at most 100.",
        ),
        (
            {"fedhk": {"view_exponent": 1}},
            "plan.toml: fedhk.view_exponent is 1; allowed: a number above 1 and at most 100.",
        ),
        (
            {"fedhk": {"bandwidth": -1.0}},
            "plan.toml: fedhk.bandwidth is -1.0; allowed: a number above 0, or 'auto'.",
        ),
        (
            {"fedhk": {"bandwidth": "wide"}},
            "plan.toml: fedhk.bandwidth is 'wide'; allowed: a number above 0, or 'auto'.",
        ),
        (
            {"fedhk": {"gamma": 1.5}},
            "plan.toml: fedhk.gamma is 1.5; allowed: a number from 0 to 1, or 'adaptive'.",
        ),
        (
            {"fedhk": {"aggregation": "mean"}},
            "plan.toml: fedhk.aggregation is 'mean'; allowed: 'exact', 'weighted', 'fedavg', "
            "'median', 'quality', 'nmi_softmax'.",
        ),
        (
            {"fedhk": {"local_iterations": 1001}},
            "plan.toml: fedhk.local_iterations is 1001; allowed: a whole number from 1 to 1000.",
        ),
        (
            {"fedhk": {"local_clusters": {"a": 2}}},
            "a site's own cluster count needs an averaging aggregation",
        ),
        (
            {"fedhk": {"aggregation": "weighted", "local_clusters": {"a": 5}}},
            "plan.toml: fedhk.local_clusters.a is 5 but n_clusters is 4",
        ),
        (
            {"fedhk": {"aggregation": "weighted", "local_clusters": {"a": 0}}},
            "plan.toml: fedhk.local_clusters.a is 0; allowed: a table of site = whole number, 1 or "
            "more.",
        ),
        (
            {"fedhk": {"aggregation": "median", "encoding": "int8"}},
            "difference coding exists for 'exact' only",
        ),
        (
            {"profile": "robust", "fedhk": {"scaling": "none"}},
            'plan.toml: profile "robust" sets scaling itself',
        ),
        ({"features": 3}, "plan.toml: features is 3; allowed: '' or 'RUN_ID@RATIO'."),
        ({"features": "run@0.4"}, "plan.toml: features is 'run@0.4': give '' or 'RUN_ID@RATIO'"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(changes, sentence):
    with pytest.raises(ConfigError) as caught:
        parse(**changes)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_key_is_named():
    with pytest.raises(ConfigError, match=r"^plan: 'n_clusters' is missing: add it"):
        RunPlan.parse({"method": "fedhk-mvfc"})


def test_model_validate_raises_pydantics_own_error():
    with pytest.raises(pydantic.ValidationError):
        RunPlan.model_validate({**MINIMAL, "n_clusters": 0})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"n_clusters = \n", "plan 'plan.toml' is not valid TOML: "),
        (b"n_clusters = " + 5000 * b"1", "plan 'plan.toml' is not valid TOML: "),
        (b"x = " + 5000 * b"[", "plan 'plan.toml' is not valid TOML: "),
        (b"\xff\xfe", "plan 'plan.toml' is not UTF-8 text (byte 0)"),
        (b"", "plan.toml: 'method' is missing"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, sentence):
    file = tmp_path / "plan.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        RunPlan.load(file)
    assert sentence in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("path", ["absent.toml", "."])
def test_an_unreadable_file_is_a_config_error(tmp_path, path):
    with pytest.raises(ConfigError, match=r"does not exist|cannot be read"):
        RunPlan.load(tmp_path / path)


@pytest.mark.parametrize("aggregation", ["median", "quality"])
def test_single_updates_and_secure_aggregation_exclude_each_other(aggregation):
    reason = refusal("fedhk-mvfc", aggregation, secure_aggregation=True, mechanism="none")
    assert reason.startswith(f'aggregation = "{aggregation}" needs the update of every single site')


@pytest.mark.parametrize("aggregation", ["weighted", "fedavg", "median", "quality", "nmi_softmax"])
def test_averaged_centres_have_no_patient_level_privacy(aggregation):
    reason = refusal("fedhk-mvfc", aggregation, secure_aggregation=False, mechanism="gaussian")
    assert "unbounded sensitivity" in reason


def test_plain_runs_are_compatible():
    assert refusal("fedhk-mvfc", "median", secure_aggregation=False, mechanism="none") is None


# -- tensor-fmvc -------------------------------------------------------------------------------


def tensor(**changes):
    return RunPlan.parse({"method": "tensor-fmvc", "n_clusters": 4, **changes}, source="plan.toml")


def test_tensor_defaults():
    plan = tensor()
    settings = plan.tensor_settings()
    assert plan.max_rounds == 150
    assert (plan.tensor.min_overlap, plan.tensor.link_cost) == (50, 12)
    assert (settings.profile, settings.orientation, settings.z_encoding) == (
        "plus",
        "unfold",
        "int8",
    )
    assert (settings.kappa, settings.mu0, settings.mu_growth, settings.balance) == (
        0.4,
        1.0,
        1.05,
        0.1,
    )


def test_the_paper_profile_runs_along_the_samples():
    settings = tensor(profile="paper", tensor={"lambda": 10.0}).tensor_settings()
    assert (settings.orientation, settings.mu0, settings.mu_growth) == ("sample", 1e-4, 1.1)
    assert (settings.lam, settings.omega, settings.gst_iterations) == (10.0, 0.01, 4)


def test_a_plan_holds_its_own_methods_table_only():
    assert '"lambda"' in tensor().canonical()
    assert '"fedhk"' not in tensor().canonical()
    assert '"tensor"' not in parse().canonical()
    assert RunPlan.parse(json.loads(tensor().canonical())) == tensor()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_clusters": 1}, "n_clusters is 1: method 'tensor-fmvc' needs at least 2 clusters"),
        ({"fedhk": {}}, "table [fedhk] belongs to method 'fedhk-mvfc'"),
        ({"profile": "robust"}, "profile is 'robust'; allowed: 'plus', 'paper' (or leave"),
        ({"profile": "consensus"}, "profile 'consensus' is not available in this version"),
        ({"tensor": {"p": 0.0}}, "tensor.p is 0.0; allowed: a number above 0 and at most 1"),
        ({"tensor": {"lambda": 2.0}}, "lambda belongs to profile 'paper'; 'plus' has kappa"),
        ({"tensor": {"lambda": -2.0}}, "tensor.lambda is -2.0; allowed: a number above 0"),
        ({"tensor": {"lamda": 2.0}}, "unknown key 'tensor.lamda': did you mean 'lambda'?"),
        ({"profile": "paper", "tensor": {"kappa": 0.3}}, "kappa belongs to profile 'plus'"),
        ({"tensor": {"orientation": "rows"}}, "tensor.orientation is 'rows'; allowed: 'sample'"),
        ({"tensor": {"link_cost": 0}}, "tensor.link_cost is 0; allowed: a whole number from 1"),
        ({"tensor": {"link_cost": 17}}, "tensor.link_cost is 17; allowed: a whole number from 1"),
        ({"tensor": {"anchors": 3}}, "tensor.anchors is 3 but n_clusters is 4"),
        ({"privacy": {"secure_aggregation": True}}, "needs one label a row from every single site"),
        ({"privacy": {"mechanism": "gaussian"}}, "label privacy only"),
        (
            {"privacy": {"mechanism": "randomised-response"}},
            "privacy.mechanism is 'randomised-response' but privacy.epsilon is missing",
        ),
    ],
)
def test_a_tensor_plan_that_cannot_run_is_refused_in_one_sentence(changes, sentence):
    with pytest.raises(ConfigError) as caught:
        tensor(**changes)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("plan.toml: ")


# -- fed-mufsht --------------------------------------------------------------------------------


def mufsht(**changes):
    return RunPlan.parse({"method": "fed-mufsht", "n_clusters": 4, **changes}, source="plan.toml")


def test_mufsht_defaults():
    plan = mufsht()
    settings = plan.mufsht_settings()
    assert (plan.max_rounds, plan.tol) == (5, 1e-3)
    assert (settings.profile, settings.search, settings.rank) == ("gated", "off", "gated_pivot")
    assert (settings.ratio, settings.agg_temp, settings.mix, settings.local_sweeps) == (
        0.4,
        0.1,
        0.5,
        8,
    )


def test_a_mufsht_plan_holds_its_own_table_only():
    plan = mufsht(mufsht={"ratio": 0.2})
    assert '"mufsht"' in plan.canonical()
    assert '"fedhk"' not in plan.canonical()
    assert '"mufsht"' not in parse().canonical()
    assert RunPlan.parse(json.loads(plan.canonical())) == plan


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_clusters": 1}, "n_clusters is 1: method 'fed-mufsht' needs at least 2 clusters"),
        ({"tensor": {}}, "table [tensor] belongs to method 'tensor-fmvc' but method is 'fed-mu"),
        ({"profile": "robust"}, "profile is 'robust'; allowed: 'gated', 'paper' (or leave"),
        ({"mufsht": {"ratio": 0}}, "mufsht.ratio is 0; allowed: a number above 0 and at most 1."),
        ({"mufsht": {"ratio": 1.1}}, "mufsht.ratio is 1.1; allowed: a number above 0 and at most"),
        ({"mufsht": {"agg_temp": 0.0}}, "mufsht.agg_temp is 0.0; allowed: a number above 0."),
        ({"mufsht": {"mix": 1.5}}, "mufsht.mix is 1.5; allowed: a number from 0 to 1."),
        ({"mufsht": {"tau": float("inf")}}, "mufsht.tau is inf; allowed: a number, 0 or more."),
        ({"mufsht": {"search": "swarm"}}, "mufsht.search is 'swarm'; allowed: 'off', 'keys', 'we"),
        (
            {"mufsht": {"search": None, "stages": "search"}},
            "stages is 'search' but search is 'off'",
        ),
        ({"mufsht": {"hcl": False}}, "hcl is false but search is 'off': it is part of the search"),
        ({"mufsht": {"text": 1}}, "mufsht.text is 1; allowed: true or false."),
        ({"features": "1234abcd@0.4"}, "a selection of a selection is not made"),
        ({"privacy": {"secure_aggregation": True}}, "privacy.participants is empty: list the na"),
        ({"privacy": {"mechanism": "gaussian", "epsilon": 8.0}}, "privacy.clip is missing: say"),
        ({"privacy": {"mechanism": "randomised-response"}}, "protects labels and method = "),
        ({"privacy": {"mechanism": "paper"}}, "scales its noise to the largest update"),
    ],
)
def test_a_mufsht_plan_that_cannot_run_is_refused_in_one_sentence(changes, sentence):
    with pytest.raises(ConfigError) as caught:
        mufsht(**changes)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("plan.toml: ")
    assert "\n" not in str(caught.value)


def test_a_selection_with_masks_exists_and_one_with_the_papers_noise_does_not():
    reason = refusal("fed-mufsht", "exact", secure_aggregation=True, mechanism="paper")
    assert "it would guarantee nothing" in reason
    assert refusal("fed-mufsht", "exact", secure_aggregation=True, mechanism="gaussian") is None
