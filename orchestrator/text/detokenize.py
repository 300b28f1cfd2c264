"""Tokens to text, one at a time, without a broken character.

What a token adds depends on the tokens before it in two ways only, and both fit
in a small state:

- Bytes of a character that is not complete yet wait for the rest. Broken UTF-8
  becomes U+FFFD, one for each maximal piece, as Unicode recommends.
- Other tokens are decoded after the last one that gave text, since decoders treat
  the first token of a text apart (the window of text-generation-inference and
  vLLM: a decoded context, then what is held).
"""

from __future__ import annotations

import codecs
from typing import NamedTuple

from orchestrator.text.tokenizer import Tokenizer

# Tokens without text of their own that are held before they are given up.
LONGEST_HELD = 16


class DecodeState(NamedTuple):
    """What earlier tokens leave behind.

    `pending` is the start of a character. `window[:read]` is context whose text
    is out, `window[read:]` is held.
    """

    pending: bytes = b""
    window: tuple[int, ...] = ()
    read: int = 0
    started: bool = False


def advance(tokenizer: Tokenizer, state: DecodeState, token: int) -> tuple[DecodeState, str]:
    """The state after `token`, and the text that became certain with it."""
    data = tokenizer.vocabulary.token_bytes(token)
    if data is None:
        return _add_text(tokenizer, state, token)
    if not data:
        return state, ""
    if not state.started and data == b" " and tokenizer.vocabulary.strips_first_space:
        return state._replace(started=True), ""
    return _add_bytes(state, data)


def _add_bytes(state: DecodeState, data: bytes) -> tuple[DecodeState, str]:
    waiting = state.pending + data
    text, used = codecs.utf_8_decode(waiting, "replace", False)
    return DecodeState(waiting[used:], state.window, state.read, True), text


def _add_text(tokenizer: Tokenizer, state: DecodeState, token: int) -> tuple[DecodeState, str]:
    broken = state.pending.decode(errors="replace")
    context, read = state.window, state.read
    if state.started and not context:
        context = tokenizer.anchor
        read = len(context)
    window = (*context, token)
    before = tokenizer.decode(window[:read], skip_special_tokens=False) if read else ""
    after = tokenizer.decode(window, skip_special_tokens=False)
    text = after[len(before) :]
    if _incomplete(tokenizer, text) and len(window) - read <= LONGEST_HELD:
        return DecodeState(b"", window, read, True), broken
    return DecodeState(b"", window[read:], len(window) - read, True), broken + text


def _incomplete(tokenizer: Tokenizer, text: str) -> bool:
    # With bytes known, a U+FFFD here is a character of its own.
    return not text or (text.endswith("\ufffd") and not tokenizer.vocabulary.has_bytes)
