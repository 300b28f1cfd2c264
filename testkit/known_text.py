"""Text that is known beforehand: its tokenizer, and a drafter that often has it right.

A token follows from the session's seed and its place alone, and so does whether the drafter gets it
right.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from services.contract import types as t
from services.contract.states import NO_STATES, StateShape
from services.drafter.protocol import Ask, KVUsage, Proposed, SessionKey

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
