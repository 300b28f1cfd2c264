"""The verifier of known text that is asked for every round, as protocol 1 has it."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.contract import types as t
from services.contract.states import rows_a_message
from services.runtime.host import Emit
from testkit.known_text import described, truth


def overlap(block: t.Verify, last: t.Verdict | None, length: int) -> int | None:
    """Draft tokens at the front of the block that end the text already; None = it does not fit.

    `last`: the last verdict of the session, `length`: that of its output. A block that
    extends another one is a chain; it fits if that was accepted whole, and if it stands behind
    all that was emitted, or its own first token is the bonus.
    """
    if block.extends_round == 0:
        return 0 if block.base_len == length else None
    if last is None or last.round != block.extends_round or not last.all_accepted:
        return None
    if block.base_len == length:
        return 0
    if block.base_len != last.base_len + last.accepted:
        return None
    return 1 if block.tree.token_ids[:1] == last.token_ids[-1:] else None


def judged(block: t.Verify, base_len: int, tokens: Sequence[int], own: Sequence[int]) -> t.Verdict:
    """The verdict on draft tokens that follow output[:base_len]: what is right, and one more.

    `tokens`: those of the block that are not committed yet; `own`: the target's from there on,
    one more than are drafted.
    """
    pairs = enumerate(zip(tokens, own, strict=False))
    accepted = next((i for i, (drafted, right) in pairs if drafted != right), len(tokens))
    about = block.session, block.epoch, block.round
    emitted, whole = tuple(own[: accepted + 1]), accepted == len(tokens)
    return t.Verdict(*about, base_len, emitted, accepted, whole, draft_tokens=len(tokens))


@dataclass(slots=True)
class _Session:
    """One session at the verifier: its output is the first `length` tokens of the truth."""

    opening: t.OpenVerify
    length: int
    blocks: deque[tuple[t.Verify, float]] = field(default_factory=deque)
    last: t.Verdict | None = None

    def next(self, now: float) -> t.Verdict | None:
        """The verdict on the block that waits longest; None where none waits."""
        if not self.blocks:
            return None
        block, arrived = self.blocks.popleft()
        verdict = self._judge(block)._replace(queue_ms=1e3 * (now - arrived))
        if not verdict.discarded:
            self.last, self.length = verdict, verdict.base_len + len(verdict.token_ids)
        return verdict

    def _judge(self, block: t.Verify) -> t.Verdict:
        """Keep what is right of a chain, and add the next token."""
        skip, mode = overlap(block, self.last, self.length), self.opening.mode
        if skip is None:
            about = block.session, block.epoch, block.round, block.base_len
            return t.Verdict(*about, mode=mode, discarded=True)
        base, drafted = block.base_len + skip, block.tree.token_ids[skip:]
        own = [truth(self.opening.seed, base + place) for place in range(len(drafted) + 1)]
        return judged(block, base, drafted, own)._replace(mode=mode)


class KnownVerifier:
    """A `WorkerCore`: the next step answers a block of every session that has one."""

    def __init__(
        self, emit: Emit, worker_id: str, step_ms: float, states: int = 0, prompt: int = 0
    ) -> None:
        self._emit, self._pause = emit, 1e-3 * step_ms
        self._states, self._prompt = states, prompt
        self._about = described(worker_id, states)
        self._sessions: dict[tuple[int, str], _Session] = {}
        self._steps = 0

    @property
    def waiting(self) -> int:
        """Sessions with a block that is not answered."""
        return sum(1 for session in self._sessions.values() if session.blocks)

    def patience(self) -> float:
        """None."""
        return 0.0

    def handle(self, link: int, command: t.VerifierCommand, arrived: float) -> None:
        """Absorb one command."""
        match command:
            case t.OpenVerify():
                self._sessions[link, command.session] = _Session(command, len(command.committed))
                self._emit(link, t.VerifyOpened(command.session, command.epoch))
                if command.state_layers:
                    self._tell_prompt(link, command)
            case t.Verify():
                if (session := self._sessions.get((link, command.session))) is not None:
                    session.blocks.append((command, arrived))
            case t.CloseVerify(session_id):
                self._sessions.pop((link, session_id), None)

    def _tell_prompt(self, link: int, opening: t.OpenVerify) -> None:
        """As many rows as were asked for, as though the prompt were as long."""
        name, epoch, each = opening.session, opening.epoch, rows_a_message(self._states)
        for row in range(0, self._prompt, each):
            rows = self._rows(min(each, self._prompt - row))
            self._emit(link, t.States(name, epoch, 0, rows))

    def _rows(self, count: int) -> bytes:
        return bytes(2 * self._states * count)

    def step(self) -> bool:
        """Answer the oldest block of each session."""
        if not self.waiting:
            return False
        began = time.perf_counter()
        answers = [
            (link, verdict)
            for (link, _), session in self._sessions.items()
            if (verdict := session.next(began)) is not None
        ]
        if self._pause:
            time.sleep(self._pause)
        self._steps += 1
        took = max(1e3 * self._pause, 0.01)
        rows = sum(1 + verdict.draft_tokens for _, verdict in answers)
        size = len(answers)
        for link, verdict in answers:
            states = self._rows(len(verdict.token_ids))
            timed = verdict._replace(states=states, verify_ms=took, batch_size=size)
            self._emit(link, timed._replace(batch_rows=rows))
        return True

    def drop_link(self, link: int) -> None:
        """Forget its sessions."""
        kept = {key: session for key, session in self._sessions.items() if key[0] != link}
        self._sessions = kept

    def progress(self) -> t.Progress:
        """The load now."""
        return t.Progress(self._steps, len(self._sessions), self.waiting, 0, 1 << 30, 1.0)

    def describe(self) -> t.WorkerDescription:
        """What it is."""
        return self._about
