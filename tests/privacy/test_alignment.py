"""Tokens of ids, the key they need, and the rows that several sites share."""

import hashlib
import hmac
import logging
import os
import stat
import time

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError, DataRefused, ProtocolError
from privacy import alignment
from privacy.alignment import (
    ID_RULES,
    intersect,
    link_tokens,
    make_linkage_key,
    normalise_id,
    ranked,
    read_linkage_key,
)

KEY = bytes(range(32))
IDS = ["007", "7", "ab-12", "zoë", "x" * 300]


def link(ids, **change):
    options = {"rule": "trim", "key": KEY, "plan_id": "plan", "cost": 1, "site": "st-anna"}
    return link_tokens(ids, **{**options, **change})


def rows(tokens):
    return {bytes(row) for row in tokens}


def sorted_tokens(*texts):
    """Literal tokens, each text padded by zero bytes."""
    padded = sorted(text.encode().ljust(16, b"\0") for text in texts)
    return np.frombuffer(b"".join(padded), np.uint8).reshape(-1, 16)


# --- normalisation ---


@pytest.mark.parametrize(
    ("text", "exact", "trim", "upper", "alphanumeric"),
    [
        ("007", "007", "007", "007", "007"),
        (" ab-12 ", " ab-12 ", "ab-12", "AB-12", "AB12"),
        ("００７", "００７", "007", "007", "007"),  # full-width digits
        ("zoe\u0308", "zoe\u0308", "zoë", "ZOË", "ZOË"),  # e and a combining diaeresis
        ("a\u00a0b\u00a0", "a\u00a0b\u00a0", "a b", "A B", "AB"),  # no-break spaces
        ("straße", "straße", "straße", "STRASSE", "STRASSE"),
        ("--", "--", "--", "--", ""),
    ],
)
def test_each_rule(text, exact, trim, upper, alphanumeric):
    found = {rule: normalise_id(text, rule) for rule in ID_RULES}
    expected = {"exact": exact, "trim": trim, "upper": upper, "alphanumeric": alphanumeric}
    assert found == expected


@given(st.text(), st.sampled_from(ID_RULES))
def test_a_normalised_id_stays(text, rule):
    once = normalise_id(text, rule)
    assert normalise_id(once, rule) == once


@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from(ID_RULES))
def test_leading_zeros_tell_patients_apart(number, zeros, rule):
    assert normalise_id("0" * zeros + str(number), rule) == "0" * zeros + str(number)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ConfigError, match="id_rule is 'lower'; allowed: 'exact', 'trim', 'upper'"):
        normalise_id("a", "lower")


# --- tokens ---


def hkdf_sha256(secret, info, length, salt=b""):
    """RFC 5869 as it is written there."""
    pseudo_random = hmac.digest(salt or bytes(32), secret, "sha256")
    out, block, counter = b"", b"", 1
    while len(out) < length:
        block = hmac.digest(pseudo_random, block + info + bytes([counter]), "sha256")
        out, counter = out + block, counter + 1
    return out[:length]


def slow_token(text, rule, key, plan_id, cost):
    """Make a token from the standard library alone."""
    info = b"".join(
        len(field).to_bytes(2, "big") + field
        for field in (b"fedmvc link", plan_id.encode(), rule.encode())
    )
    salt = hkdf_sha256(key, info, 32)
    return hashlib.scrypt(
        normalise_id(text, rule).encode(), salt=salt, n=2**cost, r=8, p=1, dklen=16
    )


