"""Every span, attribute and metric name of Paceline, with what it means.

Own names start with `paceline.`. Beside them stand names that dashboards of the
field already know: `spec_decode_num_*` as vLLM counts them, and `gen_ai.*` and
`rpc.*` of the OpenTelemetry semantic conventions (GenAI server metrics and spans,
status Development). No speculative decoding convention exists, hence our own.
Never a session or a worker is a metric label; never a prompt or an output anywhere.
This catalogue stays in one file, however long: a name is looked up in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Attribute(str):
    """An attribute key of spans (or of the process), which knows what it means."""

    __slots__ = ("help",)
    help: str

    def __new__(cls, key: str, help: str) -> Attribute:
        """The key as a plain string with `help` beside it."""
        made = super().__new__(cls, key)
        made.help = help
        return made


@dataclass(frozen=True, slots=True)
class SpanName:
    """A span: who makes it, its kind, its parent, and what its length means."""

    name: str
    process: str
    kind: str
    parent: str
    help: str


class MetricKind(Enum):
    """How a metric counts."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric; `unit` in UCUM, `buckets` the upper bounds of a histogram."""

    name: str
    kind: MetricKind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """The name on `/metrics`, without the suffixes of a histogram's series."""
        parts = [self.name.replace(".", "_")]
        if self.unit == "s":
            parts.append("seconds")
        if self.kind is MetricKind.COUNTER:
            parts.append("total")
        return "_".join(parts)


# --- Spans -------------------------------------------------------------------------

GENERATE = SpanName(
    "Generate",
    "orchestrator",
    "server",
    "the client's span, by `traceparent` in its metadata",
    "One session on this orchestrator, from its admission to its end.",
)
SPEC_ROUND = SpanName(
    "spec_round",
    "orchestrator",
    "internal",
    "Generate",
    "A session's part of a verifier's step: its wait for the step, and the step.",
)
SPEC_DRAFT = SpanName(
    "spec_draft",
    "orchestrator",
    "client",
    "spec_round",
    "Drafting what the step judged. It ends where the newest of it came to the verifier, often "
    "before the round, since drafting is asynchronous.",
)
SPEC_VERIFY = SpanName(
    "spec_verify",
    "orchestrator",
    "client",
    "spec_round",
    "The round at the verifier; its figures are on the round.",
)
PREFILL = SpanName(
    "prefill",
    "orchestrator, verifier, drafter",
    "client, on a worker server",
    "Generate",
    "Opening the session on a worker, prompt included; on a worker, one step of it.",
)
MIGRATE = SpanName(
    "migrate",
    "orchestrator",
    "internal",
    "Generate",
    "The session without a worker that it had: from losing one until another has it open.",
)
RESUME = SpanName(
    "resume",
    "orchestrator",
    "server",
    "the client's span, by `traceparent` in its metadata",
    "One call that goes on with a session, to its last token. The parent of the `Generate` "
    "that it begins on another orchestrator; linked to the one that runs already.",
)
PERSIST = SpanName(
    "persist",
    "orchestrator",
    "client",
    "spec_round",
    "Storing a commit, below its last round: from asking until the store acknowledged.",
)
VERIFY_BATCH = SpanName(
    "verify.batch",
    "verifier",
    "internal",
    "none; linked to its members' rounds",
    "One forward pass of the target model for many sessions.",
)
DRAFT_BATCH = SpanName(
    "draft.batch",
    "drafter",
    "internal",
    "none; linked to its members' sessions",
    "One drafting step for many sessions.",
)
VERIFY = SpanName(
    "verify",
    "verifier",
    "server",
    "spec_verify",
    "One session's part of a `verify.batch`, to which it is linked.",
)
DRAFT = SpanName(
    "draft",
    "drafter",
    "server",
    "Generate",
    "One session's part of a `draft.batch`, to which it is linked.",
)

# --- Attributes --------------------------------------------------------------------

