"""How a model marks its thoughts, as far as its tokenizer or chat template tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

KNOWN = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
)
"""What begins and ends thoughts in models of today."""


class Reasoning(NamedTuple):
    """Texts around a model's thoughts; the ids of those that are one token."""

    begin: str
    end: str
    begin_id: int | None = None
    end_id: int | None = None

    def is_open(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends inside thoughts; never told of marks that are several tokens."""
        if self.begin_id is None or self.end_id is None:
            return False
        for token in reversed(prompt):
            if token in (self.begin_id, self.end_id):
                return token == self.begin_id
        return False


def reasoning_of(added: Callable[[str], int | None], chat_template: str) -> Reasoning | None:
    """The marks that a model tells of; None: no known ones. `added`: the id of an added token."""
    for begin, end in KNOWN:
        if added(end) is not None or end in chat_template:
            return Reasoning(begin, end, added(begin), added(end))
    return None
