"""A verifier core on a table: commands in, events out, and the text it should give."""

import torch

from services.contract import types as t
from services.engine.sampling import RowContext, choose
from services.verifier.core import VerifierCore
from services.verifier.options import VerifierOptions
from tests.fake_engine import VOCAB, FakeEngine, law

torch.set_num_threads(1)
GREEDY, COUPLED = EXACT = (t.VerifyMode.GREEDY, t.VerifyMode.COUPLED)
PROMPT = (1, 2, 3, 4, 5)


def other(token):
    return (token + 1) % VOCAB


def opening(session="s", mode=GREEDY, prompt=PROMPT, committed=(), **more):
    """An OpenVerify; sampling parameters may be given by their names."""
    own = {name: more.pop(name) for name in list(more) if name in t.OpenVerify.__slots__}
    own = {"term": 1, "epoch": 1, "seed": 9, "window": 8} | own
    sampling = t.ResolvedSampling(**({"max_tokens": 40} | more))
    return t.OpenVerify(
        session=session, prompt=prompt, committed=committed, mode=mode, sampling=sampling, **own
    )


def block(round_, base_len, tokens=(), parents=None, session="s", epoch=1, **more):
    return t.Verify(session, epoch, round_, base_len, t.DraftTree(tuple(tokens), parents), **more)


def target_text(opened, count, next_logits=law):
    """The output the target alone would give, token by token."""
    text = list(opened.prompt)
    for position in range(count):
        context = RowContext(opened.mode, opened.sampling, opened.seed, position)
        text += choose(torch.stack([next_logits(text)]), [context])
    return text[len(opened.prompt) :]


TEXT = tuple(target_text(opening(), 40))
"""What the target says to `opening()`."""


def only(kind, events):
    """The one event of a kind."""
    [found] = [event for event in events if isinstance(event, kind)]
    return found


class Table:
    """One core and its events. Session `s` on link 1 unless said otherwise."""

    def __init__(self, engine=None, **options):
        self.engine = engine or FakeEngine()
        self.events = []
        self.core = VerifierCore(
            self.engine,
            emit=lambda link, event: self.events.append((link, event)),
            worker_id="v",
            options=VerifierOptions(**options),
        )

    def give(self, *commands, link=1):
        for command in commands:
            self.core.handle(link, command)

    def run(self, *commands, link=1):
        """Hand commands in, step until idle, take the events of all links."""
        self.give(*commands, link=link)
        for _ in range(10_000):
            if not self.core.step():
                return self.taken()
        raise AssertionError("the core never rests")

    def taken(self):
        events, self.events = [event for _, event in self.events], []
        return events

    def verdict(self, *commands, link=1):
        """The only event of these commands, which is a verdict."""
        [event] = self.run(*commands, link=link)
        assert isinstance(event, t.Verdict), event
        return event

    def opened(self, command=None, link=1, **more):
        command = command or opening(**more)
        [event] = self.run(command, link=link)
        assert isinstance(event, t.VerifyOpened), event
        return command

    def failure(self, *commands, link=1):
        [event] = self.run(*commands, link=link)
        assert isinstance(event, t.SessionFailed), event
        return event

    def decode(self, command, draft, count, link=1):
        """Generate `count` tokens; `draft(output)` gives the next block's tokens, parents."""
        self.opened(command, link)
        output, round_ = list(command.committed), 0
        while len(output) < count:
            round_ += 1
            tokens, parents = draft(output)
            ask = block(round_, len(output), tokens, parents, command.session)
            verdict = self.verdict(ask, link=link)
            assert verdict.base_len == len(output)
            output += verdict.token_ids
        self.give(t.CloseVerify(command.session), link=link)
        return output[:count]


class Timed(FakeEngine):
    """A forward takes `base_ms` and `row_ms` for each of its rows, on the engine's own clock."""

    def __init__(self, base_ms, row_ms):
        super().__init__()
        self.now, self._base_ms, self._row_ms = 0.0, base_ms, row_ms

    def clock(self):
        """Seconds."""
        return self.now

    def forward(self, segments):
        out = super().forward(segments)
        self.now += 1e-3 * (self._base_ms + self._row_ms * sum(self.forwards[-1]))
        return out


def frozen():
    return 0.0