SERVICE_NAME = Attribute("service.name", "Process: which Paceline service.")
SERVICE_VERSION = Attribute("service.version", "Process: its version.")
SERVICE_INSTANCE = Attribute("service.instance.id", "Process: the worker's or replica's id.")
ROLE = Attribute("paceline.role", "orchestrator, verifier or drafter.")

SESSION_ID = Attribute("paceline.session.id", "The session.")
METHOD = Attribute("paceline.method", "The drafting method; empty = plain decoding.")
MODE = Attribute("paceline.rejection_sample_method", "How draft tokens are verified.")
TERM = Attribute("paceline.term", "How many owners the session has had, this one included.")
OPENING = Attribute(
    "paceline.opening", "How often the session had been opened in its term, on workers of a role."
)
ROUND_INDEX = Attribute("paceline.round.index", "Number of the round in its session.")
ROUND_OUTCOME = Attribute("paceline.round.outcome", "What happened to its draft.")
FALLBACK = Attribute(
    "paceline.fallback", "Why the round of a session that speculates held no draft token."
)
DRAFT_TOKENS = Attribute("paceline.draft.tokens", "Draft tokens that the round verified.")
ACCEPTED_TOKENS = Attribute("paceline.accepted.tokens", "Draft tokens the target accepted.")
ACCEPTANCE_RATE = Attribute(
    "paceline.acceptance.rate", "Share of the round's draft tokens that were accepted, if any."
)
EMITTED_TOKENS = Attribute(
    "paceline.emitted.tokens", "Tokens that became final; on Generate, in all rounds."
)
BAD_Q_ROWS = Attribute("paceline.draft.bad_q_rows", "Unusable rows of q in the draft.")
NEAR_TIES = Attribute(
    "paceline.near_ties",
    "Tokens of the verdict, on Generate of all of them, that the target chose by a margin so small "
    "that rounding could turn them; STANDARD and BLOCK rounds have none.",
)
ROUNDS = Attribute("paceline.rounds", "Rounds with a verdict that the session took.")
DRAFT_MS = Attribute("paceline.draft.duration", "What drafting took of these tokens, ms.")
VERIFY_MS = Attribute("paceline.verify.duration", "Time of the verifying step, ms.")
QUEUE_MS = Attribute("paceline.verify.queue_wait", "The session's wait for the step, ms.")
HOLD_MS = Attribute("paceline.verify.hold", "How much of that wait was for a draft, ms.")
DRAFT_AGE = Attribute(
    "paceline.draft.age", "For how long the draft had been at the verifier when the step began, ms."
)
BATCH_SIZE = Attribute("paceline.verify.batch_size", "Sessions in the verifying step.")
DRAFTER = Attribute("paceline.draft.worker.id", "The drafter; empty = nothing drafted.")
VERIFIER = Attribute("paceline.verify.worker.id", "The verifier.")
WORKER = Attribute("paceline.worker.id", "The worker a session was opened on.")
FORMER_WORKER = Attribute("paceline.migrate.from", "The worker that the session lost.")
MIGRATE_CAUSE = Attribute("paceline.migrate.cause", "lost, failed, refused or full.")
OFFSET = Attribute("paceline.resume.offset", "Output offset that the caller goes on from.")
CACHED_TOKENS = Attribute("paceline.prefill.cached_tokens", "Prompt tokens found in a cache.")
COMPLETED = Attribute("paceline.completed", "False: the work was abandoned before its end.")
STEP_TOKENS = Attribute(
    "paceline.step.tokens", "Tokens of the step: drafted, verified or prefilled."
)
STEP_SIZE = Attribute("paceline.step.batch_size", "Sessions in the step.")
STEP_QUEUE_MS = Attribute("paceline.step.queue_wait", "Wait before the step, ms.")

