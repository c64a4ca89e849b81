"""Figures of trust of the masked sums, at full size; exits 1 where one does not pass.

Usage: ``python -m benchmarks.trust_secure_sum``
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from numpy.typing import NDArray
from scipy import stats

from benchmarks.trust_rows import Row, print_rows
from configs.errors import ProtocolError, QuorumLost
from privacy.fixed_point import FixedPoint, to_ring
from privacy.key_agreement import derive_key, new_secret, public_of, shared_secret
from privacy.masking import add_keystream, mask, pair_key
from privacy.secret_sharing import recombine, split_secret
from tests.privacy.lying_server import LyingServer, RenewingServer
from tests.privacy.secure_sums import Federation, digest_of, names_of, random_vectors

Ring = NDArray[np.uint64]

#: Bound of one site's sums in the first row, and how large they are: float64 is much finer there
#: than the grid, so that what is measured is the grid.
CLIP, SPREAD = 1e9, 30.0
ALPHA = 0.01


# -- masked sum = clear sum --------------------------------------------------------------------


def masked_sum(cases: Sequence[tuple[int, int]]) -> Row:
    """Compare masked with clear sums for (number of sites, numbers) of each case."""
    unequal, worst = 0, 0.0
    for n_sites, n_numbers in cases:
        grid = FixedPoint.finest(CLIP, n_sites)
        rng = np.random.default_rng(n_sites)
        values = rng.uniform(-SPREAD, SPREAD, (n_sites, n_numbers))
        names = names_of(n_sites)
        vectors = {name: to_ring(grid.encode(row)) for name, row in zip(names, values, strict=True)}
        opened = _opened(n_sites, vectors)
        clear = np.sum(list(vectors.values()), axis=0, dtype=np.uint64)
        unequal += int(np.count_nonzero(opened != clear))
        exact = np.array([math.fsum(column) for column in values.T])
        errors = np.abs(grid.decode(opened) - exact)
        worst = max(worst, float(errors.max()) / (n_sites * grid.step / 2))
    sizes = sorted({n for n, _ in cases})
    return Row(
        "masked sum = clear sum",
        f"n {sizes[0]}..{sizes[-1]}, up to {max(k for _, k in cases):,} numbers: {unequal} differ; "
        f"decoding error {worst:.3f} n / 2^(f+1)",
        "0 differ; error <= n / 2^(f+1)",
        unequal == 0 and worst <= 1.0,
    )


def _opened(n_sites: int, vectors: dict[str, Ring]) -> Ring:
    """Open a masked sum; two sites are too few for the protocol, so theirs is the algebra alone."""
    if n_sites > 2:
        return Federation(n_sites, exchanges=1).set_up().exchange(1, vectors)
    secrets, seeds = ({name: new_secret() for name in vectors} for _ in range(2))
    first, second = vectors
    shared = partial(
        pair_key, transcript=bytes(32), exchange=1, digest=digest_of(1), pair=(first, second)
    )
    keys = {
        first: {second: shared(secrets[first], public_of(secrets[second]))},
        second: {first: shared(secrets[second], public_of(secrets[first]))},
    }
    total = np.zeros(vectors[first].size, np.uint64)
    for name, vector in vectors.items():
        total += mask(vector, name, seeds[name], keys[name])
        add_keystream(total, seeds[name], sign=-1)
    return total


# -- sites that are lost -----------------------------------------------------------------------


def dropout_matrix(sizes: Sequence[int]) -> Row:
    """Lose every number of sites before the upload, after it, or for the time of a restart.

    Each case is an exchange of one run, so each also shows that the one before, opened or not,
    leaves the next whole.
    """
    wrong, n_cases = 0, 0
    for n in sizes:
        cases = [(before, after) for before in range(n + 1) for after in range(n + 1 - before)]
        restarts = range(n + 1)
        federation = Federation(n, exchanges=len(cases) + len(restarts)).set_up()
        terms = federation.terms
        rng = np.random.default_rng(n)
        for number, (before, after) in enumerate(cases, 1):
            lost = list(rng.permutation(federation.names)[: before + after])
            opens = n - before >= n - terms.tolerated_dropouts
            opens = opens and n - before - after >= terms.threshold
            found = _exchange_with_losses(federation, number, lost[:before], lost[before:])
            wrong += found != (set(federation.names) - set(lost[:before]) if opens else None)
        for number, restarted in enumerate(restarts, len(cases) + 1):
            back = list(rng.permutation(federation.names)[:restarted])
            found = _exchange_with_losses(federation, number, [], [], back)
            wrong += found != set(federation.names)
        n_cases += len(cases) + len(restarts)
    return Row(
        "dropout matrix",
        f"n in {', '.join(map(str, sizes))}: {wrong} of {n_cases} cases wrong",
        "opens iff uploads >= n - d and answers >= t; a restarted uploader is in the sum",
        wrong == 0,
    )


def _exchange_with_losses(
    federation: Federation,
    number: int,
    before: Sequence[str],
    after: Sequence[str],
    restarted: Sequence[str] = (),
) -> set[str] | None:
    """Return the sites in the opened sum, None where nothing was opened.

    Every site sends one bit of its own, so that the sum names the sites that are in it.
    """
    vectors = {name: np.array([1 << i], np.uint64) for i, name in enumerate(federation.names)}
    federation.upload(number, vectors, before)
    for name in restarted:
        federation.restart(name)
    try:
        federation.answer(number, silent=after)
        (total,) = federation.server.open().tolist()
    except QuorumLost:
        return None
    return {name for i, name in enumerate(federation.names) if total >> i & 1}


# -- a server that lies ------------------------------------------------------------------------


def two_broadcasts(n_sites: int = 5, n_numbers: int = 4096) -> Row:
    """Show half of the sites another request and open what comes: it must be uniform."""
    federation = Federation(n_sites, exchanges=1).set_up()
    vectors = {name: np.zeros(n_numbers, np.uint64) for name in federation.names}
    federation.upload(1, vectors, federation.names)
    for i, (name, site) in enumerate(federation.sites.items()):
        told = digest_of(1, body=b"centres" if i % 2 else b"other centres")
        federation.server.take_upload(name, site.upload(1, told, (), vectors[name]))
    federation.answer(1)
    p_value = uniform_p(federation.server.open())
    return Row(
        "two broadcasts in one exchange",
        f"sum of {n_numbers} zeros: chi-square of its bytes against uniform, p = {p_value:.3f}",
        "p >= 1e-6",
        p_value >= 1e-6,
    )


def same_exchange_twice(n_sites: int = 5) -> Row:
    """Ask every site twice in one exchange: for another request, then for the same."""
    federation = Federation(n_sites, exchanges=2).set_up()
    vectors = random_vectors(federation.names, 8)
    refused, repeated = 0, 0
    for name, site in federation.sites.items():
        first = site.upload(1, digest_of(1), (), vectors[name])
        try:
            site.upload(1, digest_of(1, body=b"other centres"), (), vectors[name])
        except ProtocolError:
            refused += 1
        again = federation.restart(name).upload(1, digest_of(1), (), vectors[name] + np.uint64(1))
        repeated += bool(np.array_equal(first, again))
    return Row(
        "same exchange twice",
        f"{refused} of {n_sites} sites refuse another request, {repeated} repeat the same bytes",
        "all; also after a restart and with other values",
        refused == repeated == n_sites,
    )


def lying_server(examples: int, steps: int = 40) -> Row:
    """Let hypothesis play servers that ask in any order for any set, with colluding sites."""
    budget = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=True,
    )
    servers, violations = (LyingServer, RenewingServer), 0
    RenewingServer.renewed = 0
    for server in servers:
        server.answers = 0
        try:
            run_state_machine_as_test(server, settings=budget)
        except AssertionError:
            violations += 1
    answers, renewed = sum(server.answers for server in servers), RenewingServer.renewed
    return Row(
        "stateful property test, two survivor sets, fresh keys in between",
        f"{violations} violations in 2 x {examples} runs of up to {steps} steps "
        f"({answers:,} answers taken, {renewed:,} further set-ups)",
        "server never holds both share sets of one (site, e), nor leaves out more than d sites",
        violations == 0 and all(server.answers for server in servers) and renewed > 0,
    )


# -- known answers -----------------------------------------------------------------------------


def known_answers(all_subsets: bool = True) -> Row:
    """Check the primitives as they are used here against the RFCs, and Shamir up to n = 8."""
    failed = [name for name, holds in _rfc_answers() if not holds]
    secret, n_combined = bytes(range(32)), 0
    for n in range(2, 9):
        for t in range(2, n + 1):
            shares = dict(enumerate(split_secret(secret, t, n), 1))
            subsets = list(itertools.combinations(shares, t))
            for chosen in subsets if all_subsets else (subsets[0], subsets[-1]):
                n_combined += 1
                if recombine({i: shares[i] for i in chosen}) != secret:
                    failed.append(f"Shamir {chosen} of {n}")
    return Row(
        "known answers",
        f"{len(failed)} fail of RFC 8439, 7748, 5869 and {n_combined} sets of t shares, all "
        f"(t, n) <= 8{': ' if failed else ''}{', '.join(failed)}",
        "0 fail",
        not failed,
    )


def _rfc_answers() -> Iterator[tuple[str, bool]]:
    stream = np.zeros(8, np.uint64)
    add_keystream(stream, bytes(32))
    yield (
        "RFC 8439 A.1 #1, as the masks read it",
        stream.astype("<u8").tobytes()
        == _hex(
            "76b8e0ada0f13d90405d6ae55386bd28 bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a37 6a43b8f41518a11cc387b669b2ee6586"
        ),
    )
    nonce = (1).to_bytes(4, "little") + _hex("000000000000004a00000000")
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        b"future, sunscreen would be it."
    )
    chacha = Cipher(ChaCha20(bytes(range(32)), nonce), mode=None).encryptor()
    yield (
        "RFC 8439 2.4.2",
        chacha.update(text)[:32]
        == _hex("6e2e359a2568f98041ba0728dd0d6981 e97e7aec1d4360c20a27afccfd9fae0b"),
    )
    aead = ChaCha20Poly1305(bytes(range(0x80, 0xA0)))
    sealed = aead.encrypt(_hex("070000004041424344454647"), text, _hex("50515253c0c1c2c3c4c5c6c7"))
    yield "RFC 8439 2.8.2", sealed[-16:] == _hex("1ae10b594f09e26a7e902ecbd0600691")
    alice = _hex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = _hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    agreed = _hex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    yield (
        "RFC 7748 6.1",
        public_of(alice)
        == _hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"),
    )
    yield "RFC 7748 6.1, shared", shared_secret(alice, public_of(bob)) == agreed
    yield (
        "RFC 7748 5.2",
        shared_secret(
            _hex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"),
            _hex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"),
        )
        == _hex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"),
    )
    salt, info = bytes(range(13)), bytes(range(0xF0, 0xFA))
    expand = HKDF(hashes.SHA256(), length=42, salt=salt, info=info)
    yield (
        "RFC 5869 A.1",
        expand.derive(b"\x0b" * 22)
        == _hex(
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
        ),
    )
    extracted = hmac.digest(salt, agreed, "sha256")
    derived = hmac.digest(extracted, info + b"\x01", "sha256")
    yield (
        "RFC 5869 2.2 and 2.3 by hand, over RFC 7748",
        derived == derive_key(bob, public_of(alice), salt=salt, info=info),
    )


def _hex(text: str) -> bytes:
    return bytes.fromhex(text)


# -- what the server sees ----------------------------------------------------------------------


def uniform_p(numbers: Ring) -> float:
    """Return the p-value of the numbers' bytes against a uniform distribution."""
    counts = np.bincount(numbers.view(np.uint8), minlength=256)
    return float(stats.chisquare(counts).pvalue)