RFC_5869 = [
    # A.1 and A.3
    (
        bytes([0x0B] * 22),
        bytes(range(13)),
        bytes(range(0xF0, 0xFA)),
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    (
        bytes([0x0B] * 22),
        b"",
        b"",
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
]


@pytest.mark.parametrize(("secret", "salt", "info", "expected"), RFC_5869)
def test_hkdf_knows_the_answers_of_rfc_5869(secret, salt, info, expected):
    ours = HKDF(hashes.SHA256(), length=42, salt=salt or None, info=info).derive(secret)
    assert ours.hex() == hkdf_sha256(secret, info, 42, salt).hex() == expected


@pytest.mark.parametrize(
    ("secret", "salt", "n", "r", "p", "begins"),
    [
        (b"", b"", 16, 1, 1, "77d6576238657b203b19ca42c18a0497f16b4844e3074ae8dfdffa3fede21442"),
        (b"password", b"NaCl", 1024, 8, 16, "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77"),
        (
            b"pleaseletmein",
            b"SodiumChloride",
            16384,
            8,
            1,
            "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2",
        ),
    ],
)
def test_scrypt_knows_the_answers_of_rfc_7914(secret, salt, n, r, p, begins):
    assert Scrypt(salt=salt, length=64, n=n, r=r, p=p).derive(secret).hex().startswith(begins)


@pytest.mark.parametrize("rule", ID_RULES)
@pytest.mark.parametrize("cost", [1, 6])
def test_tokens_equal_the_standard_librarys(rule, cost):
    tokens, order = link(IDS, rule=rule, cost=cost)

    for token, row in zip(tokens, order, strict=True):
        assert bytes(token) == slow_token(IDS[row], rule, KEY, "plan", cost)
    assert sorted(order.tolist()) == list(range(len(IDS)))


def test_a_token_never_changes():
    # two sites may run different versions of this software
    tokens, _ = link(["0042"], plan_id="ab" * 32, cost=12)
    assert bytes(tokens[0]).hex() == "c9f223d1f517069283f80da4c0d87356"


def test_tokens_are_sorted_whatever_the_file_order():
    tokens, order = link(IDS)
    back, back_order = link(IDS[::-1])

    np.testing.assert_array_equal(tokens, back)
    assert [IDS[row] for row in order] == [IDS[::-1][row] for row in back_order]
    assert [bytes(row) for row in tokens] == sorted(rows(tokens))
    assert (tokens.dtype, tokens.shape, order.dtype) == (np.uint8, (5, 16), np.int64)


def test_spellings_of_one_id_meet_at_two_sites():
    one, _ = link(["０07 ", "ab"], rule="upper")
    other, _ = link(["007", "AB"], rule="upper", site="riverside")
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "change",
    [
        {"plan_id": "other"},
        {"key": bytes(reversed(KEY))},
        {"rule": "exact"},
        {"cost": 2},
        {"plan_id": "pla", "rule": "exact"},
    ],
)
def test_tokens_of_another_plan_key_rule_or_cost_are_unlinkable(change):
    ids = ["1", "2", "3"]  # the same under every rule
    assert not rows(link(ids)[0]) & rows(link(ids, **change)[0])


def test_fields_of_the_salt_cannot_run_into_each_other():
    ids = ["1"]
    assert rows(link(ids, plan_id="plantrim", rule="trim")[0]) != rows(
        link(ids, plan_id="plan", rule="trim")[0]
    )
    assert alignment._salt(KEY, "ab", "c") != alignment._salt(KEY, "a", "bc")


def test_the_number_of_threads_does_not_matter():
    ids = [f"{number:05d}" for number in range(2500)]  # three chunks
    one, three = (link(ids, n_threads=n) for n in (1, 3))
    np.testing.assert_array_equal(one[0], three[0])
    np.testing.assert_array_equal(one[1], three[1])
    for i in (0, 1024, 2499):
        assert bytes(one[0][i]) == slow_token(ids[one[1][i]], "trim", KEY, "plan", 1)


def test_no_id_gives_no_token():
    tokens, order = link([])
    assert (tokens.shape, order.shape) == ((0, 16), (0,))


@pytest.mark.parametrize(
    ("ids", "rule", "sentence"),
    [
        (["a", "a", "b"], "exact", "site 'st-anna': 1 of 3 ids repeat another one under id_rule"),
        (["ab", "AB", "A-B", "c"], "alphanumeric", "2 of 4 ids repeat another one under id_rule"),
        (["a", " "], "trim", "site 'st-anna': 1 of 2 ids are empty under id_rule 'trim': repair"),
        (["-", "--", "a"], "alphanumeric", "2 of 3 ids are empty under id_rule 'alphanumeric'"),
    ],
)
def test_repeated_and_empty_ids_are_counted_and_not_named(ids, rule, sentence):
    with pytest.raises(DataRefused) as caught:
        link(ids, rule=rule)
    assert sentence in str(caught.value)
    assert "AB" not in str(caught.value) + caught.value.local_detail


def test_what_only_a_rule_makes_equal_is_let_through_without_it():
    assert len(link(["ab", "AB", "A-B"], rule="trim")[0]) == 3


class Clock:
    """A clock that goes on by `step` seconds whenever it is read."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def monotonic(self):
        self.now += self.step
        return self.now


def test_long_work_is_announced_and_followed(monkeypatch, caplog):
    monkeypatch.setattr(alignment, "time", Clock(step=3.0))
    ids = [f"id-{number}" for number in range(4000)]
    with caplog.at_level(logging.INFO, "fedmvc.site"):
        link(ids, n_threads=1)

    # 1,024 of 4,000 ids in 3 s; chunks end at 2,048, 3,072 and 4,000
    assert caplog.messages == [
        "site 'st-anna': hashing 4000 ids for the alignment takes about 12 s",
        "site 'st-anna': 50% of its ids hashed",
        "site 'st-anna': 70% of its ids hashed",
        "site 'st-anna': 100% of its ids hashed",
    ]


def test_short_work_is_not_talked_about(monkeypatch, caplog):
    monkeypatch.setattr(alignment, "time", Clock(step=0.001))
    with caplog.at_level(logging.INFO, "fedmvc.site"):
        link(IDS)
    assert caplog.messages == []


def test_a_stop_does_not_wait_for_all_ids(monkeypatch):
    started = []

    class Stopping:
        def __init__(self, **options):
            pass

        def derive(self, text):
            started.append(text)
            if len(started) == 1:
                raise KeyboardInterrupt
            time.sleep(0.01)
            return bytes(16)

    monkeypatch.setattr(alignment, "Scrypt", Stopping)
    with pytest.raises(KeyboardInterrupt):
        link([str(number) for number in range(200)], cost=20, n_threads=1)
    assert len(started) < 100


# --- the linkage key ---


def test_a_key_is_32_bytes_that_its_owner_alone_reads(tmp_path):
    path = tmp_path / "state" / "linkage.key"
    make_linkage_key(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == read_linkage_key(path).hex() + "\n"
    assert len(read_linkage_key(path)) == 32
    assert os.listdir(path.parent) == ["linkage.key"]


def test_no_two_keys_are_equal(tmp_path):
    for name in ("one", "two"):
        make_linkage_key(tmp_path / name)
    assert read_linkage_key(tmp_path / "one") != read_linkage_key(tmp_path / "two")


def test_a_key_is_never_overwritten(tmp_path):
    path = tmp_path / "linkage.key"
    make_linkage_key(path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"'linkage.key' already exists and is not overwritten"):
        make_linkage_key(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["linkage.key"]


def test_a_dangling_link_is_not_written_through(tmp_path):
    path = tmp_path / "linkage.key"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="already exists"):
        make_linkage_key(path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ConfigError, match=r"linkage key 'linkage.key' cannot be written: "):
        make_linkage_key(tmp_path / "state" / "linkage.key")
    assert os.listdir(tmp_path) == ["state"]


def test_white_space_around_a_key_is_forgiven(tmp_path):
    path = tmp_path / "linkage.key"
    path.write_text(f" {KEY.hex().upper()}\r\n\n")
    path.chmod(0o600)
    assert read_linkage_key(path) == KEY


def test_a_missing_key_tells_the_way_out(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_linkage_key(tmp_path / "linkage.key")
    assert str(caught.value) == (
        "linkage key 'linkage.key' does not exist: run `fedmvc-client keygen --linkage` at one "
        "site and hand its file to the other sites by a safe channel, never to the server"
    )
    assert caught.value.local_detail == str(tmp_path / "linkage.key")


@pytest.mark.parametrize(
    "content", [b"", b"\n", KEY.hex()[:-2].encode(), KEY.hex().encode() + b"00", b"zz" * 32, KEY]
)
def test_a_damaged_key_is_refused_and_not_shown(tmp_path, content):
    path = tmp_path / "linkage.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(
        ConfigError, match=r"'linkage.key' is damaged .* keygen --linkage"
    ) as caught:
        read_linkage_key(path)
    assert KEY.hex()[:8] not in str(caught.value) + caught.value.local_detail


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_key_open_to_others_is_refused(tmp_path, mode):
    path = tmp_path / "linkage.key"
    make_linkage_key(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"\(mode {mode:04o}\): run chmod 600 on it"):
        read_linkage_key(path)


def test_a_folder_is_no_key(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_linkage_key(tmp_path)


# --- the rows that all sites share ---


def slow_intersect(tokens):
    """Intersect by sets and loops."""
    common = set.intersection(*(rows(own) for own in tokens.values()))
    masks = {site: [bytes(row) in common for row in own] for site, own in tokens.items()}
    return len(common), masks


def test_three_sites_by_hand():
    tokens = {
        "b": sorted_tokens("a", "c", "d", "z"),
        "a": sorted_tokens("c", "d"),
        "c": sorted_tokens("b", "c", "d", "e", "z"),
    }
    n_shared, shared = intersect(tokens)
    assert n_shared == 2
    assert list(shared) == ["b", "a", "c"]
    assert shared["b"].tolist() == [False, True, True, False]
    assert shared["a"].tolist() == [True, True]
    assert shared["c"].tolist() == [False, True, True, False, False]
    assert all(mask.dtype == np.bool_ for mask in shared.values())


# few distinct bytes, so that sites share tokens; zero and 255 are where comparing texts could err
token = st.lists(st.sampled_from([0, 1, 127, 128, 255]), min_size=2, max_size=2).map(
    lambda ends: bytes([ends[0], *[0] * 14, ends[1]])
)
site_tokens = st.sets(token, max_size=12).map(
    lambda found: np.frombuffer(bytearray(b"".join(sorted(found))), np.uint8).reshape(-1, 16)
)


@given(st.lists(site_tokens, min_size=1, max_size=4))
def test_intersection_equals_the_slow_one(lists):
    tokens = {f"site-{number}": own for number, own in enumerate(lists)}
    n_shared, shared = intersect(tokens)
    slow_n, slow_masks = slow_intersect(tokens)
    assert n_shared == slow_n
    assert {site: mask.tolist() for site, mask in shared.items()} == slow_masks
    # the i-th shared token is the same at every site
    picked = [tokens[site][mask].tobytes() for site, mask in shared.items()]
    assert len(set(picked)) == 1


def test_linked_sites_find_each_others_patients():
    lists = {"a": ["3", "1", "2", "04"], "b": ["2", "4", "3"], "c": ["9", "3", "2", "1"]}
    linked = {site: link(ids, site=site) for site, ids in lists.items()}
    n_shared, shared = intersect({site: tokens for site, (tokens, _) in linked.items()})
    assert n_shared == 2
    found = {
        site: [lists[site][row] for row in order[shared[site]]]
        for site, (_, order) in linked.items()
    }
    assert found["a"] == found["b"] == found["c"]
    assert sorted(found["a"]) == ["2", "3"]


def test_no_site_and_no_token():
    assert intersect({}) == (0, {})
    n_shared, shared = intersect({"a": sorted_tokens("x"), "b": sorted_tokens()})
    assert (n_shared, shared["a"].tolist(), shared["b"].tolist()) == (0, [False], [])


@pytest.mark.parametrize(
    ("spoilt", "sentence"),
    [
        (sorted_tokens("a", "b")[::-1], "site 'riverside' sent tokens that are not sorted"),
        (sorted_tokens("a", "b", "b"), "site 'riverside' sent a token twice"),
        (sorted_tokens("a", "b")[:, :15], "sent tokens as uint8 of shape (2, 15); expected uint8"),
        (sorted_tokens("a").ravel(), "sent tokens as uint8 of shape (16,)"),
        (sorted_tokens("a").astype(np.int64), "sent tokens as int64 of shape (1, 16)"),
    ],
)
def test_tokens_that_break_the_protocol_are_refused_by_site(spoilt, sentence):
    with pytest.raises(ProtocolError) as caught:
        intersect({"st-anna": sorted_tokens("a", "b"), "riverside": spoilt})
    assert sentence in str(caught.value)
    assert "riverside" in str(caught.value)


def test_a_last_byte_alone_tells_tokens_apart():
    # a comparison that drops zero bytes at the end, or reads signed bytes, would fail here
    ends = np.zeros((3, 16), np.uint8)
    ends[:, 15] = [0, 1, 255]
    n_shared, shared = intersect({"a": ends, "b": ends[1:]})
    assert (n_shared, shared["a"].tolist()) == (2, [False, True, True])


def test_ranks_match_where_tokens_match_and_are_none():
    rng = np.random.default_rng(0)
    pool = rng.integers(256, size=(30, 16)).astype(np.uint8)
    pool = pool[np.lexsort(pool.T[::-1])]
    tokens = {name: pool[np.sort(rng.permutation(30)[:20])] for name in ("a", "b", "c")}
    places = ranked(tokens)
    n_shared, shared = intersect(tokens)
    n_again, again = intersect(places)
    assert n_again == n_shared > 0
    assert {s: m.tolist() for s, m in again.items()} == {s: m.tolist() for s, m in shared.items()}
    assert {name: rows.shape for name, rows in places.items()} == dict.fromkeys("abc", (20, 16))
    assert max(rows.max() for rows in places.values()) < 30
    assert ranked({}) == {}
