from paceline.v1 import types_pb2 as _types_pb2
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
    __slots__ = ("worker", "step_times")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    worker: _types_pb2.WorkerDescription
    step_times: _containers.RepeatedCompositeFieldContainer[StepTime]
    def __init__(self, worker: _Optional[_Union[_types_pb2.WorkerDescription, _Mapping]] = ..., step_times: _Optional[_Iterable[_Union[StepTime, _Mapping]]] = ...) -> None: ...

class StepTime(_message.Message):
    __slots__ = ("rows", "ms")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    ms: float
    def __init__(self, rows: _Optional[int] = ..., ms: _Optional[float] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("part",)
    PART_FIELD_NUMBER: _ClassVar[int]
    part: bytes
    def __init__(self, part: _Optional[bytes] = ...) -> None: ...

class VerifierServiceLinkRequest(_message.Message):
    __slots__ = ("hello", "commands")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    hello: _types_pb2.LinkHello
    commands: _containers.RepeatedCompositeFieldContainer[VerifierCommand]
    def __init__(self, hello: _Optional[_Union[_types_pb2.LinkHello, _Mapping]] = ..., commands: _Optional[_Iterable[_Union[VerifierCommand, _Mapping]]] = ...) -> None: ...

class VerifierCommand(_message.Message):
    __slots__ = ("open", "verify", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: OpenVerify
    verify: Verify
    close: CloseVerify
    def __init__(self, open: _Optional[_Union[OpenVerify, _Mapping]] = ..., verify: _Optional[_Union[Verify, _Mapping]] = ..., close: _Optional[_Union[CloseVerify, _Mapping]] = ...) -> None: ...

class OpenVerify(_message.Message):
    __slots__ = ("session_id", "term", "epoch", "prompt", "committed", "mode", "sampling", "seed", "window", "traceparent", "cache_scope", "top_rows", "state_layers", "score_from", "fork_scope", "priority")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    TOP_ROWS_FIELD_NUMBER: _ClassVar[int]
    STATE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FROM_FIELD_NUMBER: _ClassVar[int]
    FORK_SCOPE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    term: int
    epoch: int
    prompt: _containers.RepeatedScalarFieldContainer[int]
    committed: _containers.RepeatedScalarFieldContainer[int]
    mode: _types_pb2.VerifyMode
    sampling: _types_pb2.ResolvedSampling
    seed: int
    window: int
    traceparent: str
    cache_scope: str
    top_rows: int
    state_layers: _containers.RepeatedScalarFieldContainer[int]
    score_from: int
    fork_scope: str
    priority: int
    def __init__(self, session_id: _Optional[str] = ..., term: _Optional[int] = ..., epoch: _Optional[int] = ..., prompt: _Optional[_Iterable[int]] = ..., committed: _Optional[_Iterable[int]] = ..., mode: _Optional[_Union[_types_pb2.VerifyMode, str]] = ..., sampling: _Optional[_Union[_types_pb2.ResolvedSampling, _Mapping]] = ..., seed: _Optional[int] = ..., window: _Optional[int] = ..., traceparent: _Optional[str] = ..., cache_scope: _Optional[str] = ..., top_rows: _Optional[int] = ..., state_layers: _Optional[_Iterable[int]] = ..., score_from: _Optional[int] = ..., fork_scope: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class Verify(_message.Message):
    __slots__ = ("session_id", "epoch", "round", "extends_round", "base_len", "tree", "want_bonus", "traceparent", "allowance")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EXTENDS_ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    WANT_BONUS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    ALLOWANCE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    round: int
    extends_round: int
    base_len: int
    tree: _types_pb2.DraftTree
    want_bonus: bool
    traceparent: str
    allowance: Allowance
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., extends_round: _Optional[int] = ..., base_len: _Optional[int] = ..., tree: _Optional[_Union[_types_pb2.DraftTree, _Mapping]] = ..., want_bonus: _Optional[bool] = ..., traceparent: _Optional[str] = ..., allowance: _Optional[_Union[Allowance, _Mapping]] = ...) -> None: ...

class Allowance(_message.Message):
    __slots__ = ("prices", "factors")
    PRICES_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    prices: _containers.RepeatedScalarFieldContainer[float]
    factors: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, prices: _Optional[_Iterable[float]] = ..., factors: _Optional[_Iterable[float]] = ...) -> None: ...

class TakenDraft(_message.Message):
    __slots__ = ("tree", "reach", "sources", "draft_ms")
    TREE_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MS_FIELD_NUMBER: _ClassVar[int]
    tree: _types_pb2.DraftTree
    reach: _containers.RepeatedScalarFieldContainer[float]
    sources: bytes
    draft_ms: float
    def __init__(self, tree: _Optional[_Union[_types_pb2.DraftTree, _Mapping]] = ..., reach: _Optional[_Iterable[float]] = ..., sources: _Optional[bytes] = ..., draft_ms: _Optional[float] = ...) -> None: ...

class CloseVerify(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class VerifierServiceLinkResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[VerifierEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[VerifierEvent, _Mapping]]] = ...) -> None: ...