def same_source_p(first: Ring, second: Ring) -> tuple[float, float]:
    """Return p-values of two vectors against one source: of their bytes, and of their sizes."""
    table = [np.bincount(each.view(np.uint8), minlength=256) for each in (first, second)]
    by_bytes = stats.chi2_contingency(table).pvalue
    by_size = stats.ks_2samp(first.astype(float), second.astype(float)).pvalue
    return float(by_bytes), float(by_size)


def mask_quality(repeats: int, n_numbers: int = 2048) -> Row:
    """Test masked vectors of neighbouring inputs against uniform, and against each other.

    Seeds are counted through SHA-256 here, so that the figure is the same every time.
    """
    p_values: list[float] = []
    plain = np.zeros(n_numbers, np.uint64)
    neighbour = plain.copy()
    neighbour[0] = 1
    for i in range(repeats):
        first = _masked(plain, 2 * i)
        second = _masked(neighbour, 2 * i + 1)
        p_values += [uniform_p(first), uniform_p(second), *same_source_p(first, second)]
    rejected = int(np.sum(np.array(p_values) < ALPHA))
    most = int(stats.binom.ppf(0.999, len(p_values), ALPHA))
    return Row(
        "mask quality, neighbouring inputs",
        f"{rejected} of {len(p_values)} tests reject at alpha {ALPHA:g}",
        f"<= {most}, the 99.9% quantile of chance",
        rejected <= most,
    )


