"""What a session was asked to be: a checked request with every default filled in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.together import completion_id, completion_seed

from orchestrator.text import TextStream, Tokenizer
from services.contract.types import ResolvedSampling, VerifyMode


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """One session's fixed values.

    `method` empty and `window_cap` None mean the server's default. `chains`: one candidate
    was asked for by number, so drafts are no trees even where those are the default. `digest`
    identifies the content: equal for requests that ask for the same, whatever
    their id; a seed drawn by the server is no part of it. `n`: how many completions the request
    has, of which this is number `index`; see `completions`. `priority`: lower is sooner.
    `open_ended`: nobody asked for a length, and `max_tokens` is what there is room for.
    """

    session: str
    model: str
    prompt: tuple[int, ...]
    sampling: ResolvedSampling
    seed: int
    mode: VerifyMode
    digest: str
    stop: tuple[str, ...] = ()
    include_stop_str: bool = False
    skip_special_tokens: bool = True
    include_rounds: bool = False
    ephemeral: bool = False
    method: tuple[str, ...] = ()
    window_cap: int | None = None
    disable_speculation: bool = False
    num_candidates: int = 1
    chains: bool = False
    n: int = 1
    index: int = 0
    priority: int = 0
    open_ended: bool = False

    @property
    def request_id(self) -> str:
        """The id of its request, which several completions share."""
        return self.session.removesuffix(f".{self.index}") if self.n > 1 else self.session

    def completions(self, seed: int) -> tuple[SessionSpec, ...]:
        """The sessions of this request, from the first one's seed on: itself, if that is one."""
        if self.n == 1:
            return (replace(self, seed=seed),)
        return tuple(
            replace(
                self,
                session=completion_id(self.session, index),
                seed=completion_seed(seed, index),
                index=index,
            )
            for index in range(self.n)
        )

    def text_stream(self, tokenizer: Tokenizer) -> TextStream:
        """An empty stream that turns this session's output into text."""
        return TextStream(
            tokenizer,
            self.stop,
            self.include_stop_str,
            self.skip_special_tokens,
            self.sampling.stop_token_ids,
            self.sampling.min_tokens,
        )


_PART = 1 << 16
"""Characters that are written as JSON at a time: the interpreter is locked meanwhile."""

NEWER_SAMPLING = ("response_format", "allowed_token_ids", "bad_words", "prompt_logprobs")
"""Sampling fields that early versions did not have, beside numbers."""

# No part of a request's content: the id, what the input and the rule became,
# and the digest itself.
_NO_CONTENT = ("session", "prompt", "mode", "digest", "index")


def content_digest(
    spec: SessionSpec, input_content: Any, given_seed: int | None, asked_rule: str
) -> str:
    """SHA-256 over the normalised values, as hex. `input_content` is a JSON value."""
    # asdict would copy the prompt id by id.
    fields = asdict(replace(spec, prompt=()))
    values = {key: value for key, value in fields.items() if key not in _NO_CONTENT}
    # As before there were any: a retry across an upgrade finds its session.
    for name, nothing in (("chains", False), ("n", 1), ("priority", 0), ("open_ended", False)):
        if values[name] == nothing:
            del values[name]
    if spec.open_ended:
        # There may be other room by the time of a retry.
        del values["sampling"]["max_tokens"]
    for name in NEWER_SAMPLING:
        if values["sampling"][name] in (None, ()):
            del values["sampling"][name]
    if spec.sampling.response_format and spec.sampling.response_format.start is None:
        del values["sampling"]["response_format"]["start"]
    values |= {"rule": asked_rule, "seed": given_seed, "input": None}
    # No text holds this: in one, a quote has a backslash before it.
    before, mark, after = _json(values).partition('"input":null')
    digest = hashlib.sha256(f"{before}{mark.removesuffix('null')}".encode())
    for part in _in_parts(input_content):
        digest.update(part.encode())
    digest.update(after.encode())
    return digest.hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _in_parts(value: Any) -> Iterator[str]:
    """The JSON of a text or a list, however long, in parts: other threads have turns between."""
    match value:
        case str():
            yield '"'
            for start in range(0, len(value), _PART):
                yield _json(value[start : start + _PART])[1:-1]
            yield '"'
        case [str(), *_] | [[*_], *_]:
            for place, item in enumerate(value):
                yield "," if place else "["
                yield from _in_parts(item)
            yield "]"
        case [int(), *_]:
            for start in range(0, len(value), _PART):
                yield "," if start else "["
                yield _json(value[start : start + _PART])[1:-1]
            yield "]"
        case _:
            yield _json(value)
