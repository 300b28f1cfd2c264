"""A simulated cluster around the real round machine.

The target is a pure function of the text; the drafter guesses it with a given
accuracy, its guess a pure function of the text, too. So "drafted from exactly the
text it follows" can be checked token by token. Delivery order, duplicates and
losses are drawn from one seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from orchestrator.core import rounds
from orchestrator.core.events import (
    Action,
    Begin,
    DraftArrived,
    Emit,
    Event,
    Finish,
    NeedWorker,
    OpenOnWorker,
    Persist,
    Persisted,
    Release,
    SendToDrafter,
    SendVerify,
    Suspend,
    Tick,
    VerdictArrived,
    WorkerAttached,
    WorkerLost,
    WorkerOpened,
)
from orchestrator.core.pacing import Policy, make_policy
from orchestrator.core.state import Limits, Phase, SessionConfig, State
from services.common.types import (
    EMPTY_HASH,
    CommitDraft,
    Credit,
    Draft,
    DraftTree,
    OpenDraft,
    OpenVerify,
    ResolvedSampling,
    Role,
    Verdict,
    Verify,
    VerifyMode,
    extend_hash,
)

VOCABULARY = 997
EOS = 0
PROMPT = (7, 8, 9)
Text = tuple[int, ...]


def _draw(kind: bytes, seed: int, text: Text) -> int:
    packed = b"".join(token.to_bytes(4, "little") for token in text)
    digest = blake2b(packed, key=kind + seed.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def truth(text: Text) -> int:
    """The target's next token."""
    return 1 + _draw(b"target", 0, text) % (VOCABULARY - 1)


@dataclass
class Faults:
    """How unkind the world is."""

    accuracy: float = 0.7
    duplicates: float = 0.0
    reorder: float = 0.0
    lose_drafter: float = 0.0
    lose_verifier: float = 0.0
    drafter_speed: float = 1.0


@dataclass
class SimVerifier:
    """The verifier's side of the protocol, on `truth`."""

    text: list[int] = field(default_factory=list)
    opened: bool = False
    last: Verdict | None = None
    last_round: int = 0
    outcomes: dict[int, Verdict] = field(default_factory=dict)

    def verify(self, block: Verify) -> Verdict:
        if block.round not in self.outcomes:
            self.outcomes[block.round] = self._decide(block)
        return self.outcomes[block.round]

    def _decide(self, block: Verify) -> Verdict:
        tokens, base = block.tree.token_ids, block.base_len
        refused = Verdict(block.session, block.epoch, block.round, base, discarded=True)
        last, self.last_round = self.last, block.round
        if block.extends_round:
            if last is None or last.round != block.extends_round or not last.all_accepted:
                return self._keep(refused)
            if len(last.token_ids) > last.accepted:
                if not tokens or tokens[0] != last.token_ids[-1]:
                    return self._keep(refused)
                tokens, base = tokens[1:], base + 1
        if base != len(self.text):
            return self._keep(refused)
        return self._keep(self._walk(block, tokens, base))

    def _walk(self, block: Verify, tokens: Text, base: int) -> Verdict:
        out: list[int] = []
        while len(out) < len(tokens) and truth((*self.text, *out)) == tokens[len(out)]:
            out.append(tokens[len(out)])
        accepted, everything = len(out), len(out) == len(tokens)
        if not everything or block.want_bonus or not tokens:
            out.append(truth((*self.text, *out)))
        self.text += out
        return Verdict(
            block.session,
            block.epoch,
            block.round,
            base,
            tuple(out),
            accepted,
            everything,
            draft_tokens=len(tokens),
        )

    def _keep(self, verdict: Verdict) -> Verdict:
        self.last = verdict
        return verdict


