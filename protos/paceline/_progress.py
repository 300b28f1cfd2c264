"""What a caller has of one generation, and what of an event is new to it."""

from __future__ import annotations

from dataclasses import replace

import grpc

from paceline.errors import Internal
from paceline.hashing import extend_hash
from paceline.results import Chunk, Complete, Event, PromptLogprobs, Started


class Progress:
    """One `Started`, chunks that follow each other, one `Complete`, over any number of calls.

    `offset` is where the next token belongs, `prefix_hash` the hash of all before it; None
    where the caller began behind tokens that it did not tell of.
    """

    def __init__(self, offset: int, prefix_hash: int | None) -> None:
        self.offset, self.prefix_hash = offset, prefix_hash
        self.started: Started | None = None
        self.ended = False
        self._prompt_known = 0

    def take(self, event: Event) -> Event | None:
        """The event, or its new part; None when nothing of it is new.

        Raises Internal when tokens are missing before it.
        """
        match event:
            case Started():
                known, self.started = self.started, self.started or event
                return event if known is None else None
            case PromptLogprobs():
                return self._take_prompt(event)
            case Chunk():
                return self._take_chunk(event)
            case Complete():
                self._check_whole(event)
                self.ended = True
                return event

    def _take_prompt(self, event: PromptLogprobs) -> PromptLogprobs | None:
        known = max(0, self._prompt_known - event.offset)
        if known >= len(event.logprobs):
            return None
        self._prompt_known = event.offset + len(event.logprobs)
        return replace(event, offset=event.offset + known, logprobs=event.logprobs[known:])

    def _take_chunk(self, chunk: Chunk) -> Chunk | None:
        known = self.offset - chunk.offset
        if known < 0:
            raise fault(f"token {chunk.offset} came where {self.offset} was expected")
        if known:
            if known >= len(chunk.token_ids):
                return None
            chunk = cut(chunk, known)
        self.offset += len(chunk.token_ids)
        if self.prefix_hash is not None:
            self.prefix_hash = extend_hash(self.prefix_hash, chunk.token_ids)
        return chunk

    def _check_whole(self, complete: Complete) -> None:
        if self.offset < complete.usage.completion_tokens:
            count = complete.usage.completion_tokens
            raise fault(f"the output ended after {self.offset} of its {count} tokens")


def cut(chunk: Chunk, known: int) -> Chunk:
    """The chunk without its first tokens.

    Its rounds stay, as they belong to no single token. Raises Internal when the
    text of the tokens is not told apart.
    """
    count = len(chunk.token_ids)
    if len(chunk.pieces) != count:
        raise fault(f"{known} tokens came twice, and their text cannot be told apart")
    return replace(
        chunk,
        offset=chunk.offset + known,
        token_ids=chunk.token_ids[known:],
        text="".join(chunk.pieces[known:]),
        pieces=chunk.pieces[known:],
        logprobs=chunk.logprobs[known:] if len(chunk.logprobs) == count else (),
        origins=chunk.origins[known:] if len(chunk.origins) == count else (),
    )


def fault(message: str) -> Internal:
    """What no server should send."""
    return Internal(f"the server is at fault: {message}", code=grpc.StatusCode.INTERNAL)
