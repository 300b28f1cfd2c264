"""Outputs of a given form under every rule: their law, and whether they have the form."""

import asyncio
import json
from typing import Any

import pytest
from paceline import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.grpc.decoding import incoming
from orchestrator.frontdoor.response_formats import ResponseFormats
from orchestrator.session.tenants import Tenant, TenantLimits
from services.contract.errors import InvalidRequest, Overloaded
from services.contract.types import FormatKind, FormatMarker, ResolvedSampling, ResponseFormat
from services.grammar.spending import Allowance
from tests.answers import answer_schema, is_answer
from tests.integration.cluster import PROMPT, cluster, start_verifier
from tests.integration.plain_reckoning import (
    begins,
    behind_its_noise,
    behind_the_best,
    generate,
    laws_along,
    places,
    prompt_ids,
    rules_of,
    start_near_drafter,
)
from tests.models import tiny_tokenizer
from tests.proof.goodness_of_fit import ALARM, uniform

LONGEST = 6
ANSWER = json.dumps(answer_schema(LONGEST))
FORMATS: dict[str, dict[str, Any]] = {
    "json_schema": {"json_schema": ANSWER},
    "regex": {"regex": r"([a-f]{2,9} ?){2,12}[.!]"},
    "choice": {"choice": ["the drafter", "the drafters", "the target", "a"]},
    "grammar": {"grammar": 'root ::= "a" (" and " [a-f]+){1,9} "."'},
    "structural_tag": {
        "structural_tag": json.dumps(
            {
                "structures": [{"begin": "e<", "schema": json.loads(ANSWER), "end": ">"}],
                "triggers": ["e"],
            }
        )
    },
    "behind free text": {"json_schema": ANSWER, "response_format_start": "e"},
}
RULES = ("coupled", "standard", "block")
MOST = 64


def form_of(name: str) -> ResponseFormat:
    (kind, given), *more = FORMATS[name].items()
    source = tuple(given) if name == "choice" else (given,)
    start = FormatMarker(text=more[0][1]) if more else None
    return ResponseFormat(FormatKind(kind), source, start)


def resolved(name: str, **more: Any) -> ResolvedSampling:
    return ResolvedSampling(response_format=form_of(name), **more)


async def ask(running: Any, seed: int | None, name: str, **more: Any) -> Any:
    given = {"ignore_eos": False, "max_tokens": MOST, **FORMATS[name], **more}
    return await generate(running, seed, **given)


@pytest.mark.parametrize("rule", RULES)
async def test_every_format_leaves_the_law_of_plain_constrained_decoding(rule):
    """Each position's token under the target's law there, masked from the text alone."""
    way = {"rejection_sample_method": rule, "num_speculative_tokens": 5, "method": "model"}
    drafters = [await start_near_drafter()]
    async with cluster([await start_verifier()], drafters, pacing="fixed") as live:
        runs = {
            name: await asyncio.gather(*(ask(live, seed, name, **way) for seed in range(12)))
            for name in FORMATS
        }
    for name, own in runs.items():
        assert all(rules_of(run) == {rule} for run in own)
        outputs = [list(run.token_ids) for run in own]
        for output in outputs:
            law = laws_along(prompt_ids(), output, resolved(name))
            assert law[range(len(output)), output].min() > 0, f"{name}: a token that is forbidden"
        assert uniform(places(outputs, resolved(name)), slices=6) > ALARM, name
    drafted = [run.speculation for own in runs.values() for run in own]
    assert sum(one.num_accepted_draft_tokens for one in drafted) > 0
    assert sum(one.num_draft_tokens - one.num_accepted_draft_tokens for one in drafted) > 0


async def test_a_law_without_the_mask_is_told_apart():
    """The test above can fail: constrained texts, held against the law without the format."""
    async with cluster([await start_verifier()], []) as live:
        runs = await asyncio.gather(*(ask(live, seed, "regex") for seed in range(12)))
    outputs = [list(run.token_ids) for run in runs]
    assert uniform(places(outputs, ResolvedSampling()), slices=6) < ALARM


@pytest.mark.parametrize("name", FORMATS)
async def test_a_coupled_text_of_a_form_is_the_same_whoever_drafts(name):
    ways: list[dict[str, Any]] = [
        {"disable_speculative_decoding": True},
        {"method": "model"},
        {"method": "ngram"},
        {"method": "model", "num_candidates": 3},
        {"method": "ngram,model"},
    ]
    async with cluster([await start_verifier()], [await start_near_drafter()]) as live:
        runs = [await ask(live, 5, name, **way) for way in ways]
    assert len({run.token_ids for run in runs}) == 1
    # Float32 may choose otherwise where two tokens arrive together.
    assert behind_its_noise(5, list(runs[0].token_ids), resolved(name)) < 1e-3


