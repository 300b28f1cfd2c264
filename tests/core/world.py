"""A simulated cluster around the real round machine.

What the target may say next is a pure function of the text, and a book is kept of
what was drafted after which text. So "drafted from exactly the text it follows"
can be checked token by token. Delivery order, duplicates and losses are drawn
from one seed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.core import events, rounds
from orchestrator.core.drafts import NO_ROW, Piece
from orchestrator.core.pacing import (
    Chained,
    Eager,
    Fallback,
    Fixed,
    Learned,
    Levels,
    Matched,
    Policy,
    Thompson,
)
from orchestrator.core.state import State
from orchestrator.steering.config import Limits, Phase, SessionConfig
from services.contract.types import (
    CommitDraft,
    Credit,
    Draft,
    OpenDraft,
    OpenVerify,
    Proposal,
    ResolvedSampling,
    Role,
    Verify,
    VerifyMode,
)
from tests.core.actors import VOCABULARY, Ledger, SimDrafter, SimVerifier, Text, allowed, row_of

PROMPT = (7, 8, 9)


@dataclass
class Faults:
    """How unkind the world is."""

    accuracy: float = 0.7
    duplicates: float = 0.0
    reorder: float = 0.0
    lose_drafter: float = 0.0
    lose_verifier: float = 0.0
    drafter_speed: float = 1.0
    verifier_speed: float = 1.0
    # The load allows another window.
    caps: float = 0.0


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
        num_candidates: int = 1,
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
            num_candidates=num_candidates,
            vocab_size=VOCABULARY,
            plain_ahead=bool(seed % 2),
            limits=Limits(
                max_in_flight=max_in_flight,
                worker_attempts=1000,
                drafter_backoff=0.001,
                deadline=1e6,
            ),
        )
        # A turn of the world takes a millisecond: its drafters are waited for accordingly.
        learned = Learned(mode.exact_match)
        inner: Policy = {
            "fixed": Fixed(window, patience=0.1),
            "eager": Eager(window),
            "matched": Matched(window, learned),
            "thompson": Thompson(window, learned),
            "levels": Levels(window, learned, patience=0.1),
        }["levels" if num_candidates > 1 and pacing == "thompson" else pacing]
        policy: Policy = Fallback(inner) if fallback else inner
        if max_in_flight > 1 and num_candidates == 1:
            policy = Chained(policy)
        self.state: State = rounds.new_session(config, policy)
        self.ledger = Ledger(mode)
        self.verifiers: dict[str, SimVerifier] = {}
        self.drafters: dict[str, SimDrafter] = {}
        self.wires: dict[str, list[Callable[[], None]]] = {}
        self.emitted: list[int] = []
        self.persisted: list[int] = []
        self.finished = False
        self.suspended = False
        # Commits that cost the drafter what it had drafted beyond them.
        self.rollbacks: list[CommitDraft] = []
        self.told_now = False
        self.trace: list[tuple[events.Event, tuple[events.Action, ...]]] = []

    # --- driving ------------------------------------------------------------------

    def run(self, steps: int = 10_000):
        self.feed(events.Begin(self.now))
        for _ in range(steps):
            if self.finished:
                break
            self.turn()
        return self

    def turn(self) -> None:
        ready = [name for name, wire in self.wires.items() if wire]
        self.now += 0.001 if ready else 0.02
        self._misfortune()
        if ready and self.random.random() < 0.8:
            self._deliver(self.random.choice(ready))
        if self.random.random() < self.faults.drafter_speed:
            self._draft()
        if self.random.random() < 0.2:
            self.feed(events.Tick(self.now))
        if self.faults.caps and self.random.random() < self.faults.caps:
            self.feed(events.Capped(self.now, self.random.randrange(2 * self.state.config.window)))

    def _deliver(self, name: str) -> None:
        if "verifier" in name and self.random.random() >= self.faults.verifier_speed:
            return
        wire = self.wires.get(name)
        if not wire:
            return
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
        self.feed(events.WorkerLost(self.now, role, name))

    def _draft(self) -> None:
        for name, drafter in self.drafters.items():
            draft = drafter.draft("s")
            if draft is not None:
                self._post(f"{name}>", lambda n=name, d=draft: self._arrive(n, d))

    def _arrive(self, name: str, draft: Draft) -> None:
        self.feed(events.DraftArrived(self.now, name, draft))

    def _post(self, wire: str, message: Callable[[], None]) -> None:
        self.wires.setdefault(wire, []).append(message)

    # --- actions ------------------------------------------------------------------

    def feed(self, event: events.Event) -> None:
        before = self.state
        self.state, actions = rounds.step(self.state, replace(event, at=self.now))
        self.trace.append((event, actions))
        self.check(before)
        self.told_now = any(isinstance(action, events.SendToDrafter) for action in actions)
        for action in actions:
            self.perform(action)

    def perform(self, action: events.Action) -> None:
        match action:
            case events.NeedWorker(role):
                name = f"{role.value}{self.random.randrange(10**9)}"
                self._post("placement", lambda: self._attach(role, name))
            case events.OpenOnWorker(name, message):
                self._post(f">{name}", lambda: self._open(name, message))
            case events.SendVerify(name, message):
                self._check_not_lost(message)
                self._check_bonus(message)
                self._check_rows(message)
                self._post(f">{name}", lambda: self._verify(name, message))
            case events.SendToDrafter(name, message):
                self._post(f">{name}", lambda: self._tell(name, message))
            case events.Persist(commit):
                self._post("store", lambda: self._store(commit.record.round, commit))
            case events.Emit(commit):
                done = len(self.emitted) + len(commit.token_ids)
                assert done <= len(self.persisted), "emitted before it was stored"
                self.emitted += commit.token_ids
            case events.Release(_, name):
                self.verifiers.pop(name, None)
                self.drafters.pop(name, None)
            case events.Finish():
                self.finished = True
            case events.Suspend():
                self.suspended = True

    def _attach(self, role: Role, name: str) -> None:
        taken = self.state.verifier if role is Role.VERIFIER else self.state.drafter
        if taken is not None:
            return
        if role is Role.VERIFIER:
            self.verifiers[name] = SimVerifier(self.ledger.mode, older=not self.seed % 5)
        else:
            self.drafters[name] = SimDrafter(self.faults.accuracy, self.seed, self.ledger)
        self.feed(events.WorkerAttached(self.now, role, name))

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
        opened = events.WorkerOpened(self.now, role, name, message.epoch)
        self._post(f"{name}>", lambda: self.feed(opened))

    def _verify(self, name: str, message: Verify) -> None:
        if verifier := self.verifiers.get(name):
            verdict = verifier.verify(message)
            self._post(
                f"{name}>", lambda: self.feed(events.VerdictArrived(self.now, name, verdict))
            )

    def _tell(self, name: str, message: CommitDraft | Credit) -> None:
        drafter = self.drafters.get(name)
        if drafter is None:
            return
        if isinstance(message, Credit):
            drafter.credit(message.window)
        else:
            before = drafter.rollbacks
            if not drafter.commit(message):
                self._fail(name, drafter)
            self.rollbacks += [message] * (drafter.rollbacks - before)

    def _fail(self, name: str, drafter: SimDrafter) -> None:
        self.drafters.pop(name)
        lost = events.WorkerLost(self.now, Role.DRAFTER, name, epoch=drafter.epoch)
        self._post(f"{name}>", lambda: self.feed(lost))

    def _store(self, index: int, commit: object) -> None:
        base, tokens = commit.base_len, commit.token_ids  # type: ignore[attr-defined]
        if base == len(self.persisted):
            self.persisted += tokens
        self.feed(events.Persisted(self.now, index))

    # --- properties -----------------------------------------------------------------

    def check(self, before: State) -> None:
        state = self.state
        assert state.committed[: len(before.committed)] == before.committed, "committed shrank"
        self._check_kept_up(replace(state))
        if state.phase is Phase.RUNNING:
            text = state.committed
            for block in state.live:
                text = self._check_drafted(block.epoch, text, block.piece)
            for piece in state.tail:
                text = self._check_drafted(state.epoch, text, piece)

    def _check_kept_up(self, anew: State) -> None:
        """What a state keeps of its text is what follows from it."""
        state = self.state
        kept = (state.live, state.flying, state.drafted, state.end_hash, state.end)
        length = len(anew.committed) + len(anew.speculated)
        assert kept == (anew.live, anew.flying, anew.drafted, anew.end_hash, length)

    def _check_drafted(self, epoch: int, text: Text, piece: Piece) -> Text:
        if not piece.tree.is_chain:
            drafted = self.ledger.trees.get((epoch, text), [])
            assert piece.tree in drafted, "a tree follows another text"
            return text
        for token in piece.tree.token_ids:
            drafted = self.ledger.tokens.get((epoch, text))
            assert drafted == token, "a tail token follows another text"
            text = (*text, token)
        return text

    def _check_not_lost(self, block: Verify) -> None:
        """A plain block is sent only when no drafter believes that its tokens are on the way."""
        attached = self.state.drafter
        if self.faults.reorder or attached is None or block.tree.token_ids:
            return
        drafter = self.drafters.get(attached.worker)
        underway = any(w for name, w in self.wires.items() if attached.worker in name)
        room = self.state.config.sampling.max_tokens - block.base_len - 1
        if drafter and drafter.epoch and room and not underway and not self.told_now:
            kept = len(self.state.committed) + self.state.drafted
            assert len(drafter.text) <= kept, "drafted tokens were lost"

    def _check_bonus(self, block: Verify) -> None:
        """By rejection, a bonus ends a block if and only if nothing may follow what is in it."""
        faults, state = self.faults, self.state
        if state.config.mode.exact_match or not block.tree.is_chain or not block.tree.token_ids:
            assert block.want_bonus
            return
        end = block.base_len + len(block.tree)
        unruly = faults.reorder or faults.duplicates or faults.caps
        if unruly or end + 1 == state.config.sampling.max_tokens:
            return
        if block.want_bonus:
            assert self.ledger.furthest[block.epoch] < end, "a bonus where a token was drafted"
        else:
            others = any(b.round != block.round for b in state.live)
            assert others or state.tail or self._may_draft(), "nothing follows, and no bonus"

    def _may_draft(self) -> bool:
        attached = self.state.drafter
        drafter = self.drafters.get(attached.worker) if attached else None
        if attached is None or drafter is None:
            return False
        underway = any(wire for name, wire in self.wires.items() if attached.worker in name)
        return drafter.turn or underway

    def _check_rows(self, block: Verify) -> None:
        """Every token of a sampled chain goes with the row that it came with."""
        tree = block.tree
        if tree.proposal is not Proposal.SAMPLED:
            assert tree.q is None
            return
        text = (self.state.committed + self.state.flying)[: block.base_len]
        assert len(tree.q or ()) == len(tree)
        for token, row in zip(tree.token_ids, tree.q or (), strict=True):
            assert row == (row_of(text, token) or NO_ROW), "a row of q was lost"
            text = (*text, token)

    def wasted(self) -> list[CommitDraft]:
        """What a perfect drafter need not lose: by rejection, only a plain round may cost it.

        There the target draws a token of its own where a drafted one may be on its way.
        """
        if self.state.config.mode.exact_match:
            return self.rollbacks
        done = [
            a.commit for _, actions in self.trace for a in actions if isinstance(a, events.Persist)
        ]
        drafted = {commit.base_len for commit in done if commit.record.draft_tokens}
        return [commit for commit in self.rollbacks if commit.base_len in drafted]

    def lawful(self) -> bool:
        """Whether the client got a whole text that the target may say, and that is stored."""
        text, limit = tuple(self.emitted), self.state.config.sampling.max_tokens
        said = all(t in allowed(self.ledger.mode, text[:i]) for i, t in enumerate(text))
        return said and len(text) == limit and self.emitted == self.persisted