class VerifierEvent(_message.Message):
    __slots__ = ("opened", "verdict", "progress", "draining", "failed", "states", "scores")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    opened: VerifyOpened
    verdict: Verdict
    progress: _types_pb2.Progress
    draining: _types_pb2.Draining
    failed: _types_pb2.SessionFailed
    states: States
    scores: PromptScores
    def __init__(self, opened: _Optional[_Union[VerifyOpened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., progress: _Optional[_Union[_types_pb2.Progress, _Mapping]] = ..., draining: _Optional[_Union[_types_pb2.Draining, _Mapping]] = ..., failed: _Optional[_Union[_types_pb2.SessionFailed, _Mapping]] = ..., states: _Optional[_Union[States, _Mapping]] = ..., scores: _Optional[_Union[PromptScores, _Mapping]] = ...) -> None: ...

class PromptScores(_message.Message):
    __slots__ = ("session_id", "epoch", "position", "rows")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    position: int
    rows: _containers.RepeatedCompositeFieldContainer[LogprobRow]
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[LogprobRow, _Mapping]]] = ...) -> None: ...

class States(_message.Message):
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

class VerifyOpened(_message.Message):
    __slots__ = ("session_id", "epoch", "cached_tokens", "prefill_ms")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    cached_tokens: int
    prefill_ms: float
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., prefill_ms: _Optional[float] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("session_id", "epoch", "round", "base_len", "token_ids", "accepted", "all_accepted", "discarded", "accepted_nodes", "logprobs", "queue_ms", "verify_ms", "batch_size", "mode", "bad_q_rows", "draft_tokens", "batch_rows", "top_rows", "taken", "states", "near_ties")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ALL_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_NODES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_MS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    BAD_Q_ROWS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    TOP_ROWS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    NEAR_TIES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    round: int
    base_len: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    accepted: int
    all_accepted: bool
    discarded: bool
    accepted_nodes: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[LogprobRow]
    queue_ms: float
    verify_ms: float
    batch_size: int
    mode: _types_pb2.VerifyMode
    bad_q_rows: int
    draft_tokens: int
    batch_rows: int
    top_rows: bytes
    taken: TakenDraft
    states: bytes
    near_ties: int
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., base_len: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., accepted: _Optional[int] = ..., all_accepted: _Optional[bool] = ..., discarded: _Optional[bool] = ..., accepted_nodes: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[LogprobRow, _Mapping]]] = ..., queue_ms: _Optional[float] = ..., verify_ms: _Optional[float] = ..., batch_size: _Optional[int] = ..., mode: _Optional[_Union[_types_pb2.VerifyMode, str]] = ..., bad_q_rows: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., batch_rows: _Optional[int] = ..., top_rows: _Optional[bytes] = ..., taken: _Optional[_Union[TakenDraft, _Mapping]] = ..., states: _Optional[bytes] = ..., near_ties: _Optional[int] = ...) -> None: ...

class LogprobRow(_message.Message):
    __slots__ = ("logprob", "top_token_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: bytes
    def __init__(self, logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[bytes] = ...) -> None: ...