@pytest.mark.parametrize("name", FORMATS)
async def test_a_greedy_text_of_a_form_is_the_best_that_is_allowed(name):
    async with cluster([await start_verifier()], [await start_near_drafter()]) as live:
        run = await ask(live, None, name, temperature=0.0)
    assert behind_the_best(list(run.token_ids), resolved(name)) < 1e-3


@pytest.mark.parametrize("rule", RULES)
async def test_all_of_a_hundred_answers_are_json_of_the_schema(rule):
    way = {"rejection_sample_method": rule}
    drafters = [await start_near_drafter()]
    async with cluster([await start_verifier()], drafters) as live:
        runs = await asyncio.gather(*(ask(live, None, "json_schema", **way) for _ in range(100)))
    assert {str(run.finish_reason) for run in runs} == {"stop"}
    assert all(is_answer(json.loads(run.text), LONGEST) for run in runs)


@pytest.mark.parametrize("rule", RULES)
async def test_behind_free_text_all_of_a_hundred_answers_are_json_of_the_schema(rule):
    """And an answer that ends in front of its marker has no form."""
    way = {"rejection_sample_method": rule, "max_tokens": 120}
    drafters = [await start_near_drafter()]
    async with cluster([await start_verifier()], drafters) as live:
        asked = (ask(live, None, "behind free text", **way) for _ in range(100))
        runs = await asyncio.gather(*asked)
    ended = [list(run.token_ids) for run in runs if str(run.finish_reason) == "stop"]
    begun = [(ids[:-1], begins(ids[:-1], FormatMarker(text="e"))) for ids in ended]
    formed = [tiny_tokenizer().decode(ids[at:]) for ids, at in begun if at is not None]
    assert len(formed) > 50
    assert all(is_answer(json.loads(text), LONGEST) for text in formed)


async def test_a_minimum_of_tokens_ends_where_the_form_does():
    async with cluster([await start_verifier()], []) as live:
        run = await ask(live, 3, "choice", min_tokens=40)
    assert run.text in FORMATS["choice"]["choice"]


@pytest.mark.parametrize(("name", "at"), [("json_schema", 5), ("behind free text", 2)])
async def test_a_session_whose_verifier_dies_goes_on_in_its_form(name, at):
    """The form is followed anew through what is committed; `at`: in free text, too."""
    verifiers = [await start_verifier("v1"), await start_verifier("v2")]
    async with cluster(verifiers, [await start_near_drafter()]) as live:
        whole = await ask(live, 5, name)
        seen: list[int] = []
        async for event in live.client.generate(
            PROMPT, seed=5, temperature=1.0, max_tokens=MOST, **FORMATS[name]
        ):
            seen += getattr(event, "token_ids", ())
            if len(seen) > at and not any(worker.task.done() for worker in verifiers):
                await next(w for w in verifiers if w.host.progress().sessions).kill()
    assert seen == list(whole.token_ids)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"json_schema": "{"}, "sampling.json_schema"),
        ({"json_schema": "[1]"}, "sampling.json_schema"),
        ({"json_schema": '{"type": "secretive"}'}, "sampling.json_schema"),
        ({"json_schema": json.dumps({"enum": ["x" * 70_000]})}, "sampling.json_schema"),
        ({"regex": "(a"}, "sampling.regex"),
        ({"choice": ["a", ""]}, "sampling.choice"),
        ({"regex": "a", "ignore_eos": True}, "sampling.ignore_eos"),
        ({"grammar": "once upon a time"}, "sampling.grammar"),
        ({"grammar": "start: <|unheard_of|>"}, "sampling.grammar"),
        ({"structural_tag": "{}"}, "sampling.structural_tag"),
        ({"response_format_start": "a"}, "sampling.response_format_start"),
        (
            {"regex": "a", "response_format_start": True},
            "sampling.response_format_start.auto",
        ),
    ],
)
async def test_a_format_that_cannot_be_kept_to_is_refused_by_its_name(options, field):
    async with cluster([await start_verifier()], []) as live:
        with pytest.raises(InvalidArgument) as refused:
            await live.client.generate(PROMPT, max_tokens=8, **options)
        assert field in str(refused.value)
        assert live.inference.active_sessions == 0


