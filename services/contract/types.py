"""The values that travel between the parts of Paceline.

Frozen records with the field's own names; standard library only. What every round makes
anew is a named tuple: it is filled at once, where a frozen dataclass sets field after field.
One file, longer than the others, because it is the vocabulary and is read whole. Generated
protobuf classes never leave `services.contract.wire`, which translates both ways.

Positions: `output[i]` is the i-th generated token of a session (the prompt is
not counted), so "position p" always means an index in the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, StrEnum
from typing import NamedTuple

from services.contract.sampling import SamplingNumbers

PROTOCOL = 2
"""What orchestrators and workers of this version speak with each other."""

_HASH_MASK = (1 << 64) - 1
_HASH_PRIME = 0x100000001B3
EMPTY_HASH = 0xCBF29CE484222325


def extend_hash(prefix_hash: int, tokens: Sequence[int]) -> int:
    """Rolling 64-bit hash (FNV-1a over token ids) of an output text.

    `prefix_hash` is the hash of the text before `tokens`; `EMPTY_HASH` for none.
    """
    for token in tokens:
        prefix_hash = ((prefix_hash ^ (token + 1)) * _HASH_PRIME) & _HASH_MASK
    return prefix_hash


class VerifyMode(Enum):
    """How draft tokens are verified; fixed when a session opens, until a re-open."""

    GREEDY = 1
    COUPLED = 2
    STANDARD = 3
    BLOCK = 4

    @property
    def exact_match(self) -> bool:
        """The emitted token is the target's own choice, whatever the draft was.

        Otherwise a drawn token may become the emitted one, and the time of its verification
        must not depend on its value: when a process dies, unverified tokens are drawn again,
        so tokens that are verified early would come too often.
        """
        return self in _EXACT


_EXACT = (VerifyMode.GREEDY, VerifyMode.COUPLED)


class Proposal(Enum):
    """How a draft was made, which decides how it may be verified."""

    ONE_HOT = 1
    SAMPLED = 2
    COUPLED = 3


class DraftSource(IntEnum):
    """Where a draft token came from. Values as on the wire, where each is a byte.

    `THIS_TEXT` to `FIRSTS` are sources of n-grams: prompt and output of the session; other texts
    of its tenant; and, from an n-gram file, distributions in texts of the target, and those after
    single tokens. `TARGET_ROWS`: the target's predictions after that token in earlier blocks of
    this session. The rest are methods.
    """

    UNSPECIFIED = 0
    THIS_TEXT = 1
    OTHER_TEXTS = 2
    LAWS = 3
    FIRSTS = 4
    MODEL = 5
    GRAPH = 6
    SKIP = 7
    LOOKAHEAD = 8
    TARGET_ROWS = 9
    EAGLE = 10
    TEXT = 11


def source_of(method: str) -> DraftSource:
    """The source that equals a method; unspecified for several methods, and for n-grams."""
    return _SOURCES.get(method, DraftSource.UNSPECIFIED)


_METHODS = {*DraftSource} - {*range(DraftSource.MODEL), DraftSource.TARGET_ROWS}
_SOURCES = {source.name.lower(): source for source in DraftSource if source in _METHODS}


class Role(Enum):
    """What a worker does."""

    DRAFTER = "drafter"
    VERIFIER = "verifier"


class Origin(Enum):
    """Where an emitted token came from."""

    ACCEPTED = 1
    RECOVERED = 2
    BONUS = 3


class FinishReason(Enum):
    """Why a session ended."""

    STOP = 1
    LENGTH = 2
    ABORT = 3


class SessionStatus(Enum):
    """What a stored session is doing."""

    ACTIVE = 1
    PAUSED = 2
    FINISHED = 3
    ABORTED = 4


class FailureReason(Enum):
    """Why a worker gave up one session.

        reason            another worker, or a later time          so the session
        CAPACITY          has room                                 waits, or goes elsewhere
        UNKNOWN_SESSION   opens it anew                            is opened again
        INTERNAL          may not fail                             goes elsewhere, a few times
        INVALID           may have other limits, or another peer   stops, and can be resumed
        UNSUPPORTED       may be of another kind                   stops, and can be resumed
        FORMAT            compiles, or follows, it no better       has ended
        FORMAT_COST       follows it for no less                   has ended
        NOTHING_ALLOWED   finds no token either                    has ended

    FORMAT: the response format cannot be compiled, or not be followed any further.
    FORMAT_COST: following the response format takes more CPU time than an output may.
    NOTHING_ALLOWED: the session's parameters together leave no token to choose.
    """

    CAPACITY = 1
    UNKNOWN_SESSION = 2
    INVALID = 3
    UNSUPPORTED = 4
    INTERNAL = 5
    FORMAT = 6
    NOTHING_ALLOWED = 7
    FORMAT_COST = 8

    @property
    def for_good(self) -> bool:
        """Whether the session fails everywhere, now and later."""
        return self in _FOR_GOOD


_FOR_GOOD = frozenset(
    (FailureReason.FORMAT, FailureReason.NOTHING_ALLOWED, FailureReason.FORMAT_COST)
)


class FormatKind(StrEnum):
    """What a response format is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True, slots=True)
