"""Our events as a gateway's responses."""

from __future__ import annotations

from collections.abc import Iterator

from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from orchestrator.session.answer import Chunk, Complete, Event, Started
from orchestrator.session.totals import SpecTotals
from services.contract.errors import InvalidRequest

ACCEPTANCE = "x-paceline-acceptance"
_LOGPROBS = "sampling_params.logprobs"
_NOT_KEPT = "the same request without them, or under another name"


def acceptance(totals: SpecTotals) -> tuple[tuple[str, str], ...]:
    """What became of a request's drafts, as metadata behind its last message."""
    figures = {
        "num_draft_tokens": f"{totals.draft_tokens}",
        "num_accepted_draft_tokens": f"{totals.accepted_tokens}",
        "draft_acceptance_rate": f"{totals.draft_acceptance_rate:.4f}",
        "mean_acceptance_length": f"{totals.mean_acceptance_length:.4f}",
        "block_efficiency": f"{totals.block_efficiency:.4f}",
    }
    return ((ACCEPTANCE, ";".join(f"{name}={value}" for name, value in figures.items())),)


class Answers:
    """The responses of a request's completions, each with its index.

    Without a stream they come in the order of their indices, whichever has ended first: smg numbers
    them as they come. `totals`: what became of the drafts of those that have ended.
    """

    def __init__(self, asked: engine.GenerateRequest) -> None:
        count = max(1, asked.sampling_params.n)
        self._answers = [Answer(asked, index) for index in range(count)]
        self._stream, self._next = asked.stream, 0
        self._held: dict[int, engine.GenerateResponse] = {}
        self.totals = SpecTotals()

    def add(self, event: Event) -> Iterator[engine.GenerateResponse]:
        """The responses that can be sent with one event."""
        if isinstance(event, Complete):
            self.totals.join(event.totals)
        response = self._answers[event.completion].add(event)
        if response is not None and self._stream:
            yield response
        elif response is not None:
            self._held[event.completion] = response
        while self._next in self._held:
            yield self._held.pop(self._next)
            self._next += 1


class Answer:
    """One completion's responses: chunks as tokens come, or all of them at the end.

    Tokens are sent unchanged, stop tokens and those of a stop string included: the gateway
    detokenizes and cuts them.
    """

    def __init__(self, asked: engine.GenerateRequest, index: int = 0) -> None:
        self._stream, self._index = asked.stream, index
        self._tells_logprobs = asked.sampling_params.HasField("logprobs")
        self._stop_token_ids = frozenset(asked.sampling_params.stop_token_ids)
        self._prompt_tokens = 0
        self._token_ids: list[int] = []
        self._logprobs = engine.OutputLogProbs()

    def add(self, event: Event) -> engine.GenerateResponse | None:
        """The response to one event, if any."""
        match event:
            case Started():
                self._prompt_tokens = event.prompt_tokens
                return None
            case Chunk():
                return self._add_chunk(event)
            case Complete():
                return engine.GenerateResponse(complete=self._complete(event))

    def _add_chunk(self, chunk: Chunk) -> engine.GenerateResponse | None:
        if self._tells_logprobs and not chunk.logprobs:
            # A gateway would leave them out of its answer without a word.
            raise InvalidRequest(
                _LOGPROBS, "those of tokens that are told again, or read late", _NOT_KEPT
            )
        self._token_ids += chunk.token_ids
        if not self._stream:
            _add(self._logprobs, chunk)
            return None
        told = engine.GenerateStreamChunk(
            token_ids=chunk.token_ids,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(self._token_ids),
            index=self._index,
        )
        if chunk.logprobs:
            _add(told.output_logprobs, chunk)
        return engine.GenerateResponse(chunk=told)

    def _complete(self, ended: Complete) -> engine.GenerateComplete:
        complete = engine.GenerateComplete(
            output_ids=self._token_ids,
            finish_reason=ended.ending.reason.name.lower(),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(self._token_ids),
            cached_tokens=ended.cached_tokens,
            spec_accepted_tokens=ended.totals.accepted_tokens,
            spec_draft_tokens=ended.totals.draft_tokens,
            index=self._index,
        )
        if self._logprobs.token_ids:
            complete.output_logprobs.CopyFrom(self._logprobs)
        match ended.ending.matched:
            case str(text) if text:
                complete.matched_stop_str = text
            # As in vLLM, an end of text is no stop that was matched.
            case int(token) if token in self._stop_token_ids:
                complete.matched_token_id = token
        return complete


def _add(told: engine.OutputLogProbs, chunk: Chunk) -> None:
    """One entry a token; alternatives only where some were asked for."""
    for token_id, row in zip(chunk.token_ids, chunk.logprobs, strict=False):
        told.token_ids.append(token_id)
        told.token_logprobs.append(row.logprob)
        if row.top_token_ids:
            told.top_logprobs.add(token_ids=row.top_token_ids, values=row.top_logprobs)
