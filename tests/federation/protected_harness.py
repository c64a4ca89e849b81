"""Small federations over masked or noisy sums, and servers and sites that misbehave in them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from configs.errors import TransportError
from configs.plan import RunPlan
from configs.schema import DataSchema
from fedmvc_client.worker import SiteWorker, array_worker, folder_worker
from fedmvc_server.array_sites import bounded_schema, schema_of
from fedmvc_server.site_keys import draw_keys
from fedmvc_server.synthesize import synthesize_cardio
from privacy import mechanisms
from privacy.fixed_point import FixedPoint
from strategies import messages as m
from strategies.base import FederatedStrategy
from strategies.messages import Message, from_bytes, to_bytes
from tests.federation.harness import federate, split

#: Masked runs over so few rows have bits to spare for the fraction.
MAX_ROWS = 1000


def protected_plan(
    names=(), *, n_clusters=3, max_rounds=4, tol=0.0, quorum=None, privacy=None, **fedhk
):
    """Return a plan: masked where ``names`` lists participants, noisy where privacy says so.

    Further keywords are keys of its table ``[fedhk]``.
    """
    fields = {
        "method": "fedhk-mvfc",
        "n_clusters": n_clusters,
        "max_rounds": max_rounds,
        "tol": tol,
        "quorum": {"timeout_s": 5.0} | (quorum or {}),
        "privacy": {"max_rows": MAX_ROWS} | (privacy or {}),
    }
    if fields["privacy"].get("mechanism") == "gaussian":
        fields["fedhk"] = {"heat_kernel": "one"} | fedhk
    else:
        fields["profile"] = fedhk.pop("profile", "paper")
        fields["fedhk"] = {"init": "spread", "acceleration": "none", "n_init": 2} | fedhk
    if names:
        fields["privacy"] |= {"secure_aggregation": True, "participants": sorted(names)}
    return RunPlan.parse(fields)


def noisy_plan(names=(), *, epsilon=4.0, privacy=None, **options):
    """Return a plan with Gaussian noise; masked where ``names`` lists participants."""
    privacy = {"mechanism": "gaussian", "epsilon": epsilon} | (privacy or {})
    return protected_plan(names, privacy=privacy, **options)


def plain_twin(plan):
    """Return the plan without its protection."""
    fields = plan.fields()
    del fields["privacy"], fields["quorum"]["min_sites"]
    return RunPlan.parse(fields)


# -- sites -----------------------------------------------------------------------------------


def clustered_sites(n_sites=3, n=120, *, seed=0, missing=0.0):
    """Deal rows of three clusters in two views to sites; some cells may be missing."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(3, size=n)
    views = [
        rng.normal(size=(n, d)) + 3.0 * rng.normal(size=(3, d))[truth] + shift
        for d, shift in ((2, 40.0), (3, -1.0))
    ]
    for view in views:
        view[rng.random(view.shape) < missing] = np.nan
    return split(views, truth, "iid", n_sites, seed=seed)


def declared_schema(sites) -> DataSchema:
    """Return a schema whose bounds the sites' data just keep to."""
    views = {name: site["views"] for name, site in sites.items()}
    return bounded_schema(schema_of(views), views)


def protected_workers(sites, schema=None) -> dict[str, SiteWorker]:
    """Return one array worker a site, by name, with keys and a common roster."""
    keys, roster = draw_keys(sorted(sites))
    schema = schema or declared_schema(sites)
    return {
        name: array_worker(name, sites[name]["views"], schema, identity=keys[name], roster=roster)
        for name in sorted(sites)
    }


def run(plan, sites, **options):
    """Run a plan over fresh array workers."""
    return federate(plan, protected_workers(sites), **options)


def site_folders(out: Path, sites=3, n=180, **policy) -> Path:
    """Write site folders with keys and a roster; keywords replace entries of their policies."""
    synthesize_cardio(out, n=n, sites=sites, partition="iid")
    for path in out.glob("*/site.toml"):
        text = path.read_text()
        for key, value in policy.items():
            head, _, rest = text.partition("[policy]\n")
            kept = [line for line in rest.splitlines() if not line.startswith(f"{key} =")]
            text = f"{head}[policy]\n{key} = {value}\n" + "\n".join(kept) + "\n"
        path.write_text(text)
    return out


def folder_workers(data: Path) -> dict[str, SiteWorker]:
    """Return one worker a site folder, by name."""
    return {path.parent.name: folder_worker(path.parent) for path in data.glob("*/site.toml")}


def events(worker: SiteWorker, name=None):
    """Return the events in a site's audit log, or the facts of those of a name."""
    entries = worker.source.safe.audit.entries()
    if name is None:
        return [entry.event for entry in entries]
    return [entry.facts for entry in entries if entry.event == name]