class FormatMarker:
    """Where a format begins: behind the first `text` of the output, or these `token_ids`.

    One of the two is given.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """A response format. `source`: as it was written; of a choice, its options.

    Text up to `start` is free; None: the format holds from the first token.
    """

    kind: FormatKind
    source: tuple[str, ...]
    start: FormatMarker | None = None

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What a worker has to know to follow it."""
        new = self.kind in (FormatKind.GRAMMAR, FormatKind.STRUCTURAL_TAG)
        grammar = (RESPONSE_GRAMMAR,) if new else ()
        start = (RESPONSE_START,) if self.start is not None else ()
        return (RESPONSE_FORMAT, *grammar, *start)


@dataclass(frozen=True, slots=True)
class ResolvedSampling(SamplingNumbers):
    """Sampling parameters with every default filled in.

    `stop_token_ids` holds the EOS ids too, unless EOS is ignored; all of them
    are masked until `min_tokens`. `logprobs` None: off.
    `response_format` None: any output. `allowed_token_ids`, ascending: no others are
    chosen; empty = any. `bad_words`: where the output ends in all tokens of one but its
    last, that last one is not chosen. `prompt_logprobs` None: off.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    response_format: ResponseFormat | None = None
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    prompt_logprobs: int | None = None

    @property
    def limits_tokens(self) -> bool:
        """Whether it takes a worker with the capability `TOKEN_LIMITS`."""
        return bool(self.allowed_token_ids or self.bad_words)


@dataclass(frozen=True, slots=True)
class SparseRow:
    """One draft distribution: ids and the probabilities (they sum to 1) they were drawn with."""

    token_ids: tuple[int, ...]
    probabilities: tuple[float, ...]


def is_chain(parents: Sequence[int]) -> bool:
    """Whether each node of a tree follows the one before it."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def node_depths(parents: Sequence[int]) -> list[int]:
    """The depth of each node of a tree: 0 for a child of the committed text."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def split_methods(method: str) -> tuple[str, ...]:
    """The drafting methods that a name stands for, in verification order."""
    return tuple(name.strip() for name in method.split(",")) if method.strip() else ()


RESPONSE_FORMAT = "response_format"
"""Capability of a worker that supports response formats."""

RESPONSE_GRAMMAR = "response_format:grammar"
"""Capability of a worker that reads grammars and structural tags."""

RESPONSE_START = "response_format:start"
"""Capability of a worker that knows formats with a start."""

LATER_FORMATS = (RESPONSE_GRAMMAR, RESPONSE_START)
"""What workers with response formats did not know from the first."""


TOKEN_LIMITS = "token_limits"
"""Capability of a worker that heeds `allowed_token_ids` and `bad_words`."""


SCORES = "scores"
"""Capability of a verifier that can tell how likely the tokens of a prompt are."""


STATES = "states"
"""Capability of a verifier that can tell the states of its layers; see `states`."""


def sampled_capability(method: str) -> str:
    """The capability of a method that samples its drafts and sends their distributions."""
    return f"{method}:sampled"


def tree_capability(method: str) -> str:
    """The capability of a method that drafts several candidates per node."""
    return f"{method}:tree"


def estimate_capability(method: str) -> str:
    """The capability of a method whose trees come at once, with each node's chance."""
    return f"{method}{_ESTIMATES}"


def rows_capability(method: str) -> str:
    """The capability of a method that uses the target's predictions at each row."""
    return f"{method}:rows"


def states_capability(method: str) -> str:
    """The capability of a method that drafts from states of the target; see `states`."""
    return f"{method}:states"


def local_capability(method: str) -> str:
    """The capability of a verifier that can draft by a method itself, without a drafter."""
    return f"{_LOCAL}{method}"


def local_methods(capabilities: Iterable[str]) -> tuple[str, ...]:
    """The methods by which a verifier of these capabilities can draft itself."""
    own = [one.removeprefix(_LOCAL) for one in capabilities if one.startswith(_LOCAL)]
    return tuple(own)


def estimated_method(capability: str) -> str:
    """The method of such a capability; empty = another capability."""
    return capability.removesuffix(_ESTIMATES) if capability.endswith(_ESTIMATES) else ""


