"""What both ends work out of a plan alone: grid, noise and cost."""

import math

import pytest

from configs.errors import ConfigError
from configs.plan import RunPlan
from privacy.accountant import gaussian_epsilon
from privacy.gaussian_noise import TAIL
from privacy.protection import cell_mass, cost_of, grid, heat_kernel_noise, update_noise

NAMES = ["a", "b", "c", "d"]
MASKED = {"secure_aggregation": True, "participants": NAMES}
GAUSSIAN = {"mechanism": "gaussian", "epsilon": 1.0}


def fedhk(privacy, *, rounds=10, **options):
    fields = {"method": "fedhk-mvfc", "n_clusters": 4, "max_rounds": rounds, "privacy": privacy}
    if privacy.get("mechanism") != "gaussian":
        fields["profile"] = "paper"
        options = {"acceleration": "none", **options}
    return RunPlan.parse({**fields, "fedhk": options})


def noisy(privacy=None, **options):
    return fedhk({**GAUSSIAN, **(privacy or {})}, **{"heat_kernel": "one", **options})


def selection(privacy):
    fields = {"method": "fed-mufsht", "n_clusters": 3, "max_rounds": 5, "privacy": privacy}
    return RunPlan.parse(fields)


def test_a_plan_without_a_mechanism_has_neither_noise_nor_cost():
    for plan in (fedhk({}), fedhk(MASKED)):
        assert heat_kernel_noise(plan, [2, 2]) is None
        assert update_noise(plan, 40) is None
        assert cost_of(plan, [2, 2]) is None


def test_the_grid_of_masked_sums_is_as_fine_as_the_ring_allows():
    plan = fedhk({**MASKED, "max_rows": 1000})
    codec = grid(plan, None)
    assert (codec.clip, codec.n_sites) == (1000.0, 4)
    # 4 * 1000 * 2^51 < 2^63 <= 4 * 1000 * 2^52
    assert codec.step == 2.0**-51


def test_noise_sets_the_grid_and_leaves_room_for_sites_that_nobody_named():
    masked, local = noisy(MASKED), noisy()
    for plan, n in ((masked, 4), (local, 1024)):
        noise = heat_kernel_noise(plan, [2, 2])
        assert grid(plan, noise) is noise.codec
        assert noise.codec.n_sites == n
    steps = [heat_kernel_noise(plan, [2, 2]).codec.step for plan in (masked, local)]
    assert steps[0] <= steps[1] < 1e-4


def test_how_many_sites_are_counted_on():
    dims = [2, 3]
    distributed = heat_kernel_noise(noisy(MASKED), dims)
    everyone = heat_kernel_noise(noisy({**MASKED, "tolerated_dropouts": 0}), dims)
    local = heat_kernel_noise(noisy({**MASKED, "noise": "local"}), dims)
    assert [n.honest_sites for n in (distributed, everyone, local)] == [2, 3, 1]
    assert distributed.epsilon_if_others_collude > distributed.epsilon
    assert local.epsilon_if_others_collude == local.epsilon


def test_masses_are_by_cell_where_coefficients_differ_by_cell():
    assert cell_mass(noisy(heat_kernel="one"), 2) == (False, False)
    assert cell_mass(noisy(heat_kernel="minmax"), 3) == (True, True, True)


@pytest.mark.parametrize("privacy", [{}, MASKED, {**MASKED, "noise": "local"}])
def test_the_cost_is_that_of_the_noise_and_of_all_rounds(privacy):
    plan = noisy(privacy, rounds=7)
    noise, cost = heat_kernel_noise(plan, [2, 2]), cost_of(plan, [2, 2])
    assert (cost.mechanism, cost.releases) == ("gaussian", 7)
    assert (cost.rho, cost.rho_if_others_collude) == (noise.rho, noise.rho_if_others_collude)
    assert cost.rho == pytest.approx(0.5 / noise.noise_multiplier**2)
    # seven releases are one Gaussian with mu^2 = 7 / z^2, of which the plan asks epsilon 1
    mu = math.sqrt(7) / noise.noise_multiplier
    assert 0.99 < gaussian_epsilon(1e-5, mu) <= 1.0
    assert cost.delta == TAIL * noise.blocks.size * noise.honest_sites


def test_noise_does_not_depend_on_how_many_numbers_are_sent_but_for_its_tail():
    plan = noisy()
    small, large = (cost_of(plan, dims) for dims in ([1], [40, 50]))
    assert small.rho == pytest.approx(large.rho, rel=1e-6)
    assert small.delta < large.delta < 1e-9


def test_a_selection_pays_for_a_site_and_not_for_a_patient():
    plan = selection({**GAUSSIAN, "clip": 0.5})
    noise, cost = update_noise(plan, 30), cost_of(plan, [10])
    assert (noise.blocks.unit, noise.max_rows, cost.releases) == ("one site", 1, 5)
    assert noise.sensitivity == 1.0
    assert cost.rho == noise.rho


def test_labels_pay_with_pure_epsilon():
    plan = RunPlan.parse(
        {
            "method": "tensor-fmvc",
            "n_clusters": 3,
            "privacy": {"mechanism": "randomised-response", "epsilon": 2.0},
        }
    )
    cost = cost_of(plan, [5])
    assert (cost.mechanism, cost.releases, cost.delta) == ("randomised-response", 1, 0.0)
    assert cost.rho == cost.rho_if_others_collude == 2.0


def test_the_papers_noise_guarantees_nothing_and_costs_nothing():
    plan = fedhk({"mechanism": "paper", "epsilon": 1.0}, aggregation="weighted", n_init=1)
    assert heat_kernel_noise(plan, [2, 2]) is None
    assert cost_of(plan, [2, 2]) is None


def test_sums_that_do_not_fit_the_ring_are_refused():
    plan = fedhk({**MASKED, "max_rows": 10**6})
    assert grid(plan, None).step == 2.0**-41
    with pytest.raises(ConfigError):
        heat_kernel_noise(noisy({"epsilon": 1e4, "max_rows": 10**9}), [2, 2])