# -- noise -----------------------------------------------------------------------------------


@dataclass
class Watched:
    """What sites rounded, what noise they added, and what the server opened, in order."""

    step: float = 0.0
    sums: list[np.ndarray] = field(default_factory=list)
    noise: list[np.ndarray] = field(default_factory=list)
    opened: list[np.ndarray] = field(default_factory=list)


@contextlib.contextmanager
def watched_sums(monkeypatch) -> Iterator[Watched]:
    """Watch all sums, and draw noise from a counter: release i adds the same integers each time."""
    watched = Watched()
    encode, decode = FixedPoint.encode, FixedPoint.decode

    def sampler(sigma):
        rng = np.random.default_rng(len(watched.noise))
        watched.noise.append(np.rint(rng.normal(size=sigma.shape) * sigma).astype(np.int64))
        return watched.noise[-1]

    def encoding(codec, values):
        watched.step = codec.step
        watched.sums.append(values)
        return encode(codec, values)

    def decoding(codec, total):
        watched.opened.append(decode(codec, total))
        return watched.opened[-1]

    with monkeypatch.context() as patch:
        patch.setattr(mechanisms, "rounded_gaussian", sampler)
        patch.setattr(FixedPoint, "encode", encoding)
        patch.setattr(FixedPoint, "decode", decoding)
        yield watched


# -- misbehaving servers and sites -----------------------------------------------------------


def inner(message) -> Message | None:
    """Return the method's request that a sum or a closing answers; None where there is none."""
    if isinstance(message, m.SumRequest):
        return from_bytes(message.bodies[-1].tobytes())
    if isinstance(message, m.CloseRequest) and message.body.size:
        return from_bytes(message.body.tobytes())
    return None


def is_round(message, number=None) -> bool:
    """Say whether a request asks for the sums of a round."""
    asked = inner(message)
    return isinstance(asked, m.RoundRequest) and number in (None, asked.round)


class Away:
    """A site whose worker cannot be reached while a condition on the request holds.

    Parameters
    ----------
    when : callable
        From a request to whether the site is away.
    answers : bool
        Whether the worker gets the request and only its reply is lost.
    """

    def __init__(self, when: Callable[[Message], bool], *, answers: bool = False) -> None:
        self.when = when
        self.answers = answers
        self.missed: list[Message] = []

    def __call__(self, worker: SiteWorker, body: bytes) -> bytes:
        """Answer, or be away."""
        request = from_bytes(body)
        if not self.when(request):
            return worker.handle(body)
        self.missed.append(request)
        if self.answers:
            worker.handle(body)
        raise TransportError("the worker of this site is not running")


def once(when: Callable[[Message], bool]) -> Callable[[Message], bool]:
    """Return a condition that holds the first time only."""
    seen: list[Message] = []

    def first(request: Message) -> bool:
        if seen or not when(request):
            return False
        seen.append(request)
        return True

    return first


class Restarting:
    """A site whose worker is started anew, over the same folder, before some requests."""

    def __init__(self, folder: Path, when: Callable[[Message], bool]) -> None:
        self.folder = folder
        self.when = when
        self.worker: SiteWorker | None = None
        self.restarts = 0

    def __call__(self, worker: SiteWorker, body: bytes) -> bytes:
        """Answer through the newest worker."""
        if self.worker is None:
            self.worker = worker
        if self.when(from_bytes(body)):
            self.worker = folder_worker(self.folder)
            self.restarts += 1
        return self.worker.handle(body)


@contextlib.contextmanager
def passing_time(monkeypatch, act: Callable[[float], None] = lambda now: None) -> Iterator[None]:
    """Let waiting cost no time; ``act(now)`` is called at every pause."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds
        act(now[0])

    with monkeypatch.context() as patch:
        patch.setattr(FederatedStrategy, "clock", staticmethod(lambda: now[0]))
        patch.setattr(FederatedStrategy, "sleep", staticmethod(sleep))
        yield


class Recording:
    """Keeps each request and reply of a site."""

    def __init__(self) -> None:
        self.requests: list[Message] = []
        self.replies: list[Message] = []

    def __call__(self, worker: SiteWorker, body: bytes) -> bytes:
        """Answer and keep both."""
        reply = worker.handle(body)
        self.requests.append(from_bytes(body))
        self.replies.append(from_bytes(reply))
        return reply

    def of(self, kind):
        """Return requests or replies of a kind, in order."""
        return [each for each in [*self.requests, *self.replies] if isinstance(each, kind)]


def ask(worker: SiteWorker, request: Message) -> Message:
    """Ask a worker and read its reply."""
    return from_bytes(worker.handle(to_bytes(request)))


def copied(folder: Path, to: Path) -> Path:
    """Copy a folder, keys and modes included."""
    return Path(shutil.copytree(folder, to))