_ESTIMATES = ":estimates"
_LOCAL = "local:"


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Draft tokens in topological order.

    `parents[i]` is the index of token i's parent, -1 for a child of the
    committed text; None means a chain. `q` has one row per parent that has
    children, in order of parent index, when `proposal` is SAMPLED.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    q: tuple[SparseRow, ...] | None = None
    proposal: Proposal = Proposal.ONE_HOT
    without_replacement: bool = False

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """Whether each token follows the one before it."""
        return self.parents is None or is_chain(self.parents)

    @property
    def every_parent(self) -> Sequence[int]:
        """The parent of each token, spelt out for a chain, too."""
        return range(-1, len(self) - 1) if self.parents is None else self.parents

    def normal(self) -> DraftTree:
        """The same draft; a chain that spells out its parents, without them."""
        return replace(self, parents=None) if self.parents is not None and self.is_chain else self

    def first(self, count: int) -> DraftTree:
        """The first `count` nodes, of a tree without `q`; a chain without its parents."""
        parents = None if self.parents is None else self.parents[:count]
        return replace(self, token_ids=self.token_ids[:count], parents=parents).normal()


class StepTime(NamedTuple):
    """What a step of so many rows took, in milliseconds."""

    rows: int
    ms: float


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What a worker is. Empty fingerprints mean "works with any".

    `state_layers`, `state_width`: the states that a drafter's methods need, and the numbers in
    those of one token; `hidden_width`, `hidden_layers`: what a verifier has (see `states`).
    """

    worker_id: str
    role: Role
    model: str = ""
    model_fingerprint: str = ""
    tokenizer_fingerprint: str = ""
    vocab_size: int = 0
    max_context_length: int = 0
    methods: tuple[str, ...] = ()
    kv_capacity_tokens: int = 0
    protocol_min: int = PROTOCOL
    protocol_max: int = PROTOCOL
    version: str = ""
    capabilities: tuple[str, ...] = ()
    dtype: str = ""
    state_layers: tuple[int, ...] = ()
    state_width: int = 0
    hidden_width: int = 0
    hidden_layers: int = 0


@dataclass(frozen=True, slots=True)
class NamedText:
    """A text by its name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class TokenizerBundle:
    """Everything needed to turn text into ids and back, without weights.

    `special_tokens`: all that a chat template may write, by names such as `pad_token`.
    `chat_templates`: those beside the first one, by names such as `tool_use`.
    """

    fingerprint: str
    tokenizer_json: str
    chat_template: str = ""
    generation_config_json: str = "{}"
    eos_token_ids: tuple[int, ...] = ()
    bos_token: str = ""
    eos_token: str = ""
    special_tokens: tuple[NamedText, ...] = ()
    chat_templates: tuple[NamedText, ...] = ()


# --- Links -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkHello:
    """First message of a link."""

    orchestrator_id: str
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True)
class Progress:
    """How busy a worker is; `steps` grows while its engine moves.

    `kv_tokens_spare`: the prefix cache, which counts as free. `oldest_command_ms`: the age of
    the oldest command that its core has not absorbed. `turn_ms`: the age of the core's running
    turn; 0 = it rests. Both count only time in which the worker's process could run; a worker
    that does not report them leaves them 0. `recalled_tokens`: drafted so far from texts of
    other sessions. `links`: orchestrators that are connected to it; 0 = not told.
    `copied_tokens`: of prompts, copied so far from other completions' K/V.
    """

    steps: int = 0
    sessions: int = 0
    queued_tokens: int = 0
    kv_tokens_used: int = 0
    kv_tokens_capacity: int = 0
    step_ms: float = 0.0
    kv_tokens_spare: int = 0
    oldest_command_ms: float = 0.0
    turn_ms: float = 0.0
    recalled_tokens: int = 0
    links: int = 0
    copied_tokens: int = 0

    @property
    def stuck_ms(self) -> float:
        """The longer of both ages: of the oldest command, and of the running turn."""
        return max(self.oldest_command_ms, self.turn_ms)


@dataclass(frozen=True, slots=True)
class Draining:
    """The worker stops taking sessions; open ones should move within the deadline."""

    deadline_ms: int


@dataclass(frozen=True, slots=True)
class OpenDraft:
    """What a drafting method is told of a session.

    `output`: what is known of it. `vocab_size`: token ids of the target, 0 = unknown; no others
    are proposed. `method`: one drafting method, or several joined by commas, in verification order.
    `phrase_scope`: sessions with the same one may share phrases of their outputs;
    with an empty one a session shares nothing.
    `top_rows`: tokens in each row of target predictions in steps; see `top_rows`.
    `fork_scope`: completions of one prompt have the same one, and read it once.
    """

    prompt: tuple[int, ...]
    mode: VerifyMode
    sampling: ResolvedSampling
    seed: int
    output: tuple[int, ...] = ()
    num_candidates: int = 1
    method: str = ""
    vocab_size: int = 0
    phrase_scope: str = ""
    top_rows: int = 0
    fork_scope: str = ""

    @property
    def last_ids(self) -> tuple[int, ...]:
        """Token ids behind which nothing is drafted; see `VerifyMode.exact_match`."""
        return self.sampling.stop_token_ids if self.mode.exact_match else ()


@dataclass(frozen=True, slots=True)
class LogprobRow:
    """Natural logarithms of the target's raw distribution at one token."""

    logprob: float
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
