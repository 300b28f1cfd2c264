"""A request becomes a SessionSpec. Nothing is created when it is refused.

Cheap checks come first: sizes and ranges before any text is tokenized. A prompt may be
megabytes long, so a server calls this in a thread.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import replace

from paceline.together import MOST_COMPLETIONS, completion_id

from orchestrator.frontdoor.requests.checks import require
from orchestrator.frontdoor.requests.format_start import format_start
from orchestrator.frontdoor.requests.inputs import content, prompt_ids
from orchestrator.frontdoor.requests.request import GenerationRequest
from orchestrator.frontdoor.requests.sampling import (
    check_sampling,
    resolve_sampling,
    stop_token_ids,
)
from orchestrator.frontdoor.requests.speculation import (
    asked_rule,
    check_speculation,
    check_together,
    drafting_method,
    methods,
    num_candidates,
)
from orchestrator.session.modes import resolve_mode
from orchestrator.session.ranges import MAX_SESSION_ID, PRIORITY
from orchestrator.session.served_model import ServedModel
from orchestrator.session.spec import SessionSpec, content_digest
from orchestrator.text import Tokenizer
from services.contract.types import VerifyMode

_REQUEST_ID = re.compile(rf"[A-Za-z0-9\-_.:]{{1,{MAX_SESSION_ID}}}")
_SHOWN = 160


def build_spec(
    request: GenerationRequest,
    tokenizer: Tokenizer,
    model: ServedModel,
    new_seed: Callable[[], int] = lambda: secrets.randbits(64),
    new_session_id: Callable[[], str] = lambda: secrets.token_hex(16),
) -> SessionSpec:
    """The session that a request asks for, whose lists `check_counts` has found short enough.

    Raises InvalidRequest naming the field, its value and what is allowed.
    """
    _check_names(request, model)
    _check_n(request)
    check_sampling(request.sampling, model)
    check_speculation(request.speculation, model)
    prompt = prompt_ids(request, tokenizer, model)
    given_seed = request.sampling.seed
    spec = _assemble(request, tokenizer, model, prompt)
    spec = replace(
        spec,
        session=request.request_id or new_session_id(),
        seed=new_seed() if given_seed is None else given_seed,
    )
    rule = _asked(spec, request)
    return replace(spec, digest=content_digest(spec, content(request), given_seed, rule))


def _asked(spec: SessionSpec, request: GenerationRequest) -> str:
    """The rule as far as the request alone settles it.

    A retry must find its session even if AUTO would choose otherwise by now.
    """
    asked = asked_rule(request.speculation)
    settled = asked is None and request.sampling.seed is not None
    if settled or spec.mode is VerifyMode.GREEDY:
        return spec.mode.name
    return asked.name if asked else "AUTO"


def _check_names(request: GenerationRequest, model: ServedModel) -> None:
    if (name := request.request_id) is not None:
        allowed = "1 to 128 letters, digits and -_.:"
        require(bool(_REQUEST_ID.fullmatch(name)), "request_id", name[:_SHOWN], allowed)
    if (priority := request.priority) is not None:
        require(PRIORITY.holds(priority), "priority", priority, PRIORITY.text)
    if (asked := request.model) is not None:
        require(asked == model.name, "model", asked[:_SHOWN], repr(model.name))


def _check_n(request: GenerationRequest) -> None:
    count = 1 if request.n is None else request.n
    require(1 <= count <= MOST_COMPLETIONS, "n", count, f"1 to {MOST_COMPLETIONS}")
    if count == 1 or request.request_id is None:
        return
    longest = MAX_SESSION_ID - len(completion_id("", count - 1))
    allowed = f"at most {longest} characters: each of the {count} completions adds its number"
    require(len(request.request_id) <= longest, "request_id", request.request_id, allowed)


def _assemble(
    request: GenerationRequest, tokenizer: Tokenizer, model: ServedModel, prompt: tuple[int, ...]
) -> SessionSpec:
    params, speculation = request.sampling, request.speculation
    room = model.max_context_length - len(prompt)
    ends = stop_token_ids(params, tokenizer.eos_token_ids)
    start = format_start(params, model, tokenizer, prompt, ends)
    sampling = resolve_sampling(params, model, tokenizer, room, start)
    return SessionSpec(
        session="",
        model=model.name,
        prompt=prompt,
        sampling=sampling,
        seed=0,
        mode=_mode(request, model, sampling.temperature),
        digest="",
        # An empty one asks for nothing.
        stop=tuple(dict.fromkeys(filter(None, params.stop))),
        include_stop_str=bool(params.include_stop_str_in_output),
        skip_special_tokens=params.skip_special_tokens is not False,
        include_rounds=request.include_rounds,
        ephemeral=request.ephemeral,
        method=methods(speculation),
        window_cap=speculation.num_speculative_tokens,
        disable_speculation=bool(speculation.disable_speculative_decoding),
        num_candidates=num_candidates(speculation),
        chains=speculation.num_candidates == 1,
        n=request.n or 1,
        priority=request.priority or 0,
        open_ended=params.open_ended and params.max_tokens is None,
    )


def _mode(request: GenerationRequest, model: ServedModel, temperature: float) -> VerifyMode:
    speculation = request.speculation
    method = drafting_method(speculation, model)
    mode = resolve_mode(
        asked_rule(speculation),
        temperature=temperature,
        seeded=request.sampling.seed is not None,
        sampled=model.samples(method),
        num_candidates=num_candidates(speculation),
        short_blocks=method in model.slow_methods,
    )
    check_together(method, mode, num_candidates(speculation), model)
    return mode
