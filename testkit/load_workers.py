"""Workers whose text is known beforehand, and a collector that counts bytes: one process.

    python -m testkit.load_workers FILE VERIFY_MS DRAFT_MS ACCEPTANCE CHUNK [STATES PROMPT]

FILE gets the address of both workers and that of the collector, on one line. A token
follows from the session's seed and its place alone, and so does whether the drafter
gets it right. A step sleeps as long as told (0: not at all), whatever it holds.
STATES: the numbers in a token's hidden states, which the drafter then needs and the verifier
tells, of tokens that it emits and of so many tokens of each PROMPT; 0: none.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from services.contract import types as t
from services.contract.states import NO_STATES, StateShape, rows_a_message
from services.drafter.core import DrafterCore
from services.drafter.protocol import Ask, KVUsage, Proposed, SessionKey
from services.runtime import serving
from services.runtime.atomic_file import write_line
from services.runtime.host import Emit, WorkerHost
from services.runtime.serving import Served, ServingOptions, serve_worker

_LETTERS = 52
_VOCABULARY = 254
_LAYERS = (0, 1, 2)
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def bundle() -> t.TokenizerBundle:
    """A tokenizer of letters: what is measured is not how long text takes to tokenize."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:_VOCABULARY]
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return t.TokenizerBundle("letters", made.to_str())


def draw(seed: int, position: int) -> int:
    """A 64-bit number of this seed and place."""
    mixed = (seed ^ (position * _MIX)) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    return mixed ^ (mixed >> 27)


def truth(seed: int, position: int) -> int:
    """The target's token at this place of the output."""
    return draw(seed, position) % _LETTERS


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


def described(worker_id: str, states: int = 0) -> t.WorkerDescription:
    """A verifier of known text; `states`: the numbers in a token's hidden states."""
    return t.WorkerDescription(
        worker_id,
        t.Role.VERIFIER,
        model="known",
        model_fingerprint="known",
        tokenizer_fingerprint="letters",
        vocab_size=_VOCABULARY,
        max_context_length=1 << 20,
        kv_capacity_tokens=1 << 30,
        capabilities=(t.STATES,) if states else (),
        hidden_width=states // len(_LAYERS),
        hidden_layers=len(_LAYERS),
    )


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


class KnownDrafter:
    """A `Drafter`: `chunk` tokens a step, each right with probability `acceptance`."""

    modes = frozenset({t.VerifyMode.GREEDY, t.VerifyMode.COUPLED})
    samples = trees = False

    def __init__(self, acceptance: float, chunk: int, step_ms: float, states: int = 0) -> None:
        self.needed_states = StateShape(_LAYERS, states) if states else NO_STATES
        self._limit = int(acceptance * (1 << 20))
        self._chunk, self._pause = chunk, 1e-3 * step_ms
        self._seeds: dict[SessionKey, int] = {}

    def describe(self, worker: t.WorkerDescription) -> t.WorkerDescription:
        """Bound to the tokenizer."""
        return replace(worker, model="known", tokenizer_fingerprint="letters")

    def usage(self) -> KVUsage:
        """None."""
        return KVUsage()

    def open(self, key: SessionKey, opening: t.OpenDraft) -> None:
        """Note the seed."""
        self._seeds[key] = opening.seed

    def rewind(self, key: SessionKey, length: int) -> None:
        """Nothing is kept of the text."""

    def close(self, key: SessionKey) -> None:
        """Forget it."""
        self._seeds.pop(key, None)

    def anchor(self, key: SessionKey, position: int, states: bytes) -> None:
        """Nothing is made of them."""

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """A few tokens for each."""
        if self._pause:
            time.sleep(self._pause)
        return [Proposed(self._draft(ask)) for ask in asks]

    def _draft(self, ask: Ask) -> t.DraftTree:
        seed, first = self._seeds[ask.key], ask.position
        places = range(first, first + min(self._chunk, ask.room))
        return t.DraftTree(
            tuple(self._guess(seed, place) for place in places), proposal=t.Proposal.ONE_HOT
        )

    def _guess(self, seed: int, place: int) -> int:
        right = truth(seed, place)
        lucky = draw(seed ^ _MIX, place) & ((1 << 20) - 1) < self._limit
        return right if lucky else (right + 1) % _LETTERS

    def idle(self, asks: Iterable[Ask]) -> bool:  # noqa: ARG002
        """Nothing to do."""
        return False


def collector() -> grpc.aio.Server:
    """Takes any OTLP export and answers that all is well."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Anything(),))
    return server


class _Anything(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002
        async def take(_request: bytes, _context: Any) -> bytes:
            return b""

        return grpc.unary_unary_rpc_method_handler(take)


def main() -> int:
    """Serve until SIGTERM."""
    file, verify_ms, draft_ms, acceptance, chunk, *more = sys.argv[1:]
    times = float(verify_ms), float(draft_ms)
    return serving.run(_serve(Path(file), *times, float(acceptance), int(chunk), *map(int, more)))


async def _serve(
    file: Path,
    verify_ms: float,
    draft_ms: float,
    acceptance: float,
    chunk: int,
    states: int = 0,
    prompt: int = 0,
) -> int:
    otlp = collector()
    port = otlp.add_insecure_port("127.0.0.1:0")
    await otlp.start()
    drafter = KnownDrafter(acceptance, chunk, draft_ms, states)
    judging = _host(lambda emit: KnownVerifier(emit, "v1", verify_ms, states, prompt))
    drafting = _host(lambda emit: DrafterCore({"known": drafter}, emit=emit, worker_id="d1"))
    try:
        return await serve_worker(
            ServingOptions(grace=0.1),
            Served(judging, judging.describe(), bundle()),
            Served(drafting, drafting.describe()),
            on_ready=lambda address: write_line(file, f"{address} 127.0.0.1:{port}"),
        )
    finally:
        await otlp.stop(0)


def _host(make: Callable[[Emit], Any]) -> WorkerHost[Any, Any]:
    return WorkerHost(make)


if __name__ == "__main__":
    sys.exit(main())
