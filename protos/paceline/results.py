"""What a generation yields: frozen records, decoded from the wire."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a generation ended."""

    UNKNOWN = "unknown"
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Origin(StrEnum):
    """Where a token came from."""

    UNKNOWN = "unknown"
    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"


class Method(StrEnum):
    """A rule that decides which draft tokens are accepted."""

    AUTO = "auto"
    COUPLED = "coupled"
    STANDARD = "standard"
    BLOCK = "block"
    GREEDY = "greedy"


class SessionStatus(StrEnum):
    """What a session is doing."""

    UNKNOWN = "unknown"
    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the target's raw distribution at one token, most likely first."""

    token_id: int
    logprob: float
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundStats:
    """One verification; times in milliseconds."""

    index: int
    epoch: int
    draft_tokens: int
    accepted_tokens: int
    emitted_tokens: int
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    queue_ms: float = 0.0
    round_ms: float = 0.0
    batch_size: int = 0
    drafter: str = ""
    verifier: str = ""
    rejection_sample_method: Method = Method.AUTO
    discarded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """The session exists. `seed` is the one in force; `index`: of a request's completions."""

    session_id: str
    prompt_tokens: int
    seed: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of tokens of the prompt, of which the first is its `offset`-th, counted from 0.

    They come before the first `Chunk`, in parts, where `prompt_logprobs` asked for them.
    """

    offset: int
    logprobs: tuple[TokenLogprobs, ...]
    index: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Committed tokens: output[offset:offset + len(token_ids)], never taken back.

    `rounds`, `pieces` (the text per token) and `origins` come when rounds were asked for.
    """

    offset: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    rounds: tuple[RoundStats, ...] = ()
    pieces: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    index: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a generation; `cached_tokens` are prompt tokens that cost no forward."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class DraftSource(StrEnum):
    """Where draft tokens came from.

    What n-grams copy: this text, or other texts of the tenant; of an n-gram file, `laws` of
    texts that the target wrote, and `firsts`, what it says after one token; `target_rows`, what
    it said after that token when it verified this text. Else a method.
    """

    UNKNOWN = "unknown"
    THIS_TEXT = "this_text"
    OTHER_TEXTS = "other_texts"
    LAWS = "laws"
    FIRSTS = "firsts"
    MODEL = "model"
    GRAPH = "graph"
    SKIP = "skip"
    LOOKAHEAD = "lookahead"
    TARGET_ROWS = "target_rows"
    EAGLE = "eagle"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class DraftSourceMetrics:
    """What came of the draft tokens of one source."""

    source: DraftSource
    num_draft_tokens: int
    num_accepted_draft_tokens: int


@dataclass(frozen=True, slots=True)
class SpecDecodeMetrics:
    """What speculation did. Entry i of the histogram: rounds that accepted i tokens.

    `sources`: the draft tokens by where they came from; none of a server that does not tell.

    The server's sums. Once the session changed servers they cover the rounds since
    then; for a session that had ended by then, the rounds that its store still keeps.
    """

    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: tuple[int, ...]
    num_target_steps: int
    block_efficiency: float
    sources: tuple[DraftSourceMetrics, ...] = ()


@dataclass(frozen=True, slots=True)
class Complete:
    """The end. `text` is the whole output, `matched_stop` the string or token id that ended it."""

    finish_reason: FinishReason
    usage: Usage
    speculation: SpecDecodeMetrics
    text: str
    matched_stop: str | int | None = None
    index: int = 0


Event = Started | PromptLogprobs | Chunk | Complete


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole generation.

    After `Client.resume`, `token_ids`, `logprobs` and `rounds` begin at the offset;
    `text` is the whole output always. When a stream broke and another server went
    on, the logprobs and rounds of tokens that were stored but not yet sent are missing; so are
    the logprobs of tokens that a slow reader left waiting behind thousands of others.
    """

    session_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    speculation: SpecDecodeMetrics
    seed: int
    matched_stop: str | int | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    rounds: tuple[RoundStats, ...] = ()
    index: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class ContinuationScore:
    """How likely a continuation is: each token, their sum, and whether each was the likeliest."""

    tokens: tuple[TokenLogprobs, ...]
    logprob: float
    is_greedy: bool

    @property
    def token_ids(self) -> tuple[int, ...]:
        """What was scored."""
        return tuple(one.token_id for one in self.tokens)


@dataclass(frozen=True, slots=True)
class Scores:
    """Of each continuation of a context, in their order."""

    context_tokens: int
    scores: tuple[ContinuationScore, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """What a server knows of a session; `index` of the `n` completions of its request."""

    session_id: str
    status: SessionStatus
    prompt_tokens: int
    committed_tokens: int
    finish_reason: FinishReason
    seed: int
    created_unix_ms: float = 0.0
    rounds: tuple[SessionRound, ...] = ()
    index: int = 0
    n: int = 1


@dataclass(frozen=True, slots=True)
class SessionRound:
    """One round of a session as the server keeps it: when it was, and what became of each token.

    `offset` is the place of its first token in the output, `started_unix_ms` when its block left
    for the verifier, `term` counts the session's owners. `rejected` is the text of the block's
    draft tokens that were not taken, `unjudged` of those drafted beyond it that no verifier will
    judge any more. Tokens and texts are empty once an ephemeral session has ended.
    """

    term: int
    offset: int
    started_unix_ms: float
    stats: RoundStats
    token_ids: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    rejected: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that is served."""

    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    max_context_length: int
    eos_token_ids: tuple[int, ...]
    default_sampling_params_json: str
    has_chat_template: bool
    chat_template_takes_tools: bool = False
    chat_template_kwargs: tuple[str, ...] = ()
    reasoning_end: str = ""
    """What ends the model's thoughts; empty: it tells of nothing such."""
    reasoning_end_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker as the server sees it."""

    worker_id: str
    role: str
    address: str
    connected: bool
    model: str
    model_fingerprint: str
    methods: tuple[str, ...]
    sessions: int
    queue_tokens: int
    kv_tokens_used: int
    kv_tokens_capacity: int
    step_ms: float = 0.0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ServerTotals:
    """Sums over all sessions of a server since it started."""

    target_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server and its workers. `totals` is None where the server does not tell them."""

    version: str
    protocol_min: int
    protocol_max: int
    workers: tuple[WorkerInfo, ...]
    active_sessions: int
    default_method: str
    totals: ServerTotals | None = None
