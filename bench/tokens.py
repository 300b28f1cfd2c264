"""Prompts in the token ids that every configuration is asked with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.prompts import BenchPrompt
from research.thinned_draft import asked, source_folder
from services.contract.errors import StartError
from services.engine.native.loading import one_line


def with_token_ids(target: str, prompts: Sequence[BenchPrompt]) -> list[BenchPrompt]:
    """Each prompt as a message under the target's chat template; as it is if there is none.

    Raises StartError for a target without a tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source_folder(target), local_files_only=True)
    except (OSError, ValueError) as error:
        raise StartError(f"model {target}: tokenizer: {one_line(error)}") from None
    return [replace(one, token_ids=tuple(_ids(tokenizer, one.text))) for one in prompts]


def _ids(tokenizer: Any, text: str) -> list[int]:
    if tokenizer.chat_template is not None:
        return asked(tokenizer, text)
    ids: list[int] = tokenizer.encode(text)
    return ids
