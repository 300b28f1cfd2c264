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
from services.contract.sampling import NUMBERS
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
from services.runtime.record_types import checked

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
    for name in ("priority", "open_ended"):
        if values[name]:
            version = WITH_MORE_FIELDS
        else:
            del values[name]
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
            # The prompt is no part of the record; to look at each of its ids takes long.
            spec = checked(SessionSpec, values | {"prompt": ()})
            if _sound(spec) and _sound_sampling(spec.sampling):
                return replace(spec, prompt=prompt)
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
        kind, source, start = form["kind"], tuple(form["source"]), _load_start(form.get("start"))
        form = checked(ResponseFormat, {"kind": FormatKind(kind), "source": source, "start": start})
    fields = {"logit_bias": biases, "stop_token_ids": ids, "response_format": form}
    fields["allowed_token_ids"] = tuple(values.get("allowed_token_ids", ()))
    fields["bad_words"] = tuple(tuple(word) for word in values.get("bad_words", ()))
    return checked(ResolvedSampling, values | fields)


def _load_start(values: dict[str, Any] | None) -> FormatMarker | None:
    if values is None:
        return None
    ids = tuple(values["token_ids"])
    return checked(FormatMarker, {"text": values["text"], "token_ids": ids})


def _sound(spec: SessionSpec) -> bool:
    """Whether every value is within what a request may ask for."""
    return (
        all(0 < len(stop) <= MAX_STOP_LENGTH for stop in spec.stop)
        and 0 <= spec.seed < 2**64
        and 0 <= (spec.window_cap or 0) <= MAX_SPECULATIVE_TOKENS
        and 1 <= spec.num_candidates <= MAX_CANDIDATES
        and 0 <= spec.index < spec.n <= MOST_COMPLETIONS
        and PRIORITY.holds(spec.priority)
    )


def _sound_sampling(sampling: ResolvedSampling) -> bool:
    biased = [token for token, _ in sampling.logit_bias]
    limits = sampling.allowed_token_ids, *sampling.bad_words
    return (
        all(one.allowed.holds(getattr(sampling, name)) for name, one in NUMBERS.items())
        and _ids(*sampling.stop_token_ids, *biased, *chain(*limits))
        and all(BIAS.holds(bias) for _, bias in sampling.logit_bias)
        and len(sampling.allowed_token_ids) <= MAX_ALLOWED_IDS
        and len(sampling.bad_words) <= MAX_BAD_SEQUENCES
        and all(1 <= len(word) <= MAX_BAD_TOKENS for word in sampling.bad_words)
        and 1 <= sampling.max_tokens < 2**31
        and 0 <= sampling.min_tokens <= sampling.max_tokens
        and 0 <= (sampling.logprobs or 0) <= MAX_LOGPROBS
        and 0 <= (sampling.prompt_logprobs or 0) <= MAX_LOGPROBS
        and (sampling.response_format is None or _sound_format(sampling.response_format))
    )


def _sound_format(wanted: ResponseFormat) -> bool:
    """Of a size that a request may have; the verifier compiles it anyway."""
    start = wanted.start
    begins = start is None or (_ids(*start.token_ids) and not marker_problem(start))
    single = wanted.kind is FormatKind.CHOICE or len(wanted.source) == 1
    return begins and single and not size_problem(wanted)


def _ids(*tokens: int) -> bool:
    return all(0 <= token < 2**32 for token in tokens)
