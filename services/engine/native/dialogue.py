"""The shape of a conversation's first turn, as token ids around the user's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.contract.errors import StartError
from services.contract.types import TokenizerBundle

_WORDS = "the user's own words"


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What stands before and after the user's words in a first turn, in token ids.

    `after` ends where the answer begins. A target without a chat template has
    no `after`: its prompt and its answer are one text.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]

    def prompt(self, words: Sequence[int]) -> list[int]:
        """The whole prompt of a turn with these words."""
        return [*self.before, *words, *self.after]

    def words_of(self, token_ids: Sequence[int]) -> Sequence[int]:
        """The user's words in a text: up to `after`, or all the rest where there is none."""
        rest, after = token_ids[len(self.before) :], list(self.after)
        for end in range(len(rest)) if after else ():
            if list(rest[end : end + len(after)]) == after:
                return rest[:end]
        return rest


def tokenizer_of(bundle: TokenizerBundle) -> Any:
    """A transformers tokenizer with the bundle's vocabulary and chat template."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(bundle.tokenizer_json),
        chat_template=bundle.chat_template or None,
        bos_token=bundle.bos_token or None,
        eos_token=bundle.eos_token or None,
    )


def dialogue_of(tokenizer: Any) -> Dialogue:
    """The dialogue that a tokenizer's chat template makes.

    Raises StartError for a template that does not keep the user's words.
    """
    if not tokenizer.chat_template:
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else 0
        return Dialogue((start,), ())
    turn = [{"role": "user", "content": _WORDS}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    before, found, after = text.partition(_WORDS)
    if not found:
        raise StartError("chat template: the user's words do not appear in what it makes")
    return Dialogue(_encode(tokenizer, before), _encode(tokenizer, after))


def _encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))