@dataclass
class SimDrafter:
    """The drafter's side of the protocol, guessing `truth`."""

    accuracy: float
    seed: int
    epoch: int = 0
    known: int = 0
    window: int = 0
    limit: int = 0
    text: list[int] = field(default_factory=list)
    rollbacks: int = 0

    def guess(self, text: Text) -> int:
        right = _draw(b"coin", self.seed, text) % 10_000 < self.accuracy * 10_000
        return truth(text) if right else 1 + _draw(b"wrong", self.seed, text) % (VOCABULARY - 1)

    def open(self, message: OpenDraft) -> None:
        self.epoch, self.window = message.epoch, message.window
        self.text, self.known = list(message.committed), len(message.committed)
        self.limit = message.sampling.max_tokens

    def commit(self, message: CommitDraft) -> bool:
        """False if a commit is missing before this one."""
        if message.epoch < self.epoch:
            return True
        end = message.base_len + len(message.token_ids)
        bumped = message.epoch > self.epoch
        if end < self.known or (end == self.known and not bumped):
            return True
        if message.base_len > len(self.text):
            return False
        committed = [*self.text[: message.base_len], *message.token_ids]
        tail = self.text[end:] if self.text[:end] == committed and not bumped else []
        self.rollbacks += len(self.text) > end and not tail
        self.rollbacks += len(self.text) <= end and self.text != committed[: len(self.text)]
        self.text, self.known, self.epoch = committed + tail, end, message.epoch
        return True

    def draft(self, session: str) -> Draft | None:
        if len(self.text) - self.known >= self.window or len(self.text) >= self.limit:
            return None
        token = self.guess(tuple(self.text))
        first = len(self.text)
        prefix = extend_hash(EMPTY_HASH, self.text)
        self.text.append(token)
        return Draft(
            session, self.epoch, self.known, first, prefix, DraftTree((token,)), draft_ms=1.0
        )


