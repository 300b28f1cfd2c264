"""A cluster of real processes, each behind a proxy, each to be killed and started again."""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import grpc
from paceline import Client

from services.cluster.supervisor import ProcessSpec
from services.engine.checkpoint.heads import is_head
from services.runtime.ports import free_port
from testkit.chaos.member import Member
from testkit.chaos.mutual_tls import MutualTls
from testkit.chaos.proxy import Network
from testkit.chaos.store import ONE, OneServer, ReplicatedStore, Store

VERIFIER, DRAFTER, ORCHESTRATOR = ROLES = ("verifier", "drafter", "orchestrator")
START_SECONDS = 240.0

ALWAYS_DRAFT = ("--pacing", "fixed")
"""Drafts are made whether they pay or not: beside tiny targets they seldom do.

A verifier that runs its sessions waits for none unless it is told to.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """What runs. `wire_seconds`: what a byte takes to a verifier and back, each way.

    `step_seconds`: what each pass of a target takes on top, as on a device of its own.
    `flags` go to each process of a role. `draft` empty: n-grams. `synthetic`: workers run no
    models, and take the times that this file tells. `tls`: every call and every link shows a
    certificate.
    """

    target: str = ""
    draft: str = ""
    synthetic: str = ""
    verifiers: int = 2
    drafters: int = 2
    orchestrators: int = 2
    wire_seconds: float = 0.0
    step_seconds: float = 0.0
    tls: bool = False
    verifier_flags: tuple[str, ...] = ()
    drafter_flags: tuple[str, ...] = ()
    orchestrator_flags: tuple[str, ...] = ALWAYS_DRAFT
    store: str = ONE
    """One of `TOPOLOGIES`."""
    store_program: Path | None = None
    """The server of a replicated store; None = what `paceline up` would run."""
    metrics: bool = False
    """Whether each process serves `/metrics`, at `Member.metrics`."""
    token: str | None = None
    """What clients show."""

    def arguments(self, role: str) -> list[str]:
        """The flags of one role."""
        if role == VERIFIER:
            model = ["--target", self.target]
            model = ["--synthetic", self.synthetic] if self.synthetic else model
            return [*model, "--threads", "1", *self.verifier_flags]
        if role == DRAFTER:
            if self.synthetic:
                return ["--synthetic", self.synthetic, "--threads", "1", *self.drafter_flags]
            model = ["--draft", self.draft, "--threads", "1"] if self.draft else []
            base = ["--draft-base", self.target] if is_head(self.draft) else []
            return [*model, *base, *self.drafter_flags]
        return list(self.orchestrator_flags)

    def names(self) -> list[tuple[str, str]]:
        """Every process: its role and its name, workers first."""
        counts = {VERIFIER: self.verifiers, DRAFTER: self.drafters}
        counts[ORCHESTRATOR] = self.orchestrators
        return [(role, f"{role}-{n}") for role in ROLES for n in range(1, counts[role] + 1)]


class Cluster:
    """The processes of a layout, and a store."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._stack = ExitStack()
        self._mutual_tls: MutualTls | None = None
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-chaos-"))
            self.folder = Path(folder)
            if self.layout.tls:
                self._mutual_tls = MutualTls.make(self.folder / "certificates")
            self._network = stack.enter_context(Network())
            self.store = self._store()
            stack.callback(self.store.stop)
            self._stack = stack
            for role, name in self.layout.names():
                self.add(role, name).start()
            self.wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, role: str, name: str, *flags: str) -> Member:
        """One more process, with these flags behind those of its role; it is yet to be started."""
        member = self._member(role, name, *flags)
        self.members.append(member)
        self._stack.callback(member.put_down)
        return member

    @property
    def addresses(self) -> list[str]:
        """Where clients connect: the proxy before each orchestrator."""
        return [member.address for member in self.of(ORCHESTRATOR)]

    def client(self, *addresses: str, first: int = 0, **options: Any) -> Client:
        """The library's client, to all orchestrators or to these, one tried before the others."""
        places = list(addresses) or self.addresses
        first %= len(places)
        own = self._mutual_tls.of_a_client() if self._mutual_tls else {}
        return Client(places[first:] + places[:first], token=self.layout.token, **own, **options)

    @property
    def credentials(self) -> grpc.ChannelCredentials | None:
        """What a caller without the library connects with; None = plaintext."""
        return self._mutual_tls.credentials() if self._mutual_tls else None

    def of(self, role: str) -> list[Member]:
        """The processes of a role."""
        return [member for member in self.members if member.role == role]

    def named(self, name: str) -> Member:
        """The process of that name."""
        return next(member for member in self.members if member.name == name)

    def wait(self, timeout: float = START_SECONDS) -> None:
        """Wait until every process serves. Raises StartError."""
        for member in self.members:
            member.wait(timeout)

    def heal(self) -> None:
        """Make every wire a good one again."""
        self.store.heal()
        for member in self.members:
            member.proxy.heal()

    def _store(self) -> Store:
        if self.layout.store == ONE:
            return OneServer(self._network)
        return ReplicatedStore(self.layout.store, self.layout.store_program)

    def _member(self, role: str, name: str, *flags: str) -> Member:
        ready = self.folder / f"{name}.ready"
        delay = self.layout.wire_seconds if role == VERIFIER else 0.0
        proxy = self._network.proxy(partial(_said, ready), delay)
        own = [*self.layout.arguments(role), *flags, *_identity(role, name, proxy.address)]
        common = ["--redis", self.store.url, "--ready-file", str(ready), *self._secured(role)]
        port = free_port() if self.layout.metrics else 0
        common += ["--metrics-port", str(port)] if port else []
        spec = ProcessSpec(name, (role, *own, *common), ready, self.folder / f"{name}.log")
        metrics = f"127.0.0.1:{port}" if port else ""
        step_seconds = self.layout.step_seconds if role == VERIFIER else 0.0
        return Member(spec, role, proxy, metrics, step_seconds)

    def _secured(self, role: str) -> list[str]:
        if self._mutual_tls is None:
            return []
        linking = self._mutual_tls.linking() if role == ORCHESTRATOR else []
        return [*self._mutual_tls.listening(), *linking]


def _identity(role: str, name: str, address: str) -> list[str]:
    if role == ORCHESTRATOR:
        return ["--orchestrator-id", name, "--port", "0"]
    return ["--worker-id", name, "--port", "0", "--advertise", address]


def _said(ready: Path) -> str:
    """What a process wrote into its ready file; nothing while it does not serve."""
    try:
        return ready.read_text().strip()
    except OSError:
        return ""
