"""Prompts in the token ids that every configuration is asked with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.prompts import BenchPrompt
from services.contract.errors import StartError
from services.engine.checkpoint.bundle import source_folder
from services.engine.checkpoint.files import one_line


def asked(tokenizer: Any, prompt: str) -> list[int]:
    """A prompt as the first turn of a conversation, in token ids."""
    turns = [{"role": "user", "content": prompt}]
    ids: list[int] = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_dict=False
    )
    return ids


def with_token_ids(target: str, prompts: Sequence[BenchPrompt]) -> list[BenchPrompt]:
    """Each prompt as a message under the target's chat template; as it is if there is none.

    Raises StartError for a target without a tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source_folder(target), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise StartError(f"model {target}: tokenizer: {one_line(error)}") from None
    return [replace(one, token_ids=tuple(_ids(tokenizer, one.text))) for one in prompts]


def _ids(tokenizer: Any, text: str) -> list[int]:
    if tokenizer.chat_template is not None:
        return asked(tokenizer, text)
    ids: list[int] = tokenizer.encode(text)
    return ids
