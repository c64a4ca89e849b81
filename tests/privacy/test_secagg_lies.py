"""Servers that lie: a property test over all that they may ask, and the lies one by one."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from benchmarks.trust_secure_sum import (
    lying_server,
    same_exchange_twice,
    two_broadcasts,
)
from privacy.secagg import SecureSumSite
from tests.privacy.lying_server import LyingServer


class ForgetfulSite(SecureSumSite):
    """Forgets which survivors it answered for: what a site without a vault would do."""

    def unmask(self, exchange, survivors):
        self._vault._database.execute("DELETE FROM records WHERE kind = 'answer'")
        return super().unmask(exchange, survivors)


class ForgetfulServer(LyingServer):
    site_type = ForgetfulSite


def test_no_lie_opens_a_site_or_leaves_out_too_many():
    row = lying_server(examples=25, steps=30)
    assert row.passed, row.figure


def test_the_property_test_finds_a_site_that_forgets_its_answers():
    budget = settings(
        max_examples=300,
        stateful_step_count=30,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        derandomize=True,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ForgetfulServer, settings=budget)


def test_two_broadcasts_give_a_uniform_sum():
    assert two_broadcasts(n_numbers=1024).passed


def test_one_exchange_is_answered_for_one_request():
    assert same_exchange_twice().passed