OPERATION = Attribute("gen_ai.operation.name", "text_completion or chat.")
PROVIDER = Attribute("gen_ai.provider.name", "Always paceline.")
RESPONSE_MODEL = Attribute("gen_ai.response.model", "The target model.")
MAX_TOKENS = Attribute("gen_ai.request.max_tokens", "Most tokens to generate.")
TEMPERATURE = Attribute("gen_ai.request.temperature", "Sampling temperature.")
TOP_P = Attribute("gen_ai.request.top_p", "Nucleus size.")
TOP_K = Attribute("gen_ai.request.top_k", "Most tokens to sample from; 0 = all.")
STREAM = Attribute("gen_ai.request.stream", "Always true.")
INPUT_TOKENS = Attribute("gen_ai.usage.input_tokens", "Prompt tokens.")
OUTPUT_TOKENS = Attribute("gen_ai.usage.output_tokens", "Tokens handed to the client in this span.")
FINISH_REASONS = Attribute("gen_ai.response.finish_reasons", "One: stop, length or abort.")
FIRST_TOKEN = Attribute("gen_ai.response.time_to_first_chunk", "Seconds to the first token.")
RPC_SYSTEM = Attribute("rpc.system.name", "Always grpc.")
RPC_METHOD = Attribute("rpc.method", "The call that the span serves.")
ERROR_TYPE = Attribute("error.type", "Why the session ended early, from a fixed set.")

# --- Values of labels --------------------------------------------------------------


class RoundOutcome:
    """What happened to a round's block."""

    ACCEPTED_ALL = "accepted_all"
    PARTIAL = "partial"
    REJECTED_ALL = "rejected_all"
    PLAIN = "plain"


OUTCOMES = {
    RoundOutcome.ACCEPTED_ALL: "Every draft token was accepted.",
    RoundOutcome.PARTIAL: "Some draft tokens were accepted.",
    RoundOutcome.REJECTED_ALL: "No draft token was accepted.",
    RoundOutcome.PLAIN: "There was no draft token: plain decoding.",
}


class Fallback:
    """Why a round of a session that speculates held no draft token."""

    NO_DRAFTER = "no_drafter"
    OPENING = "opening"
    GIVEN_UP = "given_up"
    LOAD = "load"
    DOES_NOT_PAY = "does_not_pay"
    NOTHING_READY = "nothing_ready"


FALLBACKS = {
    Fallback.NO_DRAFTER: "No drafter is connected, or none has room.",
    Fallback.OPENING: "The drafter does not have the session open yet.",
    Fallback.GIVEN_UP: "Drafters failed too often; the session stopped asking for one.",
    Fallback.LOAD: "The load allows no draft tokens for now.",
    Fallback.DOES_NOT_PAY: "Drafting rests: drafts cost more time than they save.",
    Fallback.NOTHING_READY: "No draft was there that paid in this step.",
}


# Why a session ended here with an error: its name, or why it was suspended.
FAILURES = {
    "no_verifier": "No verifier could take the session in time.",
    "deadline": "The session's deadline passed.",
    "detached": "Its client left and did not come back. No fault of ours.",
    "refused": "The verifier refused the session.",
    "impossible": "The request leaves no token to go on with. No fault of ours.",
    "costly": "Following its response format takes too much. No fault of ours.",
    "Draining": "This orchestrator stops; the session goes on at another. No fault.",
    "Fenced": "Another orchestrator took the session over; it goes on there. No fault.",
    "DataLoss": "The store has less than it acknowledged.",
    "StoreError": "The store refused, or was away for too long.",
    "PacelineError": "A broken invariant; the log says more.",
}

# How a session ended here, errors taken together.
FINISHES = ("stop", "length", "abort", "suspended", "detached", "error")


# What drafted for a session: a method of its own, several together, or one that is not known here.
METHODS = ("ngram", "graph", "model", "text", "eagle", "skip", "lookahead", "several", "other")
# How its drafts were verified.
MODES = ("greedy", "coupled", "standard", "block")


