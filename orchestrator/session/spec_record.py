"""A SessionSpec as stored bytes, so that another orchestrator goes on with the same values."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from itertools import chain
from typing import Any

from paceline.together import MOST_COMPLETIONS

from orchestrator.session.ranges import (
    BIAS,
    MAX_CANDIDATES,
    MAX_SPECULATIVE_TOKENS,
    MAX_STOP_LENGTH,
    PRIORITY,
)
from orchestrator.session.spec import SessionSpec
from services.contract.errors import DataLoss, StoreError
from services.contract.format_markers import marker_problem
from services.contract.sampling import NUMBERS, Number, Range
from services.contract.sampling_checks import (
    MAX_ALLOWED_IDS,
    MAX_BAD_SEQUENCES,
    MAX_BAD_TOKENS,
    MAX_LOGPROBS,
)
from services.contract.types import (
    FormatKind,
    FormatMarker,
    ResolvedSampling,
    ResponseFormat,
    VerifyMode,
)
from services.grammar.formats import size_problem

VERSION = 1
WITH_FORMAT = 2
"""A record with a response format, which the first version does not support."""
WITH_MORE_NUMBERS = 3
"""A record with a sampling parameter that neither of them knows."""
WITH_COMPLETIONS = 4
"""A record of one of several completions."""
WITH_MORE_FIELDS = 5
"""A record with a field of its own that none of them knows."""
WITH_LATER_FORMATS = 6
"""A record with a format of a kind, or with a start, that none of them knows."""
FIRST_SAMPLING = ("allowed_token_ids", "bad_words")
"""Of the third version, where they are not empty."""
FIRST_NUMBERS = frozenset(
    (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
    )
)
"""Those that every version writes; of others, those that are not neutral."""


def dump_spec(spec: SessionSpec) -> bytes:
    """A spec without its prompt, which is stored beside it."""
    # asdict would copy the prompt id by id.
    values = asdict(replace(spec, prompt=()))
    version = VERSION
    if spec.sampling.response_format is None:
        del values["sampling"]["response_format"]
    else:
        version = WITH_FORMAT
        if spec.sampling.response_format.start is None:
            del values["sampling"]["response_format"]["start"]
    newer: dict[str, object] = {"prompt_logprobs": None, **dict.fromkeys(FIRST_SAMPLING, ())}
    newer |= {name: NUMBERS[name].neutral for name in NUMBERS.keys() - FIRST_NUMBERS}
    for name, nothing in newer.items():
        if values["sampling"][name] == nothing:
            del values["sampling"][name]
        else:
            version = WITH_MORE_NUMBERS
    if spec.n == 1:
        del values["n"], values["index"]
    else:
        version = WITH_COMPLETIONS
    if spec.priority:
        version = WITH_MORE_FIELDS
    else:
        del values["priority"]
    if spec.sampling.response_format and len(spec.sampling.response_format.capabilities) > 1:
        version = WITH_LATER_FORMATS
    values |= {"mode": spec.mode.name, "version": version}
    del values["prompt"]
    if not spec.chains:
        # As before there were any: an orchestrator of the last version reads it, too.
        del values["chains"]
    return json.dumps(values, separators=(",", ":")).encode()


def load_spec(record: bytes, prompt: tuple[int, ...]) -> SessionSpec:
    """The spec that `dump_spec` wrote.

    Raises DataLoss for a record that it cannot have written, StoreError for one that a
    newer version wrote. Neither quotes it: it may hold a client's words.
    """
    try:
        values = json.loads(record)
        version = values.pop("version")
        newer = _is_newer(version, values)
        if not newer and version in range(VERSION, WITH_LATER_FORMATS + 1):
            values["sampling"] = _load_sampling(values["sampling"])
            values["mode"] = VerifyMode[values["mode"]]
            values |= {"stop": tuple(values["stop"]), "method": tuple(values["method"])}
            spec = SessionSpec(prompt=prompt, **values)
            if _sound(spec) and _sound_sampling(spec.sampling):
                return spec
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        kind = type(error).__name__
        raise DataLoss(f"the stored session cannot be read ({kind})") from error
    if newer:
        raise StoreError("the session was stored by a newer version")
    raise DataLoss("the stored session holds what no request can ask for")


def _is_newer(version: object, values: dict[str, Any]) -> bool:
    """Whether this version knows less than the one that wrote a record."""
    if version not in range(WITH_MORE_NUMBERS, WITH_LATER_FORMATS + 1):
        return isinstance(version, int) and version > WITH_LATER_FORMATS
    sampling = {one.name for one in fields(ResolvedSampling)}
    own = {one.name for one in fields(SessionSpec)}
    more = version in (WITH_MORE_FIELDS, WITH_LATER_FORMATS) and not values.keys() <= own
    return more or not values["sampling"].keys() <= sampling


def _load_sampling(values: dict[str, Any]) -> ResolvedSampling:
    biases = tuple((token, bias) for token, bias in values["logit_bias"])
    ids = tuple(values["stop_token_ids"])
    form = values.get("response_format")
    if form is not None:
        form = ResponseFormat(
            FormatKind(form["kind"]), tuple(form["source"]), _load_start(form.get("start"))
        )
    fields = {"logit_bias": biases, "stop_token_ids": ids, "response_format": form}
    fields["allowed_token_ids"] = tuple(values.get("allowed_token_ids", ()))
    fields["bad_words"] = tuple(tuple(word) for word in values.get("bad_words", ()))
    return ResolvedSampling(**values | fields)


def _load_start(values: dict[str, Any] | None) -> FormatMarker | None:
    if values is None:
        return None
    return FormatMarker(values["text"], tuple(values["token_ids"]))


def _sound(spec: SessionSpec) -> bool:
    """Whether every value is of its type and within what a request may ask for."""
    flags = (
        spec.include_stop_str,
        spec.skip_special_tokens,
        spec.include_rounds,
        spec.ephemeral,
        spec.disable_speculation,
        spec.chains,
    )
    texts = (spec.session, spec.model, spec.digest, *spec.stop, *spec.method)
    return (
        all(isinstance(flag, bool) for flag in flags)
        and all(isinstance(text, str) for text in texts)
        and all(0 < len(stop) <= MAX_STOP_LENGTH for stop in spec.stop)
        and _count(spec.seed, 2**64)
        and (spec.window_cap is None or _count(spec.window_cap, MAX_SPECULATIVE_TOKENS + 1))
        and _count(spec.num_candidates, MAX_CANDIDATES + 1, least=1)
        and _count(spec.n, MOST_COMPLETIONS + 1, least=1)
        and _count(spec.index, spec.n)
        and _number(spec.priority, PRIORITY)
        and isinstance(spec.priority, int)
    )


def _sound_sampling(sampling: ResolvedSampling) -> bool:
    return (
        all(_sound_number(getattr(sampling, name), one) for name, one in NUMBERS.items())
        and all(_count(token, 2**32) for token in sampling.stop_token_ids)
        and _sound_limits(sampling)
        and all(_count(token, 2**32) and _number(bias, BIAS) for token, bias in sampling.logit_bias)
        and _count(sampling.max_tokens, 2**31, least=1)
        and _count(sampling.min_tokens, sampling.max_tokens + 1)
        and (sampling.logprobs is None or _count(sampling.logprobs, MAX_LOGPROBS + 1))
        and (sampling.prompt_logprobs is None or _count(sampling.prompt_logprobs, MAX_LOGPROBS + 1))
        and (sampling.response_format is None or _sound_format(sampling.response_format))
    )


def _sound_limits(sampling: ResolvedSampling) -> bool:
    tokens = chain(sampling.allowed_token_ids, *sampling.bad_words)
    few = len(sampling.allowed_token_ids) <= MAX_ALLOWED_IDS
    return (
        few
        and len(sampling.bad_words) <= MAX_BAD_SEQUENCES
        and all(1 <= len(word) <= MAX_BAD_TOKENS for word in sampling.bad_words)
        and all(_count(token, 2**32) for token in tokens)
    )


def _sound_format(wanted: ResponseFormat) -> bool:
    """Texts of the sizes that a request may have; the verifier compiles them anyway."""
    texts = all(isinstance(text, str) for text in wanted.source)
    single = wanted.kind is FormatKind.CHOICE or len(wanted.source) == 1
    return texts and single and not size_problem(wanted) and _sound_start(wanted.start)


def _sound_start(start: FormatMarker | None) -> bool:
    if start is None:
        return True
    known = all(_count(token, 2**32) for token in start.token_ids)
    return isinstance(start.text, str) and known and not marker_problem(start)


def _sound_number(value: object, one: Number) -> bool:
    return _number(value, one.allowed) and (one.kind is float or isinstance(value, int))


def _count(value: object, limit: int, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < limit


def _number(value: object, allowed: Range) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and allowed.holds(value)