class World:
    """One session, its workers, its store and the network between them."""

    def __init__(
        self,
        seed: int,
        faults: Faults,
        *,
        pacing: str = "eager",
        fallback: bool = False,
        max_tokens: int = 24,
        window: int = 6,
        mode: VerifyMode = VerifyMode.GREEDY,
        max_in_flight: int = 1,
        method: str = "model",
    ) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.faults = faults
        self.now = 0.0
        config = SessionConfig(
            "s",
            PROMPT,
            mode,
            ResolvedSampling(temperature=0.0, max_tokens=max_tokens),
            seed=1,
            method=method,
            window=window,
            vocab_size=VOCABULARY,
            limits=Limits(
                max_in_flight=max_in_flight,
                worker_attempts=1000,
                drafter_backoff=0.001,
                deadline=1e6,
            ),
        )
        policy: Policy = make_policy(pacing, window, fallback=fallback)
        self.state: State = rounds.new_session(config, policy)
        self.verifiers: dict[str, SimVerifier] = {}
        self.drafters: dict[str, SimDrafter] = {}
        self.wires: dict[str, list[Callable[[], None]]] = {}
        self.emitted: list[int] = []
        self.persisted: list[int] = []
        self.finished = False
        self.suspended = False
        self.rollbacks = 0
        self.told_now = False
        self.trace: list[tuple[Event, tuple[Action, ...]]] = []

    # --- driving ------------------------------------------------------------------

    def run(self, steps: int = 6000) -> None:
        self.feed(Begin(self.now))
        for _ in range(steps):
            if self.finished:
                return
            self.turn()

    def turn(self) -> None:
        self.now += 0.01
        self._misfortune()
        ready = [name for name, wire in self.wires.items() if wire]
        if ready and self.random.random() < 0.8:
            self._deliver(self.random.choice(ready))
        elif self.random.random() < self.faults.drafter_speed:
            self._draft()
        if self.random.random() < 0.2:
            self.feed(Tick(self.now))

    def _deliver(self, name: str) -> None:
        wire = self.wires[name]
        late = name != "store" and self.random.random() < self.faults.reorder
        index = self.random.randrange(len(wire)) if late else 0
        message = wire[index]
        if self.random.random() >= self.faults.duplicates:
            wire.pop(index)
        message()

    def _misfortune(self) -> None:
        chances = self.faults
        if self.drafters and self.random.random() < chances.lose_drafter:
            self._kill(Role.DRAFTER, self.random.choice(list(self.drafters)))
        if self.verifiers and self.random.random() < chances.lose_verifier:
            self._kill(Role.VERIFIER, self.random.choice(list(self.verifiers)))

    def _kill(self, role: Role, name: str) -> None:
        workers: dict[str, object] = self.verifiers if role is Role.VERIFIER else self.drafters  # type: ignore[assignment]
        workers.pop(name)
        self.wires = {k: w for k, w in self.wires.items() if name not in k}
        self.feed(WorkerLost(self.now, role, name))

    def _draft(self) -> None:
        for name, drafter in self.drafters.items():
            draft = drafter.draft("s")
            if draft is not None:
                self._post(f"{name}>", lambda n=name, d=draft: self._arrive(n, d))

    def _arrive(self, name: str, draft: Draft) -> None:
        self.feed(DraftArrived(self.now, name, draft))

    def _post(self, wire: str, message: Callable[[], None]) -> None:
        self.wires.setdefault(wire, []).append(message)

    # --- actions ------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        before = self.state
        self.state, actions = rounds.step(self.state, replace(event, at=self.now))
        self.trace.append((event, actions))
        self.check(before)
        self.told_now = any(isinstance(action, SendToDrafter) for action in actions)
        for action in actions:
            self.perform(action)

    def perform(self, action: Action) -> None:
        match action:
            case NeedWorker(role):
                name = f"{role.value}{self.random.randrange(10**9)}"
                self._post("placement", lambda: self._attach(role, name))
            case OpenOnWorker(name, message):
                self._post(f">{name}", lambda: self._open(name, message))
            case SendVerify(name, message):
                self._check_not_lost(message)
                self._post(f">{name}", lambda: self._verify(name, message))
            case SendToDrafter(name, message):
                self._post(f">{name}", lambda: self._tell(name, message))
            case Persist(commit):
                self._post("store", lambda: self._store(commit.record.index, commit))
            case Emit(commit):
                done = len(self.emitted) + len(commit.token_ids)
                assert done <= len(self.persisted), "emitted before it was stored"
                self.emitted += commit.token_ids
            case Release(_, name):
                self.verifiers.pop(name, None)
                self.drafters.pop(name, None)
            case Finish():
                self.finished = True
            case Suspend():
                self.suspended = True

    def _attach(self, role: Role, name: str) -> None:
        taken = self.state.verifier if role is Role.VERIFIER else self.state.drafter
        if taken is not None:
            return
        if role is Role.VERIFIER:
            self.verifiers[name] = SimVerifier()
        else:
            self.drafters[name] = SimDrafter(self.faults.accuracy, self.seed)
        self.feed(WorkerAttached(self.now, role, name))

    def _open(self, name: str, message: OpenDraft | OpenVerify) -> None:
        role = Role.VERIFIER if isinstance(message, OpenVerify) else Role.DRAFTER
        if isinstance(message, OpenVerify):
            verifier = self.verifiers.get(name)
            if verifier is None or verifier.opened:
                return
            verifier.opened, verifier.text = True, list(message.committed)
        else:
            drafter = self.drafters.get(name)
            if drafter is None or drafter.epoch >= message.epoch:
                return
            drafter.open(message)
        opened = WorkerOpened(self.now, role, name, message.epoch)
        self._post(f"{name}>", lambda: self.feed(opened))

    def _verify(self, name: str, message: Verify) -> None:
        if verifier := self.verifiers.get(name):
            verdict = verifier.verify(message)
            self._post(f"{name}>", lambda: self.feed(VerdictArrived(self.now, name, verdict)))

    def _tell(self, name: str, message: CommitDraft | Credit) -> None:
        drafter = self.drafters.get(name)
        if drafter is None:
            return
        if isinstance(message, Credit):
            drafter.window = message.window
        else:
            before = drafter.rollbacks
            if not drafter.commit(message):
                self._fail(name, drafter)
            self.rollbacks += drafter.rollbacks - before

    def _fail(self, name: str, drafter: SimDrafter) -> None:
        self.drafters.pop(name)
        lost = WorkerLost(self.now, Role.DRAFTER, name, epoch=drafter.epoch)
        self._post(f"{name}>", lambda: self.feed(lost))

    def _store(self, index: int, commit: object) -> None:
        base, tokens = commit.base_len, commit.token_ids  # type: ignore[attr-defined]
        if base == len(self.persisted):
            self.persisted += tokens
        self.feed(Persisted(self.now, index))

    # --- properties -----------------------------------------------------------------

    def check(self, before: State) -> None:
        state = self.state
        assert state.committed[: len(before.committed)] == before.committed, "committed shrank"
        text = list(state.committed)
        if self.drafters and state.phase is Phase.RUNNING:
            oracle = SimDrafter(self.faults.accuracy, self.seed)
            for token in state.speculated:
                assert token == oracle.guess(tuple(text)), "a tail token follows another text"
                text.append(token)

    def _check_not_lost(self, block: Verify) -> None:
        """A plain block is sent only when no drafter believes that its tokens are on the way."""
        attached = self.state.drafter
        if self.faults.reorder or attached is None or block.tree.token_ids:
            return
        drafter = self.drafters.get(attached.worker)
        underway = any(w for name, w in self.wires.items() if attached.worker in name)
        room = self.state.config.sampling.max_tokens - block.base_len - 1
        if drafter and drafter.epoch and room and not underway and not self.told_now:
            assert len(drafter.text) <= len(self.state.committed), "drafted tokens were lost"

    def expected(self) -> list[int]:
        text: list[int] = []
        limit = self.state.config.sampling.max_tokens
        while len(text) < limit:
            text.append(truth(tuple(text)))
        return text
