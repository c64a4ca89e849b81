"""A server's certificate, clock and reachability, told apart before Flower is started."""

import socket
from datetime import UTC, datetime, timedelta

import pytest

from configs.endpoint import (
    CertificateFacts,
    Unreachable,
    check_clock,
    reach,
    read_certificate,
)
from configs.errors import ConfigError, TransportError
from tests.transport.kits import answering, days_ago, make_kits


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return make_kits(tmp_path_factory.mktemp("kits") / "kits")


def test_a_server_with_its_certificate_and_its_clock(kits):
    with answering(kits / "server") as server:
        reached = reach(server, kits / "st-anna" / "ca.crt")

    assert f"{reached.host}:{reached.port}" == server
    assert set(reached.certificate.names) == {"127.0.0.1", "::1", "localhost"}
    assert reached.certificate.days_left == 364
    assert abs(reached.ahead_s) < 2


@pytest.mark.parametrize("clock_s", [-600.0, 600.0])
def test_the_servers_clock_is_measured(kits, clock_s):
    with answering(kits / "server", clock_s=clock_s) as server:
        reached = reach(server, kits / "server" / "ca.crt")

    assert abs(reached.ahead_s + clock_s) < 2


def test_an_answer_without_a_date_measures_nothing(kits):
    with answering(kits / "server", dated=False) as server:
        assert reach(server, kits / "server" / "ca.crt").ahead_s is None


@pytest.mark.parametrize(
    ("ahead_s", "sentence"),
    [
        (600.0, "is 600 s ahead of the server's at here:1, which takes at most 5 s"),
        (-600.0, "is 600 s behind the server's at here:1, which takes at most 305 s"),
        (6.5, "is 6 s ahead of"),
    ],
)
def test_a_clock_that_is_off_is_refused_with_both_numbers(ahead_s, sentence):
    with pytest.raises(TransportError, match=sentence):
        check_clock(ahead_s, "here:1")


@pytest.mark.parametrize("ahead_s", [0.0, 5.0, -300.0])
def test_a_clock_that_flower_takes_is_let_through(ahead_s):
    check_clock(ahead_s, "here:1")


def test_a_certificate_of_another_authority(kits, tmp_path):
    others = make_kits(tmp_path / "others")

    with (
        answering(others / "server") as server,
        pytest.raises(TransportError, match=r"did not sign for '127\.0\.0\.1'") as caught,
    ):
        reach(server, kits / "server" / "ca.crt")

    assert str(tmp_path) not in caught.value.public_message


def test_an_expired_certificate_names_its_end_and_this_clock(tmp_path):
    kits = make_kits(tmp_path / "kits", days=1, made=days_ago(3))
    ended = (datetime.now(UTC) - timedelta(days=2)).strftime("%Y-%m-%d")

    with (
        answering(kits / "server") as server,
        pytest.raises(TransportError, match=rf"has expired on {ended} .* clock says 20"),
    ):
        reach(server, kits / "server" / "ca.crt")


def test_a_certificate_of_tomorrow_is_not_valid_yet(tmp_path):
    kits = make_kits(tmp_path / "kits", made=days_ago(-2))

    with (
        answering(kits / "server") as server,
        pytest.raises(TransportError, match=r"is not valid before \d{4}-.* clock says"),
    ):
        reach(server, kits / "server" / "ca.crt")


def test_a_certificate_for_another_name_tells_its_names(kits):
    with (
        answering(kits / "server", host="127.0.0.2") as server,
        pytest.raises(TransportError, match=r"is for .*localhost.* and not for '127\.0\.0\.2'"),
    ):
        reach(server, kits / "server" / "ca.crt")


@pytest.fixture
def plain_server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_nobody_there_may_pass(kits):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{probe.getsockname()[1]}"

    with pytest.raises(Unreachable, match=f"at {server} does not answer .*Connection refused"):
        reach(server, kits / "server" / "ca.crt")


def test_a_mute_server_is_given_up_in_time(kits, plain_server):
    server = f"127.0.0.1:{plain_server.getsockname()[1]}"

    with pytest.raises(Unreachable, match="no answer in time"):
        reach(server, kits / "server" / "ca.crt", timeout_s=0.2)


def test_a_proxy_of_the_house_is_used_unless_told_otherwise(kits, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with answering(kits / "server") as server:
        with pytest.raises(Unreachable):
            reach(server, kits / "server" / "ca.crt")
        reach(server, kits / "server" / "ca.crt", direct=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1080"),
        ("https_proxy", "ftp://127.0.0.1:1"),
        ("HTTPS_PROXY", "http://127.0.0.1:x"),
        ("HTTP_PROXY", "ftp://127.0.0.1:1"),
        ("HTTPS_PROXY", "http://proxy..example.org:3128"),
        ("NO_PROXY", "http://127.0.0.1:x"),
    ],
)
def test_a_proxy_that_is_none_is_a_setting_and_no_defect(kits, monkeypatch, name, value):
    """Each of them was an internal error (70) once."""
    for known in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(known, raising=False)
        monkeypatch.delenv(known.lower(), raising=False)
    monkeypatch.setenv(name, value)

    with pytest.raises(ConfigError) as caught:
        reach("127.0.0.1:1", kits / "server" / "ca.crt")

    assert f"the proxy settings of this environment ({name}) cannot" in caught.value.public_message
    assert value not in caught.value.public_message


@pytest.mark.parametrize("host", ["xn--zz--a", "½.example.org"])
@pytest.mark.parametrize("direct", [False, True])
def test_a_host_that_httpx_does_not_take_is_an_address_that_cannot_be_used(
    kits, monkeypatch, host, direct
):
    for known in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(known, raising=False)
        monkeypatch.delenv(known.lower(), raising=False)
    if direct:
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")

    with pytest.raises(ConfigError, match=f"address '{host}:8443' cannot be used"):
        reach(f"{host}:8443", kits / "server" / "ca.crt", direct=direct)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_unusable_ca_is_named(tmp_path, content):
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_text(content)

    with pytest.raises(ConfigError, match=r"'ca\.crt' cannot be read as PEM"):
        reach("localhost:1", path)
    with pytest.raises(ConfigError, match=r"CA certificate 'ca\.crt'"):
        read_certificate(path, "CA certificate")


def test_days_left_are_negative_from_the_first_minute_on():
    now = datetime.now(UTC)

    assert CertificateFacts((), now, now - timedelta(minutes=1)).days_left == -1
    assert CertificateFacts((), now, now + timedelta(hours=23)).days_left == 0
