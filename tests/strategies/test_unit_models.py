import numpy as np
import pytest

from strategies.messages import LocalModelReply
from strategies.unit_models import model_sizes, pack_local_model, unpack_local_models
from strategies.unit_sums import HeatKernelUnits, declared_scaling

BOUNDS = [np.array([[0.0, 2.0]]), np.array([[0.0, 1.0], [0.0, 4.0]])]
UNITS = HeatKernelUnits(
    [declared_scaling(b, "one") for b in BOUNDS], BOUNDS, "one", [False, False], imputed=True
)


def reply(n_rows, centers, weights, objective):
    """Return a model of one start and one cluster."""
    one = np.ones(1)
    return LocalModelReply(
        "run", 1, n_rows, tuple(np.array([[a]]) for a in centers), np.array([weights]),
        np.array([objective]), one, one,
    )  # fmt: skip


SMALL = reply(10, ([0.2], [0.1, 1.0]), [0.25, 0.75], 4.0)
LARGE = reply(30, ([0.6], [0.5, 0.0]), [0.75, 0.25], 8.0)


def total_of(aggregation, *sites):
    parts = [pack_local_model(model, UNITS, np.array(held), aggregation) for model, held in sites]
    return unpack_local_models(sum(parts), UNITS, 1, 1)


def test_a_model_has_centres_shares_weights_and_objective():
    assert model_sizes(UNITS, 2, 3) == [6, 12, 4, 2, 2]
    packed = pack_local_model(SMALL, UNITS, np.array([True, False]), "weighted")
    # places -.3; view lacking; shares; weights; objective
    np.testing.assert_allclose(packed, [-3.0, 0.0, 0.0, 2.5, 0.0, 10.0, 0.0, 4.0])
    assert packed.size == sum(model_sizes(UNITS, 1, 1))


@pytest.mark.parametrize(
    ("aggregation", "first", "shares"), [("weighted", 0.5, 0.625), ("fedavg", 0.4, 0.5)]
)
def test_a_mean_counts_records_or_sites(aggregation, first, shares):
    both = [True, True]
    found = total_of(aggregation, (SMALL, both), (LARGE, both))
    assert found.centers[0].ravel().tolist() == pytest.approx([first])
    assert found.view_weights[0, 0] == pytest.approx(shares)
    assert found.objective.tolist() == [12.0]
    assert found.held.all()


def test_a_view_counts_only_where_a_site_holds_it():
    found = total_of("weighted", (SMALL, [True, True]), (LARGE, [True, False]))
    assert found.centers[1].ravel().tolist() == pytest.approx([0.1, 1.0])
    assert found.view_weights[0].tolist() == pytest.approx([0.625, 0.75])
    nobody = total_of("fedavg", (SMALL, [True, False]), (LARGE, [True, False]))
    assert nobody.held.tolist() == [True, False]


def test_a_site_counts_at_most_its_records():
    far = reply(10, ([9.0], [-9.0, 0.5]), [0.5, 0.5], 10.0)
    packed = pack_local_model(far, UNITS, np.array([True, True]), "weighted")
    assert np.abs(packed).max() == 10.0
    assert packed[:2].tolist() == [5.0, -5.0]


def test_what_masks_round_off_changes_no_weight():
    parts = pack_local_model(SMALL, UNITS, np.array([True, True]), "weighted")
    found = unpack_local_models(parts + 1e-9, UNITS, 1, 1)
    assert found.centers[0].ravel().tolist() == pytest.approx([0.2], abs=1e-9)
