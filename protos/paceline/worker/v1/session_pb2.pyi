from paceline.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StepEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_END_UNSPECIFIED: _ClassVar[StepEnd]
    STEP_END_RECOVERED: _ClassVar[StepEnd]
    STEP_END_BONUS: _ClassVar[StepEnd]
    STEP_END_NONE: _ClassVar[StepEnd]

class WaitReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_REASON_UNSPECIFIED: _ClassVar[WaitReason]
    WAIT_REASON_CREDIT: _ClassVar[WaitReason]
    WAIT_REASON_KV: _ClassVar[WaitReason]
    WAIT_REASON_PROMPT: _ClassVar[WaitReason]
    WAIT_REASON_FORMAT: _ClassVar[WaitReason]
    WAIT_REASON_TURN: _ClassVar[WaitReason]
    WAIT_REASON_HOLD: _ClassVar[WaitReason]
    WAIT_REASON_ENDED: _ClassVar[WaitReason]
STEP_END_UNSPECIFIED: StepEnd
STEP_END_RECOVERED: StepEnd
STEP_END_BONUS: StepEnd
STEP_END_NONE: StepEnd
WAIT_REASON_UNSPECIFIED: WaitReason
WAIT_REASON_CREDIT: WaitReason
WAIT_REASON_KV: WaitReason
WAIT_REASON_PROMPT: WaitReason
WAIT_REASON_FORMAT: WaitReason
WAIT_REASON_TURN: WaitReason
WAIT_REASON_HOLD: WaitReason
WAIT_REASON_ENDED: WaitReason

class StepFrame(_message.Message):
    __slots__ = ("step", "started_ns", "step_ms", "sessions", "rows", "stood_out", "handles", "openings", "positions", "counts", "tokens", "accepted", "drafted", "draft_tokens", "paths", "ends", "draft_openings", "draft_numbers", "draft_ms", "age_ms", "queue_ms", "hold_ms", "sources", "near_ties", "bad_q_rows", "windows", "logprobs", "top_rows", "states")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STOOD_OUT_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    OPENINGS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_OPENINGS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    NEAR_TIES_FIELD_NUMBER: _ClassVar[int]
    BAD_Q_ROWS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_ROWS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    step: int
    started_ns: int
    step_ms: float
    sessions: int
    rows: int
    stood_out: _containers.RepeatedScalarFieldContainer[int]
    handles: bytes
    openings: bytes
    positions: bytes
    counts: bytes
    tokens: bytes
    accepted: bytes
    drafted: bytes
    draft_tokens: bytes
    paths: bytes
    ends: bytes
    draft_openings: bytes
    draft_numbers: bytes
    draft_ms: bytes
    age_ms: bytes
    queue_ms: bytes
    hold_ms: bytes
    sources: bytes
    near_ties: bytes
    bad_q_rows: bytes
    windows: bytes
    logprobs: _containers.RepeatedCompositeFieldContainer[StepLogprobs]
    top_rows: _containers.RepeatedCompositeFieldContainer[StepRows]
    states: _containers.RepeatedCompositeFieldContainer[StepStates]
    def __init__(self, step: _Optional[int] = ..., started_ns: _Optional[int] = ..., step_ms: _Optional[float] = ..., sessions: _Optional[int] = ..., rows: _Optional[int] = ..., stood_out: _Optional[_Iterable[int]] = ..., handles: _Optional[bytes] = ..., openings: _Optional[bytes] = ..., positions: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., accepted: _Optional[bytes] = ..., drafted: _Optional[bytes] = ..., draft_tokens: _Optional[bytes] = ..., paths: _Optional[bytes] = ..., ends: _Optional[bytes] = ..., draft_openings: _Optional[bytes] = ..., draft_numbers: _Optional[bytes] = ..., draft_ms: _Optional[bytes] = ..., age_ms: _Optional[bytes] = ..., queue_ms: _Optional[bytes] = ..., hold_ms: _Optional[bytes] = ..., sources: _Optional[bytes] = ..., near_ties: _Optional[bytes] = ..., bad_q_rows: _Optional[bytes] = ..., windows: _Optional[bytes] = ..., logprobs: _Optional[_Iterable[_Union[StepLogprobs, _Mapping]]] = ..., top_rows: _Optional[_Iterable[_Union[StepRows, _Mapping]]] = ..., states: _Optional[_Iterable[_Union[StepStates, _Mapping]]] = ...) -> None: ...

