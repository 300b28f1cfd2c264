"""What a client asks for, whichever door it came through; nothing of it is checked yet.

Lists may be views of the message: millions of items cost nothing until they are read. A text
costs time and memory as soon as it is taken out of the message, so a request
(`IncomingRequest`) is read when its turn comes. None: left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from services.contract.types import ResponseFormat


class ToolCallLike(Protocol):
    """What the assistant called."""

    @property
    def id(self) -> str:
        """By which its result names it."""

    @property
    def name(self) -> str:
        """Of the function."""

    @property
    def arguments(self) -> str:
        """An object as JSON."""


class MessageLike(Protocol):
    """One turn of a conversation; an empty text says that there is none."""

    @property
    def role(self) -> str:
        """Who speaks."""

    @property
    def content(self) -> str:
        """What is said."""

    @property
    def null_content(self) -> bool:
        """Whether there is no content, rather than an empty one."""

    @property
    def tool_calls(self) -> Sequence[ToolCallLike]:
        """What the assistant called."""

    @property
    def tool_call_id(self) -> str:
        """The call that this is the result of."""

    @property
    def name(self) -> str:
        """Of the function, or of who speaks."""

    @property
    def reasoning_content(self) -> str:
        """What the assistant thought."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A function by its parts, or a whole definition as `json`."""

    name: str = ""
    description: str | None = None
    parameters: str | None = None
    json: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationRequest:
    """What a chat template is to render; the names are those of the wire."""

    messages: Sequence[MessageLike]
    tools: Sequence[ToolRequest] = ()
    chat_template_kwargs: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


@dataclass(frozen=True, slots=True)
class FormatStartRequest:
    """What a format begins behind: one of these.

    `auto`: what ends the model's thoughts; `if_thinking`: only where the prompt ends in them.
    """

    text: str | None = None
    token_ids: Sequence[int] | None = None
    auto: bool = False
    if_thinking: bool = False


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """How tokens are to be drawn, and when they end; the names are those of the wire.

    `numbers`: those given, by name; see `services.contract.sampling`. `open_ended`: that the output
    may go on as far as there is room where `max_tokens` is left out.
    """

    numbers: Mapping[str, float] = field(default_factory=dict)
    max_tokens: int | None = None
    open_ended: bool = False
    min_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    response_format_start: FormatStartRequest | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class SpeculationRequest:
    """How a session is to be drafted for; `rejection_sample_method` by name."""

    method: str | None = None
    num_speculative_tokens: int | None = None
    rejection_sample_method: str | None = None
    disable_speculative_decoding: bool | None = None
    num_candidates: int | None = None


FITTING = -1
"""In place of `truncate_prompt_tokens`: as many as leave room for `max_tokens`."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request; one of `prompt`, `tokens` and `conversation` is its input.

    `truncate_prompt_tokens`: that only its last so many tokens are kept, or `FITTING`.
    """

    request_id: str | None = None
    model: str | None = None
    prompt: str | None = None
    tokens: Sequence[int] | None = None
    conversation: ConversationRequest | None = None
    sampling: SamplingRequest = SamplingRequest()
    speculation: SpeculationRequest = SpeculationRequest()
    include_rounds: bool = False
    ephemeral: bool = False
    n: int | None = None
    priority: int | None = None
    truncate_prompt_tokens: int | None = None


class ListLengths(NamedTuple):
    """How many items each list of a request has, in the fields' own names.

    `tool_calls`: of all messages together.
    `cut`: the last of the tokens alone are to be kept.
    """

    tokens: int = 0
    messages: int = 0
    stop: int = 0
    stop_token_ids: int = 0
    logit_bias: int = 0
    tools: int = 0
    tool_calls: int = 0
    allowed_token_ids: int = 0
    bad_words: int = 0
    choice: int = 0
    cut: bool = False


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """An unread request.

    `size`: bytes of the message that it came in. `read` takes time by its size, and may raise
    InvalidRequest.
    """

    size: int
    lengths: ListLengths
    read: Callable[[], GenerationRequest]
