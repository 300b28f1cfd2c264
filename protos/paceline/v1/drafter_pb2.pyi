from paceline.v1 import types_pb2 as _types_pb2
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
    __slots__ = ("hello", "commands")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    hello: _types_pb2.LinkHello
    commands: _containers.RepeatedCompositeFieldContainer[DrafterCommand]
    def __init__(self, hello: _Optional[_Union[_types_pb2.LinkHello, _Mapping]] = ..., commands: _Optional[_Iterable[_Union[DrafterCommand, _Mapping]]] = ...) -> None: ...

class DrafterCommand(_message.Message):
    __slots__ = ("open", "commit", "close", "credit", "states")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    open: OpenDraft
    commit: CommitDraft
    close: CloseDraft
    credit: Credit
    states: DraftStates
    def __init__(self, open: _Optional[_Union[OpenDraft, _Mapping]] = ..., commit: _Optional[_Union[CommitDraft, _Mapping]] = ..., close: _Optional[_Union[CloseDraft, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., states: _Optional[_Union[DraftStates, _Mapping]] = ...) -> None: ...

class OpenDraft(_message.Message):
    __slots__ = ("session_id", "epoch", "prompt", "committed", "mode", "sampling", "seed", "window", "num_candidates", "drafter_index", "method", "traceparent", "options", "vocab_size", "phrase_scope", "synchronous", "top_rows", "fork_scope")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    NUM_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_INDEX_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    PHRASE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    SYNCHRONOUS_FIELD_NUMBER: _ClassVar[int]
    TOP_ROWS_FIELD_NUMBER: _ClassVar[int]
    FORK_SCOPE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    prompt: _containers.RepeatedScalarFieldContainer[int]
    committed: _containers.RepeatedScalarFieldContainer[int]
    mode: _types_pb2.VerifyMode
    sampling: _types_pb2.ResolvedSampling
    seed: int
    window: int
    num_candidates: int
    drafter_index: int
    method: str
    traceparent: str
    options: bytes
    vocab_size: int
    phrase_scope: str
    synchronous: bool
    top_rows: int
    fork_scope: str
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., prompt: _Optional[_Iterable[int]] = ..., committed: _Optional[_Iterable[int]] = ..., mode: _Optional[_Union[_types_pb2.VerifyMode, str]] = ..., sampling: _Optional[_Union[_types_pb2.ResolvedSampling, _Mapping]] = ..., seed: _Optional[int] = ..., window: _Optional[int] = ..., num_candidates: _Optional[int] = ..., drafter_index: _Optional[int] = ..., method: _Optional[str] = ..., traceparent: _Optional[str] = ..., options: _Optional[bytes] = ..., vocab_size: _Optional[int] = ..., phrase_scope: _Optional[str] = ..., synchronous: _Optional[bool] = ..., top_rows: _Optional[int] = ..., fork_scope: _Optional[str] = ...) -> None: ...

class CommitDraft(_message.Message):
    __slots__ = ("session_id", "epoch", "base_len", "token_ids", "top_rows", "states")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_ROWS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    base_len: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_rows: bytes
    states: bytes
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., base_len: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., top_rows: _Optional[bytes] = ..., states: _Optional[bytes] = ...) -> None: ...

class DraftStates(_message.Message):
    __slots__ = ("session_id", "epoch", "position", "states")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    position: int
    states: bytes
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., states: _Optional[bytes] = ...) -> None: ...

class CloseDraft(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("session_id", "window")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    window: int
    def __init__(self, session_id: _Optional[str] = ..., window: _Optional[int] = ...) -> None: ...

class DrafterServiceLinkResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[DrafterEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[DrafterEvent, _Mapping]]] = ...) -> None: ...

class DrafterEvent(_message.Message):
    __slots__ = ("opened", "draft", "progress", "draining", "failed")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    opened: DraftOpened
    draft: Draft
    progress: _types_pb2.Progress
    draining: _types_pb2.Draining
    failed: _types_pb2.SessionFailed
    def __init__(self, opened: _Optional[_Union[DraftOpened, _Mapping]] = ..., draft: _Optional[_Union[Draft, _Mapping]] = ..., progress: _Optional[_Union[_types_pb2.Progress, _Mapping]] = ..., draining: _Optional[_Union[_types_pb2.Draining, _Mapping]] = ..., failed: _Optional[_Union[_types_pb2.SessionFailed, _Mapping]] = ...) -> None: ...

class DraftOpened(_message.Message):
    __slots__ = ("session_id", "epoch")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("session_id", "epoch", "base_committed_len", "first_position", "prefix_hash", "tree", "final", "draft_ms", "reach", "sources")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MS_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    base_committed_len: int
    first_position: int
    prefix_hash: int
    tree: _types_pb2.DraftTree
    final: bool
    draft_ms: float
    reach: _containers.RepeatedScalarFieldContainer[float]
    sources: bytes
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., base_committed_len: _Optional[int] = ..., first_position: _Optional[int] = ..., prefix_hash: _Optional[int] = ..., tree: _Optional[_Union[_types_pb2.DraftTree, _Mapping]] = ..., final: _Optional[bool] = ..., draft_ms: _Optional[float] = ..., reach: _Optional[_Iterable[float]] = ..., sources: _Optional[bytes] = ...) -> None: ...
