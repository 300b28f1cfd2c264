"""vLLM's part played by a memory of tokens: a slot holds one where vLLM's holds its K/V.

A row is a pure function of the tokens that its block table leads to, so a block that is shared,
copied, written over or given back at the wrong time changes it.
"""

import numpy as np
import torch

from services.engine.vllm.blocks import Blocks
from services.engine.vllm.engine import VllmEngine
from services.engine.vllm.extension import Computed
from services.engine.vllm.passes import Pass
from tests.fake_engine import VOCAB, law

SIZE = 4


class TokenMemory:
    """Computes passes, at most `tokens` and `sequences` at once."""

    def __init__(self, count: int, tokens: int, sequences: int) -> None:
        self.slots = np.full((count, SIZE), -1, np.int64)
        self.tokens, self.sequences = tokens, sequences

    def compute(self, step: Pass) -> Computed:
        assert len(step.ids) <= self.tokens
        assert len(step.ends) <= self.sequences
        # Where memory may end: before the copies, and before the tokens are written.
        torch.zeros(1)
        if step.copies:
            source, target = np.array(step.copies).T
            self.slots[target] = self.slots[source]
            torch.zeros(1)
        at, places = step.positions, step.slots
        assert len(set(places.tolist())) == len(places), "two tokens in one slot"
        assert places.min() >= SIZE, "a token in the null block"
        self.slots.reshape(-1)[places] = step.ids
        chains = np.repeat(np.arange(len(step.ends)), np.diff(step.starts))
        texts = [self.slots[step.tables[chains[i]]].reshape(-1)[: at[i] + 1] for i in step.wanted]
        return Computed(torch.stack([law(text.tolist()) for text in texts]) if texts else None)


class BlocksOfTokens(VllmEngine):
    """`capacity` tokens of K/V; passes of nine tokens and three chains at most."""

    def __init__(self, capacity: int, context: int) -> None:
        # As `Blocks` divides them: tables an eighth, forks a sixteenth, the null block.
        count = next(n for n in range(10**6) if Blocks(n, SIZE).capacity >= capacity)
        blocks = Blocks(count, SIZE)
        blocks.capacity = capacity
        self.memory = TokenMemory(count, tokens=9, sequences=3)
        super().__init__(
            self.memory.compute,
            blocks,
            model_id="blocks",
            dtype="float32",
            vocab_size=VOCAB,
            max_context=context,
            most_tokens=9,
            most_sequences=3,
        )