DEAD_ENDS: dict[str, dict[str, Any]] = {
    "no token": {"regex": "x{8}", "min_tokens": 4},
    # Its states multiply with every token: the form cannot be followed to its end,
    # and by chance no text may end before.
    "no fuel": {"regex": "(.*[a-z].{1,200}){1,40}", "min_tokens": 490},
}


def dead_end(name: str) -> dict[str, Any]:
    """What leads nowhere: every token that the form allows is a stop, masked until the minimum."""
    given = dict(DEAD_ENDS[name])
    if name == "no token":
        tokens = (tiny_tokenizer().encode("x" * count) for count in range(1, 9))
        given["stop_token_ids"] = sorted({ids[0] for ids in tokens})
    return given


@pytest.mark.parametrize("name", DEAD_ENDS)
@pytest.mark.parametrize("rule", [*RULES, "greedy"])
async def test_what_can_never_go_on_is_told_once_and_ends_for_good(rule, name, caplog):
    way = dead_end(name) | {"max_tokens": 490}
    way |= {"temperature": 0.0} if rule == "greedy" else {"rejection_sample_method": rule}
    async with cluster([await start_verifier()], [await start_near_drafter()]) as live:
        asked, calls = live.inference.generate, []
        live.inference.generate = lambda *a: calls.append("generate") or asked(*a)
        resumed = live.inference.resume
        live.inference.resume = lambda *a: calls.append("resume") or resumed(*a)
        seen, told = await _told(live.client.generate(PROMPT, request_id="nowhere", **way))
        assert calls == ["generate"], "the client asked again"
        assert ("allow no token" if name == "no token" else "sampling.") in told
        assert "resumed" not in told
        assert live.inference.active_sessions == 0
        again, later = await _told(live.client.resume("nowhere"))
        assert later == told
        assert again[: len(seen)] == seen
        assert "a session failed" not in caplog.text


async def test_what_takes_too_much_to_follow_ends_for_good_and_goes_nowhere_else(monkeypatch):
    """Two verifiers are there: neither gets the session again, nor another one of its format."""
    monkeypatch.setattr("services.engine.structure.OUTPUTS", Allowance(0.0, 2e-3))
    way: dict[str, Any] = {"grammar": 'start: a\na: a a | "x"', "min_tokens": 490}
    way |= {"max_tokens": 490, "temperature": 0.0}
    async with cluster([await start_verifier(), await start_verifier()], []) as live:
        asked, calls = live.inference.generate, []
        live.inference.generate = lambda *a: calls.append("generate") or asked(*a)
        resumed = live.inference.resume
        live.inference.resume = lambda *a: calls.append("resume") or resumed(*a)
        stream = live.client.generate(PROMPT, request_id="costly", **way)
        seen, told = await _told(stream, ResourceExhausted)
        assert calls == ["generate"], "the client asked again"
        assert "sampling.response_format" in told
        assert live.inference.active_sessions == 0
        again, later = await _told(live.client.resume("costly"), ResourceExhausted)
        assert later == told
        assert again[: len(seen)] == seen
        with pytest.raises(ResourceExhausted, match=r"sampling\.grammar") as refused:
            await live.client.generate(PROMPT, request_id="another", **way)
        assert (refused.value.reason, refused.value.retry_after) == ("FORMAT_TOO_COSTLY", None)
        with pytest.raises(NotFound):
            await live.client.get_session("another")


async def _told(stream: Any, kind: type[Exception] = FailedPrecondition) -> tuple[list[int], str]:
    """The tokens of a session that nobody can go on with, and why."""
    seen: list[int] = []
    try:
        async for event in stream:
            seen += getattr(event, "token_ids", ())
    except kind as error:
        return seen, str(error)
    raise AssertionError("it came to an end")


async def test_a_tenant_at_its_limit_costs_no_compiling():
    class Counting(ResponseFormats):
        asked = 0

        async def require(self, wanted, tenant):
            type(self).asked += 1

    async with cluster([await start_verifier()], []) as live:
        live.inference._forms = Counting()
        limited = Tenant("t", TenantLimits(max_tokens_in_flight=1))
        request = pb.GenerateRequest(prompt="a", sampling=pb.SamplingParams(regex="a"))
        with pytest.raises(InvalidRequest):
            await live.inference.generate(incoming(request), limited)
        assert Counting.asked == 0
        limited = Tenant("t", TenantLimits(max_sessions=1))
        first = await live.inference.generate(incoming(request), limited)
        with pytest.raises(Overloaded):
            await live.inference.generate(incoming(request), limited)
        assert Counting.asked == 1
        await first.aclose()
