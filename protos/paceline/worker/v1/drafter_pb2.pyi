from paceline.v1 import types_pb2 as _types_pb2
from paceline.worker.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrafterServiceDescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrafterServiceDescribeResponse(_message.Message):
    __slots__ = ("worker", "progress")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    worker: _types_pb2.WorkerDescription
    progress: _types_pb2.Progress
    def __init__(self, worker: _Optional[_Union[_types_pb2.WorkerDescription, _Mapping]] = ..., progress: _Optional[_Union[_types_pb2.Progress, _Mapping]] = ...) -> None: ...

class DrafterServiceLinkRequest(_message.Message):
    __slots__ = ("hello", "commands", "steps")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    hello: _types_pb2.LinkHello
    commands: _containers.RepeatedCompositeFieldContainer[DrafterCommand]
    steps: _containers.RepeatedCompositeFieldContainer[_session_pb2.StepFrame]
    def __init__(self, hello: _Optional[_Union[_types_pb2.LinkHello, _Mapping]] = ..., commands: _Optional[_Iterable[_Union[DrafterCommand, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[_session_pb2.StepFrame, _Mapping]]] = ...) -> None: ...

class DrafterCommand(_message.Message):
    __slots__ = ("start", "end", "window", "states")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    start: StartDraft
    end: _session_pb2.EndSession
    window: SetDraftWindow
    states: _session_pb2.TextStates
    def __init__(self, start: _Optional[_Union[StartDraft, _Mapping]] = ..., end: _Optional[_Union[_session_pb2.EndSession, _Mapping]] = ..., window: _Optional[_Union[SetDraftWindow, _Mapping]] = ..., states: _Optional[_Union[_session_pb2.TextStates, _Mapping]] = ...) -> None: ...

class StartDraft(_message.Message):
    __slots__ = ("handle", "opening", "session_id", "term", "prompt", "output", "mode", "sampling", "seed", "window", "num_candidates", "method", "traceparent", "options", "vocab_size", "phrase_scope", "top_rows", "fork_scope", "synchronous")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    NUM_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    PHRASE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    TOP_ROWS_FIELD_NUMBER: _ClassVar[int]
    FORK_SCOPE_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONOUS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    opening: int
    session_id: str
    term: int
    prompt: _containers.RepeatedScalarFieldContainer[int]
    output: _containers.RepeatedScalarFieldContainer[int]
    mode: _types_pb2.VerifyMode
    sampling: _types_pb2.ResolvedSampling
    seed: int
    window: int
    num_candidates: int
    method: str
    traceparent: str
    options: bytes
    vocab_size: int
    phrase_scope: str
    top_rows: int
    fork_scope: str
    synchronous: bool
    def __init__(self, handle: _Optional[int] = ..., opening: _Optional[int] = ..., session_id: _Optional[str] = ..., term: _Optional[int] = ..., prompt: _Optional[_Iterable[int]] = ..., output: _Optional[_Iterable[int]] = ..., mode: _Optional[_Union[_types_pb2.VerifyMode, str]] = ..., sampling: _Optional[_Union[_types_pb2.ResolvedSampling, _Mapping]] = ..., seed: _Optional[int] = ..., window: _Optional[int] = ..., num_candidates: _Optional[int] = ..., method: _Optional[str] = ..., traceparent: _Optional[str] = ..., options: _Optional[bytes] = ..., vocab_size: _Optional[int] = ..., phrase_scope: _Optional[str] = ..., top_rows: _Optional[int] = ..., fork_scope: _Optional[str] = ..., synchronous: _Optional[bool] = ...) -> None: ...

class SetDraftWindow(_message.Message):
    __slots__ = ("handle", "window")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    handle: int
    window: int
    def __init__(self, handle: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...

class DrafterServiceLinkResponse(_message.Message):
    __slots__ = ("events", "drafts")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[DrafterEvent]
    drafts: _containers.RepeatedCompositeFieldContainer[_session_pb2.DraftFrame]
    def __init__(self, events: _Optional[_Iterable[_Union[DrafterEvent, _Mapping]]] = ..., drafts: _Optional[_Iterable[_Union[_session_pb2.DraftFrame, _Mapping]]] = ...) -> None: ...

class DrafterEvent(_message.Message):
    __slots__ = ("started", "gone", "progress", "draining")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    started: _session_pb2.SessionStarted
    gone: _session_pb2.SessionGone
    progress: _types_pb2.Progress
    draining: _types_pb2.Draining
    def __init__(self, started: _Optional[_Union[_session_pb2.SessionStarted, _Mapping]] = ..., gone: _Optional[_Union[_session_pb2.SessionGone, _Mapping]] = ..., progress: _Optional[_Union[_types_pb2.Progress, _Mapping]] = ..., draining: _Optional[_Union[_types_pb2.Draining, _Mapping]] = ...) -> None: ...
