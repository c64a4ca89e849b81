import re
import stat
import struct
import warnings
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import PolicyRefused, ProtocolError
from fedmvc_client.bundle import MAX_BUNDLE_BYTES, MAX_FILE_BYTES, check_bundle
from tests.fedmvc_client.bundles import (
    LISTING,
    PROJECT,
    built,
    bundle,
    listing,
    ours,
    packed,
    project,
)

CLIENT, SERVER = "fedmvc_client.app:app", "fedmvc_server.app:app"


def flagged(name, body, **attributes):
    """Return a member whose ZipInfo has these attributes."""
    info = zipfile.ZipInfo(name)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, body


def link(name):
    return flagged(name, b"/etc/passwd", external_attr=(stat.S_IFLNK | 0o777) << 16)


def with_components(client=CLIENT, server=SERVER, extra=""):
    return bundle(project().replace(CLIENT, client).replace(SERVER, server) + extra)


def test_what_the_server_sends_is_taken():
    assert check_bundle(ours()) is None
    assert check_bundle(bundle()) is None  # so that each spoiled one below is refused for its fault


def test_the_repositorys_own_bundle_is_taken(request):
    assert check_bundle(built(request.config.rootpath)) is None


@pytest.mark.parametrize(
    "name",
    ["app.py", "fedmvc_client/app.py", "a/b.PY", "x.pyc", "x.so", "evil.pth", "__init__.pyi"],
)
def test_code_is_refused_by_its_name(name):
    with pytest.raises(PolicyRefused, match=rf"carries code \('{re.escape(name)}'\)"):
        check_bundle(bundle(None, (name, b"print('here')")))


@pytest.mark.parametrize(
    "name", ["README.md", "PyProject.toml", "a/pyproject.toml", ".info/", "data.csv", ".info/x"]
)
def test_any_other_file_is_refused_by_its_name(name):
    with pytest.raises(PolicyRefused, match=f"holds '{re.escape(name)}' beside 'pyproject.toml'"):
        check_bundle(bundle(None, (name, b"x")))


@pytest.mark.parametrize(
    ("fab", "kind", "named"),
    [
        (lambda: with_components(client="evil.app:app"), "clientapp", "evil.app:app"),
        (lambda: with_components(server="evil.app:app"), "serverapp", "evil.app:app"),
        (lambda: with_components(client="fedmvc_client.app:ACTIONS"), "clientapp", "ACTIONS"),
        (lambda: bundle("[project]\nname = 'x'\n"), "clientapp", "None"),
        (lambda: bundle("tool = 3\n"), "clientapp", "None"),
        (lambda: bundle("[tool.flwr.app]\ncomponents = 3\n"), "clientapp", "None"),
        (lambda: bundle("[tool.flwr.app.components]\nclientapp = 3\n"), "clientapp", "'3'"),
    ],
)
def test_other_components_are_refused_by_name(fab, kind, named):
    with pytest.raises(PolicyRefused, match=f"{named}.* as {kind}"):
        check_bundle(fab())


