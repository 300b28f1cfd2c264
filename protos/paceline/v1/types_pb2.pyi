from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERIFY_MODE_UNSPECIFIED: _ClassVar[VerifyMode]
    VERIFY_MODE_GREEDY: _ClassVar[VerifyMode]
    VERIFY_MODE_COUPLED: _ClassVar[VerifyMode]
    VERIFY_MODE_STANDARD: _ClassVar[VerifyMode]
    VERIFY_MODE_BLOCK: _ClassVar[VerifyMode]

class FailureReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_REASON_UNSPECIFIED: _ClassVar[FailureReason]
    FAILURE_REASON_CAPACITY: _ClassVar[FailureReason]
    FAILURE_REASON_UNKNOWN_SESSION: _ClassVar[FailureReason]
    FAILURE_REASON_INVALID: _ClassVar[FailureReason]
    FAILURE_REASON_UNSUPPORTED: _ClassVar[FailureReason]
    FAILURE_REASON_INTERNAL: _ClassVar[FailureReason]
    FAILURE_REASON_FORMAT: _ClassVar[FailureReason]
    FAILURE_REASON_NOTHING_ALLOWED: _ClassVar[FailureReason]
    FAILURE_REASON_FORMAT_COST: _ClassVar[FailureReason]
VERIFY_MODE_UNSPECIFIED: VerifyMode
VERIFY_MODE_GREEDY: VerifyMode
VERIFY_MODE_COUPLED: VerifyMode
VERIFY_MODE_STANDARD: VerifyMode
VERIFY_MODE_BLOCK: VerifyMode
FAILURE_REASON_UNSPECIFIED: FailureReason
FAILURE_REASON_CAPACITY: FailureReason
FAILURE_REASON_UNKNOWN_SESSION: FailureReason
FAILURE_REASON_INVALID: FailureReason
FAILURE_REASON_UNSUPPORTED: FailureReason
FAILURE_REASON_INTERNAL: FailureReason
FAILURE_REASON_FORMAT: FailureReason
FAILURE_REASON_NOTHING_ALLOWED: FailureReason
FAILURE_REASON_FORMAT_COST: FailureReason

class ResolvedSampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "max_tokens", "min_tokens", "stop_token_ids", "logit_bias", "logprobs", "response_format", "allowed_token_ids", "bad_words", "prompt_logprobs")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    max_tokens: int
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logit_bias: _containers.ScalarMap[int, float]
    logprobs: int
    response_format: ResponseFormat
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    prompt_logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., logprobs: _Optional[int] = ..., response_format: _Optional[_Union[ResponseFormat, _Mapping]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., prompt_logprobs: _Optional[int] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ResponseFormat(_message.Message):
    __slots__ = ("json_schema", "regex", "choice", "grammar", "structural_tag", "start")
    class Options(_message.Message):
        __slots__ = ("options",)
        OPTIONS_FIELD_NUMBER: _ClassVar[int]
        options: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, options: _Optional[_Iterable[str]] = ...) -> None: ...
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    choice: ResponseFormat.Options
    grammar: str
    structural_tag: str
    start: FormatMarker
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., choice: _Optional[_Union[ResponseFormat.Options, _Mapping]] = ..., grammar: _Optional[str] = ..., structural_tag: _Optional[str] = ..., start: _Optional[_Union[FormatMarker, _Mapping]] = ...) -> None: ...

class FormatMarker(_message.Message):
    __slots__ = ("text", "token_ids")
    class Ids(_message.Message):
        __slots__ = ("ids",)
        IDS_FIELD_NUMBER: _ClassVar[int]
        ids: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: FormatMarker.Ids
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[FormatMarker.Ids, _Mapping]] = ...) -> None: ...

class WorkerDescription(_message.Message):
    __slots__ = ("worker_id", "role", "model", "model_fingerprint", "tokenizer_fingerprint", "vocab_size", "max_context_length", "methods", "kv_capacity_tokens", "protocol_min", "protocol_max", "version", "capabilities", "dtype", "state_layers", "state_width", "hidden_width", "hidden_layers")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    STATE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_WIDTH_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_LAYERS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    role: str
    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    max_context_length: int
    methods: _containers.RepeatedScalarFieldContainer[str]
    kv_capacity_tokens: int
    protocol_min: int
    protocol_max: int
    version: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    dtype: str
    state_layers: _containers.RepeatedScalarFieldContainer[int]
    state_width: int
    hidden_width: int
    hidden_layers: int
    def __init__(self, worker_id: _Optional[str] = ..., role: _Optional[str] = ..., model: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., tokenizer_fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_context_length: _Optional[int] = ..., methods: _Optional[_Iterable[str]] = ..., kv_capacity_tokens: _Optional[int] = ..., protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., version: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., dtype: _Optional[str] = ..., state_layers: _Optional[_Iterable[int]] = ..., state_width: _Optional[int] = ..., hidden_width: _Optional[int] = ..., hidden_layers: _Optional[int] = ...) -> None: ...

class LinkHello(_message.Message):
    __slots__ = ("orchestrator_id", "protocol")
    ORCHESTRATOR_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    orchestrator_id: str
    protocol: int
    def __init__(self, orchestrator_id: _Optional[str] = ..., protocol: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("steps", "sessions", "queued_tokens", "kv_tokens_used", "kv_tokens_capacity", "step_ms", "kv_tokens_spare", "oldest_command_ms", "turn_ms", "recalled_tokens", "links", "copied_tokens")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_USED_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_SPARE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_COMMAND_MS_FIELD_NUMBER: _ClassVar[int]
    TURN_MS_FIELD_NUMBER: _ClassVar[int]
    RECALLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    COPIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    sessions: int
    queued_tokens: int
    kv_tokens_used: int
    kv_tokens_capacity: int
    step_ms: float
    kv_tokens_spare: int
    oldest_command_ms: float
    turn_ms: float
    recalled_tokens: int
    links: int
    copied_tokens: int
    def __init__(self, steps: _Optional[int] = ..., sessions: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., kv_tokens_used: _Optional[int] = ..., kv_tokens_capacity: _Optional[int] = ..., step_ms: _Optional[float] = ..., kv_tokens_spare: _Optional[int] = ..., oldest_command_ms: _Optional[float] = ..., turn_ms: _Optional[float] = ..., recalled_tokens: _Optional[int] = ..., links: _Optional[int] = ..., copied_tokens: _Optional[int] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("deadline_ms",)
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    deadline_ms: int
    def __init__(self, deadline_ms: _Optional[int] = ...) -> None: ...

class TokenizerBundle(_message.Message):
    __slots__ = ("fingerprint", "tokenizer_json", "chat_template", "generation_config_json", "eos_token_ids", "bos_token", "eos_token", "special_tokens", "chat_templates")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_JSON_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    tokenizer_json: str
    chat_template: str
    generation_config_json: str
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_token: str
    eos_token: str
    special_tokens: _containers.RepeatedCompositeFieldContainer[NamedText]
    chat_templates: _containers.RepeatedCompositeFieldContainer[NamedText]
    def __init__(self, fingerprint: _Optional[str] = ..., tokenizer_json: _Optional[str] = ..., chat_template: _Optional[str] = ..., generation_config_json: _Optional[str] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., bos_token: _Optional[str] = ..., eos_token: _Optional[str] = ..., special_tokens: _Optional[_Iterable[_Union[NamedText, _Mapping]]] = ..., chat_templates: _Optional[_Iterable[_Union[NamedText, _Mapping]]] = ...) -> None: ...

class NamedText(_message.Message):
    __slots__ = ("name", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...