# Why a draft token that came to a verifier was never verified; see `step_records.Dropped`.
DROPS = {
    "late": "It came when the text had gone on otherwise.",
    "passed": "The text has gone past it: the target said it meanwhile, or went beside it.",
    "departed": "The text departed from its draft.",
    "replaced": "A newer draft came.",
    "ended": "Its session ended, or left.",
}

# Why a session takes no part in a step; see `WaitReason`.
WAITS = {
    "credit": "Its orchestrator, or the store, has yet to take what was decided.",
    "kv": "Others have its K/V memory.",
    "prompt": "Its text is being read, or waits for that.",
    "format": "Its response format is being compiled or followed.",
    "turn": "Others come first: the step is full.",
    "hold": "Its draft is waited for.",
    "ended": "Its text has ended.",
}


class Cause:
    """Why a session lost a worker."""

    LOST = "lost"
    FAILED = "failed"
    REFUSED = "refused"
    FULL = "full"


LAST_POSITION = 31
POSITIONS = (*(str(position) for position in range(LAST_POSITION + 1)), f"{LAST_POSITION + 1}+")

# --- Metrics -----------------------------------------------------------------------

_MOMENTS = tuple(
    base * 10.0**power for power in range(-4, 1) for base in (1.0, 2.5, 5.0)
)  # 0.1 ms … 5 s
_LENGTHS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_COUNTS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0, 64.0)
_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_EFFICIENCIES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


def _counter(name: str, unit: str, help: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, unit, help, labels)


def _gauge(name: str, unit: str, help: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, unit, help, labels)


def _histogram(name: str, unit: str, help: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, unit, help, labels, buckets)


def _seconds(name: str, help: str, *labels: str, buckets: tuple[float, ...] = _MOMENTS) -> Metric:
    return _histogram(name, "s", help, *labels, buckets=buckets)


