"""Entity alignment of a vertical run: who has the same patient, without sending an id.

Each site turns its ids into tokens under a key that the sites share and the server never has.
Within a plan equal ids give equal tokens; tokens of two plans cannot be compared. The server
intersects tokens and never sees an id. What this does not hide is said by `privacy.disclosure`.
"""

from __future__ import annotations

import logging
import os
import time
import unicodedata
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from numpy.typing import NDArray

from configs.errors import ConfigError, DataRefused, ProtocolError
from configs.schema import IdRule
from privacy.key_files import make_secret, read_secret

__all__ = [
    "ID_RULES",
    "ROW_NUMBER",
    "TOKEN_BYTES",
    "intersect",
    "link_tokens",
    "make_linkage_key",
    "normalise_id",
    "normalise_ids",
    "ranked",
    "read_linkage_key",
]

ID_RULES: tuple[str, ...] = get_args(IdRule)
TOKEN_BYTES = 16
#: The rule of sites that are arrays in memory: a row's number is its id.
ROW_NUMBER = "row number"

Tokens = NDArray[np.uint8]

_WHAT = "linkage key"
_QUIET_S = 5.0
_WAY_OUT = (
    "run `fedmvc-client keygen --linkage` at one site and hand its file to the other sites by a "
    "safe channel, never to the server"
)

log = logging.getLogger("fedmvc.site")


def normalise_id(text: str, rule: str) -> str:
    """Write an id the way all sites of a federation compare it; leading zeros always stay.

    Parameters
    ----------
    text : str
        The id as the site holds it.
    rule : {"exact", "trim", "upper", "alphanumeric"}
        ``exact``: as it is. ``trim``: Unicode form NFKC (full-width digits become plain ones)
        without white space around it. ``upper``: and in capitals. ``alphanumeric``: and only its
        letters and digits.

    Returns
    -------
    str
        The normalised id, possibly empty.

    Raises
    ------
    ConfigError
        If the rule is unknown.
    """
    if rule not in ID_RULES:
        raise ConfigError(f"id_rule is {rule!r}; allowed: {', '.join(map(repr, ID_RULES))}.")
    if rule == "exact":
        return text
    text = unicodedata.normalize("NFKC", text)
    if rule != "trim":
        text = unicodedata.normalize("NFKC", text.upper())
    if rule == "alphanumeric":
        # parts that were apart may compose now
        text = unicodedata.normalize("NFKC", "".join(sign for sign in text if sign.isalnum()))
    return text.strip()


def normalise_ids(ids: Sequence[str], rule: str, site: str) -> list[str]:
    """Normalise a site's ids and refuse what could not be matched.

    Raises
    ------
    DataRefused
        If ids are empty or equal once normalised; with their number and no id.
    """
    texts = [normalise_id(text, rule) for text in ids]
    empty = texts.count("")
    if empty:
        raise DataRefused(
            f"site '{site}': {empty} of {len(texts)} ids are empty under id_rule '{rule}': repair "
            "them, or let all sites choose another id_rule in schema.toml"
        )
    repeated = len(texts) - len(set(texts))
    if repeated:
        raise DataRefused(
            f"site '{site}': {repeated} of {len(texts)} ids repeat another one under id_rule "
            f"'{rule}': keep one record a patient, or let all sites choose another id_rule in "
            "schema.toml"
        )
    return texts


def make_linkage_key(path: Path) -> None:
    """Draw a linkage key and write it, readable by its owner only; whole or not at all.

    Parameters
    ----------
    path : Path
        File to make; missing folders above it are made.

    Raises
    ------
    ConfigError
        If the file exists (a key is never overwritten) or cannot be written.
    """
    make_secret(
        path,
        _WHAT,
        "name another file, or remove it first where all sites replace their key",
    )


def read_linkage_key(path: Path) -> bytes:
    """Read the key that the sites of a vertical run share.

    Parameters
    ----------
    path : Path
        A file as `make_linkage_key` writes it.

    Returns
    -------
    bytes
        32 bytes.

    Raises
    ------
    ConfigError
        If there is no such file, other users may read it, or it holds no key; with the way out.
    """
    return read_secret(path, _WHAT, _WAY_OUT, f"copy it again from another site, or {_WAY_OUT}")


def link_tokens(
    ids: Sequence[str],
    *,
    rule: str,
    key: bytes,
    plan_id: str,
    cost: int,
    site: str,
    n_threads: int | None = None,
) -> tuple[Tokens, NDArray[np.int64]]:
    """Turn a site's ids into tokens that only sites of one plan can compare.

    A token is scrypt(normalised id) with n = 2**cost, r = 8, p = 1 under a salt that
    HKDF-SHA256 derives from the key, the plan and the rule.

    Parameters
    ----------
    ids : sequence of str
        The site's record ids.
    rule : str
        See `normalise_id`.
    key : bytes
        The linkage key.
    plan_id : str
    cost : int
        Logarithm to base 2 of scrypt's n; 12 takes about 10 ms an id and thread.
    site : str
        The site's name, for messages.
    n_threads : int, optional
        By default one for each CPU that this process may use; the result does not depend on it.

    Returns
    -------
    tokens : ndarray of shape (n, 16), uint8
        Sorted bytewise, which hides the order of `ids`.
    order : ndarray of shape (n,), int64
        ``tokens[i]`` is the token of ``ids[order[i]]``.

    Raises
    ------
    DataRefused
        If ids are empty or equal once normalised; with their number and no id.
    """
    texts = normalise_ids(ids, rule, site)
    salt = _salt(key, plan_id, rule)
    body = b"".join(_hash_all(texts, salt, cost, site, n_threads or _cpus()))
    tokens = np.frombuffer(body, np.uint8).reshape(-1, TOKEN_BYTES)
    order = _comparable(tokens).argsort(kind="stable").astype(np.int64)
    return tokens[order], order