class StepLogprobs(_message.Message):
    __slots__ = ("index", "rows")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    index: int
    rows: _containers.RepeatedCompositeFieldContainer[LogprobRow]
    def __init__(self, index: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[LogprobRow, _Mapping]]] = ...) -> None: ...

class LogprobRow(_message.Message):
    __slots__ = ("logprob", "top_token_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: bytes
    def __init__(self, logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[bytes] = ...) -> None: ...

class StepRows(_message.Message):
    __slots__ = ("index", "rows")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    index: int
    rows: bytes
    def __init__(self, index: _Optional[int] = ..., rows: _Optional[bytes] = ...) -> None: ...

class StepStates(_message.Message):
    __slots__ = ("index", "rows")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    index: int
    rows: bytes
    def __init__(self, index: _Optional[int] = ..., rows: _Optional[bytes] = ...) -> None: ...

class TextStates(_message.Message):
    __slots__ = ("handle", "opening", "position", "states")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    handle: int
    opening: int
    position: int
    states: bytes
    def __init__(self, handle: _Optional[int] = ..., opening: _Optional[int] = ..., position: _Optional[int] = ..., states: _Optional[bytes] = ...) -> None: ...

class DraftFrame(_message.Message):
    __slots__ = ("handles", "openings", "numbers", "positions", "hashes", "counts", "tokens", "parents", "reach", "sources", "kinds", "draft_ms", "q_rows", "q_counts", "q_ids", "q_probs")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    OPENINGS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MS_FIELD_NUMBER: _ClassVar[int]
    Q_ROWS_FIELD_NUMBER: _ClassVar[int]
    Q_COUNTS_FIELD_NUMBER: _ClassVar[int]
    Q_IDS_FIELD_NUMBER: _ClassVar[int]
    Q_PROBS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    openings: bytes
    numbers: bytes
    positions: bytes
    hashes: bytes
    counts: bytes
    tokens: bytes
    parents: bytes
    reach: bytes
    sources: bytes
    kinds: bytes
    draft_ms: bytes
    q_rows: bytes
    q_counts: bytes
    q_ids: bytes
    q_probs: bytes
    def __init__(self, handles: _Optional[bytes] = ..., openings: _Optional[bytes] = ..., numbers: _Optional[bytes] = ..., positions: _Optional[bytes] = ..., hashes: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., parents: _Optional[bytes] = ..., reach: _Optional[bytes] = ..., sources: _Optional[bytes] = ..., kinds: _Optional[bytes] = ..., draft_ms: _Optional[bytes] = ..., q_rows: _Optional[bytes] = ..., q_counts: _Optional[bytes] = ..., q_ids: _Optional[bytes] = ..., q_probs: _Optional[bytes] = ...) -> None: ...

class EndSession(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    def __init__(self, handle: _Optional[int] = ...) -> None: ...

class SessionGone(_message.Message):
    __slots__ = ("handle", "opening", "reason", "message")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    opening: int
    reason: _types_pb2.FailureReason
    message: str
    def __init__(self, handle: _Optional[int] = ..., opening: _Optional[int] = ..., reason: _Optional[_Union[_types_pb2.FailureReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class SessionStarted(_message.Message):
    __slots__ = ("handle", "opening", "cached_tokens", "prefill_ms")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    opening: int
    cached_tokens: int
    prefill_ms: float
    def __init__(self, handle: _Optional[int] = ..., opening: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., prefill_ms: _Optional[float] = ...) -> None: ...