ROUND_COUNT = _counter("paceline.rounds", "{round}", "Rounds by outcome.", "outcome")
DRAFT_COUNT = _counter(
    "paceline.drafts", "{draft}", "Rounds with at least one verified draft token."
)
DRAFTED = _counter("paceline.draft.tokens", "{token}", "Draft tokens that were verified.")
ACCEPTED = _counter("paceline.accepted.tokens", "{token}", "Draft tokens that the target accepted.")
ACCEPTED_AT = _counter(
    "paceline.accepted.tokens_per_pos",
    "{token}",
    f"Accepted draft tokens by position in the block, 0 to {LAST_POSITION}, then all further.",
    "pos",
)
DRAFTED_BY = _counter(
    "paceline.draft.tokens_per_source",
    "{token}",
    "Draft tokens that were verified, by where they came from.",
    "source",
)
ACCEPTED_BY = _counter(
    "paceline.accepted.tokens_per_source",
    "{token}",
    "Draft tokens that the target accepted, by where they came from.",
    "source",
)
EMITTED = _counter("paceline.emitted.tokens", "{token}", "Tokens that became final.")
FALLBACK_ROUNDS = _counter(
    "paceline.rounds.fallback",
    "{round}",
    "Rounds without a draft token, of sessions that speculate, by the reason.",
    "reason",
)
STARVED = _counter(
    "paceline.verifier.starved",
    "s",
    "Time for which sessions were held back from a step for their drafts.",
)
SESSION_ERRORS = _counter(
    "paceline.session.errors",
    "{session}",
    "Sessions that ended here with an error, by its name; most can be resumed.",
    "type",
)
BAD_Q_COUNT = _counter(
    "paceline.draft.bad_q_rows",
    "{row}",
    "Rows of q that a sampled draft lacked or that could not be used; they cost speed only.",
)
DROPPED_WRITES = _counter(
    "paceline.store.dropped_writes",
    "{write}",
    "Commits that the session store did not take in time; with durability `relaxed` only.",
)
FENCED_WRITES = _counter(
    "paceline.fenced.writes",
    "{write}",
    "Writes that the session store refused, since another orchestrator owns the session.",
)
STORE_AWAY = _gauge(
    "paceline.store.away",
    "s",
    "For how long the session store has not answered or has refused writes; 0 = it works.",
)
CONNECTED_WORKERS = _gauge(
    "paceline.workers.connected",
    "{worker}",
    "Workers that this orchestrator is connected to and that take sessions.",
    "role",
)
MIGRATIONS = _counter(
    "paceline.session.migrations",
    "{session}",
    "Sessions opened again on a worker, by its role.",
    "role",
)
PREFILLED = _counter(
    "paceline.prefill.tokens",
    "{token}",
    "Tokens that verifiers prefilled: computed, or found in the prefix cache (cached).",
    "source",
)
ROUND_SECONDS = _seconds(
    "paceline.round.duration", "From when a session could have been in a step to that step's end."
)
DRAFT_SECONDS = _seconds("paceline.draft.duration", "Drafting what a round verified.")
VERIFY_SECONDS = _seconds("paceline.verify.duration", "The verifying step of a round.")
QUEUE_SECONDS = _seconds(
    "paceline.verify.queue_wait", "A session's wait for its step, for its draft included."
)
STORE_SECONDS = _seconds(
    "paceline.store.commit.duration", "From asking for a commit until the store acknowledged it."
)
LOOP_LAG = _seconds(
    "paceline.event_loop.lag", "How late the process's event loop is, measured ten times a second."
)
ROUND_ACCEPTED = _histogram(
    "paceline.round.accepted_tokens",
    "{token}",
    "Accepted draft tokens of a round that had any to verify.",
    buckets=_COUNTS,
)
REQUEST_ACCEPTANCE = _histogram(
    "paceline.request.acceptance_rate",
    "1",
    "Share of a finished session's verified draft tokens that the target accepted.",
    "method",
    "mode",
    buckets=_SHARES,
)
REQUEST_EFFICIENCY = _histogram(
    "paceline.request.block_efficiency",
    "{token}",
    "Tokens of a finished session that had drafts, for each forward pass of the target.",
    "method",
    "mode",
    buckets=_EFFICIENCIES,
)
SESSIONS = _gauge("paceline.sessions.active", "{session}", "Sessions in this process.", "role")
PLAIN_SESSIONS = _gauge(
    "paceline.sessions.without_speculation",
    "{session}",
    "Sessions that decode plainly: nobody drafts for them, or drafts rest as they do not pay.",
)
WAITING = _gauge(
    "paceline.sessions.waiting",
    "{session}",
    "Sessions here that take no part in steps, by what their verifiers say.",
    "reason",
)
STREAMS = _gauge("paceline.streams.active", "{stream}", "Calls that stream a session to a client.")
VERIFY_QUEUE = _gauge(
    "paceline.verify.queue_tokens",
    "{token}",
    "Rows that the next steps of the sessions here are likely to have, and whole texts of those "
    "that no verifier has open.",
)
DRAFTERS_WANTED = _gauge(
    "paceline.drafters.wanted", "{session}", "Sessions that want drafts, with or without a drafter."
)
HEARD_KV_USED = _gauge(
    "paceline.kv.used_tokens",
    "{token}",
    "Tokens reserved in the KV caches of the workers that this orchestrator is connected to.",
    "role",
)
HEARD_KV_CAPACITY = _gauge(
    "paceline.kv.capacity_tokens",
    "{token}",
    "Most tokens that the KV caches of those workers hold.",
    "role",
)
SPEC_DRAFTS = _counter("spec_decode_num_drafts", "{draft}", "Drafts that were verified.")
SPEC_DRAFTED = _counter(
    "spec_decode_num_draft_tokens", "{token}", "Draft tokens that were verified."
)
SPEC_ACCEPTED = _counter(
    "spec_decode_num_accepted_tokens", "{token}", "Draft tokens that were accepted."
)
SPEC_ACCEPTED_AT = _counter(
    "spec_decode_num_accepted_tokens_per_pos",
    "{token}",
    "Accepted draft tokens by position; labelled as in vLLM.",
    "position",
)
FIRST_TOKEN_SECONDS = _seconds(
    "gen_ai.server.time_to_first_token",
    "From the admission of a session to its first token.",
    buckets=(*_MOMENTS, 10.0, 30.0),
)
TOKEN_SECONDS = _seconds(
    "gen_ai.server.time_per_output_token",
    "Mean time per token after the first, of sessions that finished.",
)
REQUEST_SECONDS = _seconds(
    "gen_ai.server.request.duration",
    "From the admission of a session to its end.",
    "finish_reason",
    buckets=_LENGTHS,
)
STEP_SECONDS = _seconds("paceline.step.duration", "One engine step.", "role")
STEP_SESSIONS = _histogram(
    "paceline.step.batch_size", "{session}", "Sessions in one step.", "role", buckets=_SIZES
)
STEP_WAIT_SECONDS = _seconds(
    "paceline.step.queue_wait", "A session's wait before a step of this verifier."
)
STEP_TOKEN_COUNT = _counter(
    "paceline.step.tokens", "{token}", "Tokens drafted, verified or prefilled.", "role", "kind"
)
STOOD_OUT = _counter(
    "paceline.step.stood_out",
    "{session}",
    "Sessions of a verifier that took no part in one of its steps, by the reason.",
    "reason",
)
DROPPED_DRAFTS = _counter(
    "paceline.draft.tokens_dropped",
    "{token}",
    "Draft tokens that came to a verifier and were never verified, by the reason.",
    "reason",
)
COPIED_PROMPT_TOKENS = _counter(
    "paceline.draft.prompt.copied",
    "{token}",
    "Tokens of prompts that a drafter did not read, but copied from another completion's K/V.",
)
STEPS_UNTRACED = _counter(
    "paceline.step.untraced", "{step}", "Steps that came too fast to be recorded."
)
QUEUED_TOKENS = _gauge(
    "paceline.queue.tokens",
    "{token}",
    "Tokens of prompts that a verifier has yet to read, or that a drafter may draft.",
    "role",
)
KV_USED = _gauge("paceline.kv.tokens.used", "{token}", "Tokens reserved in the KV cache.")
KV_SPARE = _gauge(
    "paceline.kv.tokens.spare",
    "{token}",
    "Tokens in the prefix cache; evicted when a session needs the room.",
)
PREEMPTIONS = _counter(
    "paceline.kv.preemptions",
    "{session}",
    "Sessions preempted by an older one; they are prefilled again.",
)
STATE_BYTES = _counter(
    "paceline.states.bytes",
    "By",
    "Hidden states of the target: sent, received, or dropped where they found no room or no text.",
    "role",
    "fate",
)
CHOSEN = _counter(
    "paceline.chosen.tokens",
    "{token}",
    "Tokens that the target chose, greedily or coupled: what near-ties are counted among.",
    "model",
    "dtype",
    "mode",
)
NEAR_TIE_COUNT = _counter(
    "paceline.near_ties",
    "{token}",
    "Chosen tokens whose margin is so small that rounding can turn it, in this dtype; of coupled "
    "ones that of logits and noise. STANDARD and BLOCK are not counted: chance decides there.",
    "model",
    "dtype",
    "mode",
)
KV_CAPACITY = _gauge("paceline.kv.tokens.capacity", "{token}", "Most tokens the KV cache holds.")


def every_span() -> tuple[SpanName, ...]:
    """All spans, in the order of this file."""
    return tuple(value for value in globals().values() if isinstance(value, SpanName))


def every_attribute() -> tuple[Attribute, ...]:
    """All attribute keys, in the order of this file."""
    return tuple(value for value in globals().values() if isinstance(value, Attribute))


def every_metric() -> tuple[Metric, ...]:
    """All metrics, in the order of this file."""
    return tuple(value for value in globals().values() if isinstance(value, Metric))
