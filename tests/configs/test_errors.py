"""The exit codes that users and scripts rely on."""

import pickle

import pytest

from configs import errors

CODES = {
    "ConfigError": 2,
    "DataRefused": 3,
    "PolicyRefused": 4,
    "BudgetExceeded": 5,
    "QuorumLost": 6,
    "TransportError": 7,
    "ProtocolError": 8,
    "InternalError": 70,
}


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_exit_codes_are_the_documented_ones(name, code):
    error = getattr(errors, name)
    assert error.code == code
    assert errors.error_for_code(code) is error
    assert issubclass(error, errors.FedMVCError)


def test_exported_members():
    assert set(errors.__all__) == {*CODES, "FedMVCError", "INTERRUPTED", "error_for_code"}


def test_foreign_code_is_an_internal_error():
    assert errors.error_for_code(99) is errors.InternalError


def test_text_is_the_public_message_only():
    error = errors.DataRefused("view 'ecg' is empty.", local_detail="/data/ecg.csv")
    assert str(error) == error.public_message == "view 'ecg' is empty."
    assert error.local_detail == "/data/ecg.csv"


def test_survives_a_process_boundary():
    error = pickle.loads(pickle.dumps(errors.QuorumLost("2 of 3.", local_detail="x")))
    assert (type(error), str(error), error.local_detail) == (errors.QuorumLost, "2 of 3.", "x")