def intersect(tokens: Mapping[str, Tokens]) -> tuple[int, dict[str, NDArray[np.bool_]]]:
    """Find the tokens that all sites sent. The rows of the run are these, in token order.

    Parameters
    ----------
    tokens : mapping of site to ndarray of shape (n, 16), uint8
        Each sorted bytewise, as `link_tokens` returns them.

    Returns
    -------
    n_shared : int
        Number of tokens that every site sent.
    shared : dict of site to ndarray of shape (n,), bool
        Which of its own tokens these are: the i-th True of every site is the same row.

    Raises
    ------
    ProtocolError
        If a site's tokens have another shape, are not sorted or stand twice.
    """
    for site, rows in tokens.items():
        _check_tokens(site, rows)
    if not tokens:
        return 0, {}
    stacked = np.concatenate(list(tokens.values()))
    order = _comparable(stacked).argsort(kind="stable")
    ordered = _comparable(stacked[order])
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: ordered.size])
    # a site has a token once at most, so a run as long as there are sites holds one of each
    everywhere = np.diff(np.r_[starts, ordered.size]) == len(tokens)
    shared = np.empty(ordered.size, np.bool_)
    shared[order] = np.repeat(everywhere, np.diff(np.r_[starts, ordered.size]))
    ends = np.cumsum([len(rows) for rows in tokens.values()])[:-1]
    return int(everywhere.sum()), dict(zip(tokens, np.split(shared, ends), strict=True))


def ranked(tokens: Mapping[str, Tokens]) -> dict[str, Tokens]:
    """Put each token's place among all of them in its stead: which are equal stays, and the order.

    What `intersect` finds is the same, and nothing can be tried against it any more.

    Parameters
    ----------
    tokens : mapping of site to ndarray of shape (n, 16), uint8
    """
    if not tokens:
        return {}
    _, places = np.unique(_comparable(np.concatenate(list(tokens.values()))), return_inverse=True)
    rows = np.zeros((places.size, 16), np.uint8)
    rows[:, 8:] = places.astype(">u8").view(np.uint8).reshape(-1, 8)
    ends = np.cumsum([len(each) for each in tokens.values()])[:-1]
    return dict(zip(tokens, np.split(rows, ends), strict=True))


def _salt(key: bytes, plan_id: str, rule: str) -> bytes:
    # fields with their lengths: no two different triples may give one text
    fields = (b"fedmvc link", plan_id.encode(), rule.encode())
    info = b"".join(len(field).to_bytes(2, "big") + field for field in fields)
    return HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(key)


def _hash_all(
    texts: Sequence[str], salt: bytes, cost: int, site: str, n_threads: int
) -> list[bytes]:
    """Hash in chunks on several threads (scrypt lets others run), and log long work."""
    size = min(1024, max(1, 2**17 >> cost))  # a third of a second: an estimate comes soon

    def hash_chunk(first: int) -> bytes:
        return b"".join(
            Scrypt(salt=salt, length=TOKEN_BYTES, n=2**cost, r=8, p=1).derive(text.encode())
            for text in texts[first : first + size]
        )

    progress = _Progress(site, len(texts))
    hashed = []
    with ThreadPoolExecutor(n_threads) as pool:
        chunks = [pool.submit(hash_chunk, first) for first in range(0, len(texts), size)]
        try:
            for number, chunk in enumerate(chunks, 1):
                hashed.append(chunk.result())
                # the first chunks run side by side and end together
                progress.tell(min(size * max(number, n_threads), len(texts)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return hashed


class _Progress:
    """Say how long hashing will take, then every tenth of it; nothing where it takes seconds."""

    def __init__(self, site: str, n_ids: int) -> None:
        self._site = site
        self._n_ids = n_ids
        self._began = time.monotonic()
        self._told: int | None = None  # tenths; None before the estimate

    def tell(self, hashed: int) -> None:
        """Take note of the number of ids hashed so far."""
        spent = time.monotonic() - self._began
        if self._told is None:
            whole = spent * self._n_ids / hashed
            if whole > _QUIET_S:
                self._told = 0
                log.info(
                    "site '%s': hashing %d ids for the alignment takes about %.0f s",
                    self._site,
                    self._n_ids,
                    whole,
                )
            return
        tenths = 10 * hashed // self._n_ids
        if tenths > self._told:
            self._told = tenths
            log.info("site '%s': %d%% of its ids hashed", self._site, 10 * tenths)


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _comparable(tokens: Tokens) -> NDArray[np.bytes_]:
    """See each row as one value: equal length makes numpy's comparison of texts that of bytes."""
    return np.ascontiguousarray(tokens).view(f"S{TOKEN_BYTES}")[:, 0]


def _check_tokens(site: str, tokens: Tokens) -> None:
    if tokens.ndim != 2 or tokens.shape[1] != TOKEN_BYTES or tokens.dtype != np.uint8:
        raise ProtocolError(
            f"site '{site}' sent tokens as {tokens.dtype} of shape {tokens.shape}; expected uint8 "
            f"of shape (rows, {TOKEN_BYTES}): it runs another version"
        )
    values = _comparable(tokens)
    if np.any(values[1:] == values[:-1]):
        raise ProtocolError(f"site '{site}' sent a token twice: every id may stand once")
    if np.any(values[1:] < values[:-1]):
        raise ProtocolError(f"site '{site}' sent tokens that are not sorted: start the run again")
