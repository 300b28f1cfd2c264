from paceline.v1 import types_pb2 as _types_pb2
from paceline.worker.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifierServiceDescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifierServiceDescribeResponse(_message.Message):
    __slots__ = ("worker", "step_times", "progress")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    worker: _types_pb2.WorkerDescription
    step_times: _containers.RepeatedCompositeFieldContainer[StepTime]
    progress: _types_pb2.Progress
    def __init__(self, worker: _Optional[_Union[_types_pb2.WorkerDescription, _Mapping]] = ..., step_times: _Optional[_Iterable[_Union[StepTime, _Mapping]]] = ..., progress: _Optional[_Union[_types_pb2.Progress, _Mapping]] = ...) -> None: ...

class StepTime(_message.Message):
    __slots__ = ("rows", "ms")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    ms: float
    def __init__(self, rows: _Optional[int] = ..., ms: _Optional[float] = ...) -> None: ...

class VerifierServiceGetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifierServiceGetTokenizerResponse(_message.Message):
    __slots__ = ("part",)
    PART_FIELD_NUMBER: _ClassVar[int]
    part: bytes
    def __init__(self, part: _Optional[bytes] = ...) -> None: ...

class VerifierServiceLinkRequest(_message.Message):
    __slots__ = ("hello", "commands", "grants", "drafts")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    hello: _types_pb2.LinkHello
    commands: _containers.RepeatedCompositeFieldContainer[VerifierCommand]
    grants: _containers.RepeatedCompositeFieldContainer[Grants]
    drafts: _containers.RepeatedCompositeFieldContainer[_session_pb2.DraftFrame]
    def __init__(self, hello: _Optional[_Union[_types_pb2.LinkHello, _Mapping]] = ..., commands: _Optional[_Iterable[_Union[VerifierCommand, _Mapping]]] = ..., grants: _Optional[_Iterable[_Union[Grants, _Mapping]]] = ..., drafts: _Optional[_Iterable[_Union[_session_pb2.DraftFrame, _Mapping]]] = ...) -> None: ...

class VerifierCommand(_message.Message):
    __slots__ = ("start", "end", "window", "drafted_for")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FOR_FIELD_NUMBER: _ClassVar[int]
    start: StartVerify
    end: _session_pb2.EndSession
    window: SetWindow
    drafted_for: SetDraftedFor
    def __init__(self, start: _Optional[_Union[StartVerify, _Mapping]] = ..., end: _Optional[_Union[_session_pb2.EndSession, _Mapping]] = ..., window: _Optional[_Union[SetWindow, _Mapping]] = ..., drafted_for: _Optional[_Union[SetDraftedFor, _Mapping]] = ...) -> None: ...

class Grants(_message.Message):
    __slots__ = ("handles", "limits")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    limits: bytes
    def __init__(self, handles: _Optional[bytes] = ..., limits: _Optional[bytes] = ...) -> None: ...

class StartVerify(_message.Message):
    __slots__ = ("handle", "opening", "session_id", "term", "prompt", "output", "limit", "mode", "sampling", "seed", "window", "depth", "method", "first_drafts", "drafted_for", "traceparent", "cache_scope", "fork_scope", "phrase_scope", "top_rows", "state_layers", "score_from", "priority", "num_candidates", "pacing")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    FIRST_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FOR_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    FORK_SCOPE_FIELD_NUMBER: _ClassVar[int]
    PHRASE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    TOP_ROWS_FIELD_NUMBER: _ClassVar[int]
    STATE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FROM_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NUM_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    PACING_FIELD_NUMBER: _ClassVar[int]
    handle: int
    opening: int
    session_id: str
    term: int
    prompt: _containers.RepeatedScalarFieldContainer[int]
    output: _containers.RepeatedScalarFieldContainer[int]
    limit: int
    mode: _types_pb2.VerifyMode
    sampling: _types_pb2.ResolvedSampling
    seed: int
    window: int
    depth: int
    method: str
    first_drafts: int
    drafted_for: bool
    traceparent: str
    cache_scope: str
    fork_scope: str
    phrase_scope: str
    top_rows: int
    state_layers: _containers.RepeatedScalarFieldContainer[int]
    score_from: int
    priority: int
    num_candidates: int
    pacing: str
    def __init__(self, handle: _Optional[int] = ..., opening: _Optional[int] = ..., session_id: _Optional[str] = ..., term: _Optional[int] = ..., prompt: _Optional[_Iterable[int]] = ..., output: _Optional[_Iterable[int]] = ..., limit: _Optional[int] = ..., mode: _Optional[_Union[_types_pb2.VerifyMode, str]] = ..., sampling: _Optional[_Union[_types_pb2.ResolvedSampling, _Mapping]] = ..., seed: _Optional[int] = ..., window: _Optional[int] = ..., depth: _Optional[int] = ..., method: _Optional[str] = ..., first_drafts: _Optional[int] = ..., drafted_for: _Optional[bool] = ..., traceparent: _Optional[str] = ..., cache_scope: _Optional[str] = ..., fork_scope: _Optional[str] = ..., phrase_scope: _Optional[str] = ..., top_rows: _Optional[int] = ..., state_layers: _Optional[_Iterable[int]] = ..., score_from: _Optional[int] = ..., priority: _Optional[int] = ..., num_candidates: _Optional[int] = ..., pacing: _Optional[str] = ...) -> None: ...

class SetWindow(_message.Message):
    __slots__ = ("handle", "window")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    handle: int
    window: int
    def __init__(self, handle: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...

class SetDraftedFor(_message.Message):
    __slots__ = ("handle", "drafted_for")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FOR_FIELD_NUMBER: _ClassVar[int]
    handle: int
    drafted_for: bool
    def __init__(self, handle: _Optional[int] = ..., drafted_for: _Optional[bool] = ...) -> None: ...

class VerifierServiceLinkResponse(_message.Message):
    __slots__ = ("steps", "events")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[_session_pb2.StepFrame]
    events: _containers.RepeatedCompositeFieldContainer[VerifierEvent]
    def __init__(self, steps: _Optional[_Iterable[_Union[_session_pb2.StepFrame, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[VerifierEvent, _Mapping]]] = ...) -> None: ...

class VerifierEvent(_message.Message):
    __slots__ = ("started", "gone", "progress", "draining", "states", "scores", "waiting")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    started: _session_pb2.SessionStarted
    gone: _session_pb2.SessionGone
    progress: _types_pb2.Progress
    draining: _types_pb2.Draining
    states: _session_pb2.TextStates
    scores: PromptScores
    waiting: Waiting
    def __init__(self, started: _Optional[_Union[_session_pb2.SessionStarted, _Mapping]] = ..., gone: _Optional[_Union[_session_pb2.SessionGone, _Mapping]] = ..., progress: _Optional[_Union[_types_pb2.Progress, _Mapping]] = ..., draining: _Optional[_Union[_types_pb2.Draining, _Mapping]] = ..., states: _Optional[_Union[_session_pb2.TextStates, _Mapping]] = ..., scores: _Optional[_Union[PromptScores, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("handles", "reasons")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    reasons: bytes
    def __init__(self, handles: _Optional[bytes] = ..., reasons: _Optional[bytes] = ...) -> None: ...

class PromptScores(_message.Message):
    __slots__ = ("handle", "opening", "position", "rows")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    opening: int
    position: int
    rows: _containers.RepeatedCompositeFieldContainer[_session_pb2.LogprobRow]
    def __init__(self, handle: _Optional[int] = ..., opening: _Optional[int] = ..., position: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[_session_pb2.LogprobRow, _Mapping]]] = ...) -> None: ...
