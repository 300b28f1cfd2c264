"""A session of the round machine with both workers, led step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.core import events, rounds
from orchestrator.core.pacing import Decision, FinishedRound, Send, View, Wait
from orchestrator.steering.config import Limits, SessionConfig
from services.contract import types as t


@dataclass(frozen=True)
class Count:
    """Sends blocks of `count` tokens, and the rest when the drafter rests."""

    count: int
    window: int

    def decide(self, view: View) -> Decision:
        if view.drafted >= self.count or not view.drafting:
            return Send(min(self.count, view.drafted, view.room))
        return Wait(1e9)

    def observe(self, outcome: FinishedRound) -> Count:
        return self


@dataclass
class Machine:
    """A session with both workers; what is done to it can be written in a chain."""

    mode: t.VerifyMode
    count: int = 2
    window: int = 4
    max_tokens: int = 20
    max_in_flight: int = 1
    num_candidates: int = 1
    estimated: bool = False
    method: str = "model"
    plain_ahead: bool = False
    actions: list = field(default_factory=list)

    def __post_init__(self) -> None:
        config = SessionConfig(
            "s", (7,), self.mode, t.ResolvedSampling(max_tokens=self.max_tokens), seed=1,
            method=self.method, window=self.window, num_candidates=self.num_candidates,
            estimated=self.estimated, vocab_size=100, plain_ahead=self.plain_ahead,
            limits=Limits(max_in_flight=self.max_in_flight, drafter_backoff=0.0),
        )  # fmt: skip
        self.state = rounds.new_session(config, Count(self.count, self.window))
        self.feed(events.Begin(0.0))
        if self.method:
            self.attach(t.Role.DRAFTER, "d")

    def feed(self, event: events.Event) -> Machine:
        self.state, actions = rounds.step(self.state, event)
        self.actions += actions
        return self

    def attach(self, role: t.Role, name: str) -> Machine:
        self.feed(events.WorkerAttached(0.0, role, name))
        return self.feed(events.WorkerOpened(0.0, role, name, self.state.epoch))

    def draft(self, *tokens: int, final=False, parents=None, worker="d", reach=(), sources=b""):
        state = self.state
        text = state.committed + state.speculated
        tree = t.DraftTree(tokens, parents, proposal=t.Proposal.SAMPLED)
        known, prefix = len(state.committed), t.extend_hash(t.EMPTY_HASH, text)
        draft = t.Draft(
            "s", state.epoch, known, len(text), prefix, tree, final, reach=reach, sources=sources
        )
        return self.feed(events.DraftArrived(0.0, worker, draft))

    def serve(self) -> Machine:
        return self.attach(t.Role.VERIFIER, "v")

    def sent(self) -> list:
        return [action.message for action in self.actions if isinstance(action, events.SendVerify)]

    def flags(self) -> list[bool]:
        return [block.want_bonus for block in self.sent()]

    def answer(self, *tokens: int, accepted: int, whole: bool, nodes=(), at=0.0, verify_ms=0.0):
        block = self.state.in_flight[0]
        verdict = t.Verdict(
            "s", block.epoch, block.round, block.base_len, tokens, accepted, whole,
            accepted_nodes=nodes, mode=self.mode, verify_ms=verify_ms,
        )  # fmt: skip
        return self.feed(events.VerdictArrived(at, "v", verdict))

    def performed(self, kind: type) -> list:
        return [action for action in self.actions if isinstance(action, kind)]