def test_a_third_component_is_refused():
    text = project().replace(
        "[tool.flwr.app.components]", '[tool.flwr.app.components]\nagent = "x"'
    )
    with pytest.raises(PolicyRefused, match="a component 'agent'"):
        check_bundle(bundle(text))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("../pyproject.toml", "leads out"),
        ("a/../../x", "leads out"),
        ("/etc/x", "leads out"),
        ("a\\..\\x", "leads out"),
        ("C:x", "leads out"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(name, sentence):
    with pytest.raises(ProtocolError, match=sentence):
        check_bundle(bundle(None, (name, b"x")))


def test_a_name_that_is_cut_at_a_nul_is_refused():
    fab = packed(("pyproject.tomlXapp.py", b"x"), (LISTING, "")).replace(b"tomlX", b"toml\0")
    with pytest.raises(ProtocolError, match="leads out"):
        check_bundle(fab)


def test_a_name_twice_is_refused_with_the_number():
    body = project().encode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fab = packed((PROJECT, body), (PROJECT, b"evil"), (LISTING, listing((PROJECT, body))))
    with pytest.raises(ProtocolError, match=r"'pyproject\.toml' 2 times"):
        check_bundle(fab)


def test_a_link_is_refused():
    with pytest.raises(ProtocolError, match="a link or device"):
        check_bundle(packed(link(PROJECT), (LISTING, "")))


def test_an_encrypted_file_is_refused():
    fab = bytearray(ours())
    entry = fab.index(b"PK\x01\x02")  # the directory's: flags are 8 bytes in
    fab[entry + 8] |= 1
    with pytest.raises(ProtocolError, match="is encrypted"):
        check_bundle(bytes(fab))


def test_a_bomb_is_refused_by_the_size_that_it_states():
    body = b"#" * (MAX_FILE_BYTES + 1)
    fab = packed((PROJECT, body), (LISTING, ""), packing=zipfile.ZIP_DEFLATED)
    assert len(fab) < 1000
    with pytest.raises(
        ProtocolError, match=f"{MAX_FILE_BYTES + 1} bytes unpacked.*{MAX_FILE_BYTES}"
    ):
        check_bundle(fab)


def test_a_bomb_that_lies_about_its_size_is_not_unpacked_further():
    """Its directory says 10 bytes; what is read beyond fails its checksum or the limit."""
    body = b"#" * 50_000_000
    fab = bytearray(packed((PROJECT, body), (LISTING, ""), packing=zipfile.ZIP_DEFLATED))
    entry = fab.index(b"PK\x01\x02")
    struct.pack_into("<I", fab, entry + 24, 10)
    with pytest.raises(ProtocolError):
        check_bundle(bytes(fab))


def test_a_strange_packing_is_refused():
    fab = packed((PROJECT, project()), (LISTING, ""), packing=zipfile.ZIP_LZMA)
    with pytest.raises(ProtocolError, match="packed in way 14"):
        check_bundle(fab)


def test_a_large_bundle_is_refused_with_both_numbers():
    with pytest.raises(ProtocolError, match=f"{MAX_BUNDLE_BYTES + 1} bytes and at most"):
        check_bundle(b"x" * (MAX_BUNDLE_BYTES + 1))


@pytest.mark.parametrize("fab", [b"", b"no zip", b"PK\x03\x04", b"PK\x05\x06" + b"\0" * 17])
def test_what_is_no_zip_is_refused(fab):
    with pytest.raises(ProtocolError, match="is no zip that can be read"):
        check_bundle(fab)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ([], r"lacks 'pyproject\.toml'"),
        ([(LISTING, "x")], r"lacks 'pyproject\.toml'"),
        ([(PROJECT, "x")], r"lacks '\.info/CONTENT'"),
        ([(PROJECT, "x"), (LISTING, listing((PROJECT, b"y")))], "listing does not fit"),
        ([(PROJECT, "x"), (LISTING, b"\xff\xfe")], "listing does not fit"),
        ([(PROJECT, "x ="), (LISTING, listing((PROJECT, b"x =")))], "is no TOML"),
        ([(PROJECT, b"\xff"), (LISTING, listing((PROJECT, b"\xff")))], "is no TOML"),
    ],
)
def test_a_bundle_that_is_not_whole_is_refused(members, sentence):
    with pytest.raises(ProtocolError, match=sentence):
        check_bundle(packed(*members))


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (f"a = {'1' * 5000}\n", ProtocolError, "is no TOML"),
        (f"a = {'[' * 5000}\n", ProtocolError, "is no TOML"),
        (f"clientapp = 0x{'f' * 5000}\n", PolicyRefused, "'int' as clientapp"),
        (f"clientapp{'.a' * 20_000} = 1\n", PolicyRefused, "'dict' as clientapp"),
        ("clientapp = {a = 1}\n", PolicyRefused, "as clientapp"),
        ("clientapp = [1]\n", PolicyRefused, "as clientapp"),
    ],
)
def test_a_value_that_python_cannot_take_in_is_refused_in_words(text, kind, sentence):
    """These once came out as ValueError, TypeError or RecursionError: no line in the audit log."""
    with pytest.raises(kind, match=sentence):
        check_bundle(bundle("[tool.flwr.app.components]\n" + text))


def test_an_offset_that_is_too_large_is_refused():
    fab = bytearray(ours())
    entry, end = fab.index(b"PK\x01\x02"), fab.rindex(b"PK\x05\x06")
    lengths = struct.unpack_from("<HH", fab, entry + 28)
    extra = struct.pack("<HHQ", 1, 8, 2**64 - 1)  # where the file begins, in 8 bytes
    struct.pack_into("<H", fab, entry + 30, lengths[1] + len(extra))
    struct.pack_into("<L", fab, entry + 42, 2**32 - 1)
    (size,) = struct.unpack_from("<L", fab, end + 12)
    struct.pack_into("<L", fab, end + 12, size + len(extra))
    place = entry + 46 + sum(lengths)
    fab[place:place] = extra

    with pytest.raises(ProtocolError, match="is no zip that can be read"):
        check_bundle(bytes(fab))


def test_a_name_cannot_spoil_the_log():
    with pytest.raises(PolicyRefused) as caught:
        check_bundle(bundle(None, ("a\nerror, fine " + "x" * 500, b"x")))
    assert "\n" not in caught.value.public_message
    assert len(caught.value.public_message) < 300


@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_one_byte_changed_is_refused_in_words_or_changes_nothing(place, value):
    fab = bytearray(ours())
    fab[place % len(fab)] = value
    try:
        check_bundle(bytes(fab))
    except (ProtocolError, PolicyRefused) as error:
        assert str(error)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_words(tail):
    for fab in (tail, ours()[: len(tail)], zlib.compress(tail)):
        with pytest.raises(ProtocolError):
            check_bundle(fab)