def _masked(values: Ring, number: int) -> Ring:
    keys = (hashlib.sha256(f"mask quality {number} {k}".encode()).digest() for k in range(3))
    seed, *shared = keys
    return mask(values, "b", seed, dict(zip("ac", shared, strict=True)))


def distinct_seeds(n_sites: int, exchanges: int) -> Row:
    """Collect every seed, secret and pair key of a run: no two may be equal."""
    federation = Federation(n_sites, exchanges).set_up()
    setups = {name: site._setup_of(1) for name, site in federation.sites.items()}
    found: list[bytes] = []
    for e in range(1, exchanges + 1):
        own = {name: setup.own_secrets(e) for name, setup in setups.items()}
        found += itertools.chain.from_iterable(own.values())
        found += [
            pair_key(
                own[u][1],
                setups[u].peers[v].masking_key(e),
                transcript=setups[u].transcript,
                exchange=e,
                digest=digest_of(1),
                pair=(u, v),
            )
            for u, v in itertools.combinations(federation.names, 2)
        ]
    equal = len(found) - len(set(found))
    return Row(
        "distinct seeds",
        f"n = {n_sites}, E = {exchanges}: {equal} of {len(found):,} seeds, secrets and pair keys "
        "are equal to another",
        "0",
        equal == 0,
    )


_CASES = [(n, 10_000) for n in range(2, 33)] + [(n, 1_000_000) for n in (2, 3, 8, 16, 32)]
ROWS: tuple[Callable[[], Row], ...] = (
    partial(masked_sum, _CASES),
    partial(dropout_matrix, (3, 4, 5, 8, 12)),
    two_broadcasts,
    same_exchange_twice,
    partial(lying_server, 2000),
    known_answers,
    partial(mask_quality, 1000),
    partial(distinct_seeds, 16, 25),
)


def main() -> None:
    """Measure all rows at full size."""
    sys.exit(1 if print_rows("Secure aggregation", ROWS) else 0)


if __name__ == "__main__":
    main()
