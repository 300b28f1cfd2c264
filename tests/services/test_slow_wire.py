"""A verifier and a drafter on a slow wire: texts are the target's own."""

import random
from collections import deque

import pytest

from services.contract import types as t
from services.contract.frames import DraftFrame, StepFrame, grants, step_rows
from services.contract.worker_messages import SessionGone, StartVerify
from services.drafter.hypotheses import HypothesisCore
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.verifier.running.core import RunningCore
from tests.services.drafter_kit import EXACT, PROMPT, SAMPLED, plain_text, real_engine
from tests.services.hypothesis_kit import starting
from tests.services.running_bench import Fixed

LINK, COUNT, CREDIT = 1, 30, 12
LAW = {"temperature": 1.0, "max_tokens": COUNT}


class Process:
    """One worker, and what is on its way to it and from it."""

    def __init__(self, make):
        self.core = make(lambda _, event: self.said.append(event))
        self.inbox, self.said = deque(), deque()

    def absorb(self):
        while self.inbox:
            self.core.handle(LINK, self.inbox.popleft())

    def turn(self):
        self.absorb()
        return self.core.step()


class Loop:
    """Both, and an orchestrator that hands on what each says, a while later."""

    def __init__(self, mode, seed, *, method="model", candidates=1, synchronous=False):
        self.random = random.Random(seed)
        self.mode, self.method, self.candidates = mode, method, candidates
        self.synchronous = synchronous
        self.openings = {"verifier": 0, "drafter": 0}
        self.outputs = {}
        self.judged = self.accepted = 0
        self.verifier = None
        self.engine = real_engine(threads=1)
        self.new_verifier()
        self.new_drafter()

    def new_verifier(self):
        self.openings["verifier"] += 1
        if self.verifier is not None:
            self.verifier.core.drop_link(LINK)
        self.verifier = Process(self.runs)
        if not self.mode.exact_match and self.openings["drafter"]:
            self.new_drafter()
        for handle in self.outputs:
            self.open_verifier(handle)

    def runs(self, emit):
        return RunningCore(self.engine, emit=emit, worker_id="v", pacing=Fixed())

    def new_drafter(self):
        self.openings["drafter"] += 1
        drafters = {"model": ModelDrafter(real_engine(threads=1)), "ngram": NgramDrafter()}
        self.drafter = Process(lambda emit: HypothesisCore(drafters, emit=emit, worker_id="d"))
        for handle in self.outputs:
            self.open_drafter(handle)

    def open(self, handle):
        self.outputs[handle] = []
        self.open_verifier(handle)
        self.open_drafter(handle)

    def prompt(self, handle):
        return tuple(PROMPT[handle:])

    def open_verifier(self, handle):
        self.verifier.inbox.append(
            StartVerify(
                handle,
                self.openings["verifier"],
                f"s{handle}",
                1,
                self.prompt(handle),
                tuple(self.outputs[handle]),
                len(self.outputs[handle]) + CREDIT,
                self.mode,
                t.ResolvedSampling(**LAW),
                7,
                6,
                depth=6,
                first_drafts=0 if self.mode.exact_match else self.openings["drafter"],
                drafted_for=True,
                num_candidates=self.candidates,
            )
        )

    def open_drafter(self, handle):
        start = starting(
            handle,
            self.prompt(handle),
            opening=self.openings["drafter"],
            session_id=f"s{handle}",
            output=tuple(self.outputs[handle]),
            mode=self.mode,
            method=self.method,
            window=6,
            num_candidates=self.candidates,
            synchronous=self.synchronous,
            **LAW,
        )
        self.drafter.inbox.append(start)

    def move(self):
        """Anything that may happen next."""
        choice = self.random.random()
        if choice < 0.15:
            self.verifier.turn()
        elif choice < 0.5:
            self.drafter.turn()
        elif choice < 0.75:
            self.hear_verifier()
        else:
            self.hear_drafter()

    def hear_verifier(self):
        if not self.verifier.said:
            return
        event = self.verifier.said.popleft()
        assert not isinstance(event, SessionGone), event
        if isinstance(event, StepFrame):
            for row in step_rows(event):
                output = self.outputs[row.handle]
                assert row.position == len(output)
                output += row.tokens
                self.judged += len(row.judged)
                self.accepted += row.accepted
            self.drafter.inbox.append(event)
            limits = [(handle, len(output) + CREDIT) for handle, output in self.outputs.items()]
            self.verifier.inbox.append(grants(limits))

    def hear_drafter(self):
        if not self.drafter.said:
            return
        event = self.drafter.said.popleft()
        assert not isinstance(event, SessionGone), event
        if isinstance(event, DraftFrame):
            self.verifier.inbox.append(event)

    def run(self, handles=(1, 2, 3), dies=()):
        for handle in handles:
            self.open(handle)
        for move in range(5000):
            self.move()
            if move in dies:
                (self.new_verifier if self.random.random() < 0.5 else self.new_drafter)()
            if all(len(output) >= COUNT for output in self.outputs.values()):
                break
        else:
            raise AssertionError("a session waits for ever")
        return self


WAYS = {
    "chains": {},
    "trees": {"candidates": 3},
    "in turns": {"synchronous": True},
    "copies first": {"method": "ngram,model"},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("mode", EXACT)
def test_drafts_on_a_slow_wire_leave_the_text_as_it_is(mode, way):
    loop = Loop(mode, 3, **way).run()
    for handle, output in loop.outputs.items():
        sampling = t.ResolvedSampling(**LAW)
        assert output == plain_text(loop.engine, loop.prompt(handle), COUNT, mode, sampling)
    assert loop.accepted >= COUNT // 2


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_dies_leaves_the_text_as_it_is(mode, seed):
    loop = Loop(mode, seed).run(dies=(40, 90, 150))
    for handle, output in loop.outputs.items():
        sampling = t.ResolvedSampling(**LAW)
        assert output == plain_text(loop.engine, loop.prompt(handle), COUNT, mode, sampling)


@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize("dies", [(), (40, 90, 150)])
def test_the_targets_own_drafts_are_taken_where_they_are_drawn(mode, dies):
    loop = Loop(mode, 5).run(dies=dies)
    assert loop.accepted >= 0.8 * loop.judged > 0
