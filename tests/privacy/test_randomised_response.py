"""Labels by chance: exact odds, what is re-sent, and what a change gives away."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from configs.errors import ConfigError, ProtocolError
from privacy import randomised_response
from privacy.randomised_response import LabelRandomiser


def exact_probabilities(n_clusters, epsilon, monkeypatch):
    """P[answer | label] as fractions: the words that tell the truth, then the residues."""
    randomiser = LabelRandomiser(n_clusters, epsilon)
    drawn = {}

    def answer(label, chance, other):
        monkeypatch.setattr(
            randomised_response, "random_words", lambda n: np.array([chance, other], np.uint64)
        )
        return int(LabelRandomiser(n_clusters, epsilon).release(np.array([label]))[0])

    truthful = int(randomiser._truth_below)
    for label in range(n_clusters):
        # the edge is where it is said to be
        assert answer(label, truthful - 1, 0) == label
        assert answer(label, truthful, 0) != label
        table = [Fraction(0)] * n_clusters
        table[label] = Fraction(truthful, 2**64)
        for residue in range(n_clusters - 1):
            words = (2**64 - 1 - residue) // (n_clusters - 1) + 1
            table[answer(label, 2**64 - 1, residue)] += (1 - table[label]) * Fraction(words, 2**64)
        drawn[label] = table
    return drawn


@pytest.mark.parametrize("n_clusters", [2, 3, 7])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_odds_are_at_most_e_to_the_epsilon_and_reach_it(n_clusters, epsilon, monkeypatch):
    drawn = exact_probabilities(n_clusters, epsilon, monkeypatch)
    for table in drawn.values():
        assert sum(table) == 1
    odds = max(
        drawn[a][seen] / drawn[b][seen]
        for a, b, seen in product(range(n_clusters), range(n_clusters), range(n_clusters))
    )
    # below e^epsilon whatever way that was rounded
    limit = Fraction(math.exp(epsilon)) * (1 - Fraction(1, 10**15))
    assert limit * (1 - Fraction(1, 10**7)) < odds < limit


@pytest.mark.parametrize(("n_clusters", "epsilon"), [(2, 0.5), (4, 1.0), (5, 3.0)])
def test_the_odds_that_are_observed(n_clusters, epsilon):
    n = 100_000
    seen = np.array(
        [
            np.bincount(
                LabelRandomiser(n_clusters, epsilon).release(np.full(n, label)),
                minlength=n_clusters,
            )
            for label in range(n_clusters)
        ]
    )
    truth = math.exp(epsilon) / (math.exp(epsilon) + n_clusters - 1)
    other = (1 - truth) / (n_clusters - 1)
    expected = np.where(np.eye(n_clusters) == 1, truth, other) * n
    assert (np.abs(seen - expected) < 6 * np.sqrt(expected)).all()


def test_an_unchanged_label_gets_the_same_answer_and_a_changed_one_another_draw():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 10_000)
    randomiser = LabelRandomiser(4, 0.5)
    first = randomiser.release(labels)
    assert np.array_equal(randomiser.release(labels), first)
    changed = labels.copy()
    changed[:5_000] = (labels[:5_000] + 1) % 4
    second = randomiser.release(changed)
    assert np.array_equal(second[5_000:], first[5_000:])
    # independent of the first: truth .355, others .215 each
    same = (second[:5_000] == first[:5_000]).mean()
    assert same == pytest.approx(2 * 0.355 * 0.215 + 2 * 0.215**2, abs=0.03)


def test_a_change_can_be_seen():
    """Negative, and said in CHANGES_ARE_SEEN: only a changed label gets two answers."""
    constant, changing = LabelRandomiser(2, 0.1), LabelRandomiser(2, 0.1)
    zeros, ones = np.zeros(1000, np.int64), np.ones(1000, np.int64)
    assert np.array_equal(constant.release(zeros), constant.release(zeros))
    assert not np.array_equal(changing.release(zeros), changing.release(ones))
    assert "changed between two messages" in randomised_response.CHANGES_ARE_SEEN


def test_new_names_of_clusters_are_free():
    labels = np.random.default_rng(1).integers(0, 3, 500)
    names = np.array([2, 0, 1])
    randomiser = LabelRandomiser(3, 1.0)
    first = randomiser.release(labels)
    randomiser.rename(names)
    assert np.array_equal(randomiser.release(names[labels]), names[first])


def test_a_restarted_site_goes_on():
    labels = np.random.default_rng(2).integers(0, 3, 500)
    before = LabelRandomiser(3, 0.5)
    first = before.release(labels)
    after = LabelRandomiser(3, 0.5, before.labels, before.answers)
    assert np.array_equal(after.release(labels), first)


def test_what_is_returned_can_be_overwritten():
    labels = np.arange(4) % 2
    randomiser = LabelRandomiser(2, 1.0)
    answers = randomiser.release(labels)
    kept = answers.copy()
    answers[:] = 0
    labels[:] = 0
    assert np.array_equal(randomiser.answers, kept)
    assert randomiser.labels.tolist() == [0, 1, 0, 1]


def test_rows_never_change_within_a_run():
    randomiser = LabelRandomiser(2, 1.0)
    randomiser.release(np.zeros(3, np.int64))
    with pytest.raises(ProtocolError, match="4 labels are to be sent and the message before had 3"):
        randomiser.release(np.zeros(4, np.int64))


@pytest.mark.parametrize(
    ("n_clusters", "epsilon"), [(1, 1.0), (3, 0.0), (3, math.inf), (3, math.nan)]
)
def test_refusals(n_clusters, epsilon):
    with pytest.raises(ConfigError, match="randomised response with"):
        LabelRandomiser(n_clusters, epsilon)
