"""What the page says of our own side, by its tables, on our service without any gateway."""

import json
import re
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
import pytest_asyncio
from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from orchestrator.frontdoor.vllm_gateway import extensions
from services.contract.errors import (
    AlreadyExists,
    DeadlinePassed,
    Draining,
    FormatTooCostly,
    Impossible,
    NoWorker,
    Overloaded,
    PacelineError,
)
from tests.docs.test_tables import Table, tables
from tests.gateway.kit import PROMPT_IDS, answered, asked, gateway_stub
from tests.gateway.openai_kit import GUIDE
from tests.integration.cluster import PATIENT, cluster, start_drafter, start_verifier
from tests.models import EOS_ID

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running():
    """A verifier and a drafter with tiny models."""
    workers = [await start_verifier()], [await start_drafter()]
    async with cluster(*workers, PATIENT, vllm_engine=True) as made:
        yield made


def rows_under(heading: str) -> Table:
    """The rows of the page's table whose first heading is this."""
    [found] = [table for table in tables(GUIDE.read_text("utf-8")) if table[0][0] == heading]
    return found[1:]


@dataclass(frozen=True)
class Case:
    """Parameters as a gateway says them and as our own API has them; with others, alike in both."""

    theirs: dict[str, Any]
    ours: dict[str, Any]
    others: dict[str, Any] = field(default_factory=dict)


def same(others: dict[str, Any] | None = None, **params: Any) -> Case:
    return Case(params, params, others or {})


GREEDY: dict[str, Any] = {"temperature": 0.0}
REPEATING = GREEDY | {"regex": "[a-f]{20}"}
SCHEMA = '{"enum":["the law","tokens"]}'
TAG = json.dumps({"format": {"type": "const_string", "value": "aa"}})
CHOICES = ["the law", "tokens"]
TAKEN: dict[str, list[Case]] = {
    "`max_tokens`, `max_completion_tokens`": [same(max_tokens=5)],
    "`temperature`, `top_p`, `frequency_penalty`, `presence_penalty`, and as extensions `top_k`, "
    "`min_p`, `repetition_penalty`, `ignore_eos`, `stop_token_ids`": [
        same(temperature=0.3),
        same(top_p=0.3),
        same(top_k=3),
        same(min_p=0.5),
        same(REPEATING, frequency_penalty=2.0),
        same(REPEATING, presence_penalty=2.0),
        same(REPEATING, repetition_penalty=1.9),
        same({"logit_bias": {EOS_ID: 100.0}}, ignore_eos=True),
        same({"logit_bias": {7: 100.0}}, stop_token_ids=[7, 9]),
    ],
    "`seed`": [same(seed=2**31 - 1), Case({"seed": -5}, {"seed": 2**64 - 5})],
    "`stop`": [same({"regex": "[ab]{20}"}, stop=["ab", "ba"])],
    "`response_format`: `json_schema`, `json_object`": [
        same(json_schema=SCHEMA),
        Case({"json_object": True}, {"json_schema": '{"type":"object"}'}),
    ],
    "`regex`, an extension": [same(regex="b{3}")],
    "`ebnf`, an extension": [same(grammar='root ::= "bb"')],
    "`structural_tag`, an extension": [same(structural_tag=TAG)],
    "`n`": [same(n=3)],
    "`min_tokens`": [same({"logit_bias": {EOS_ID: 100.0}}, min_tokens=3)],
    "`logit_bias`, `best_of`, `truncate_prompt_tokens`": [
        same(logit_bias={5: 100.0}),
        same(truncate_prompt_tokens=2),
        Case({"choice": engine.ChoiceConstraint(choices=CHOICES)}, {"choice": CHOICES}),
    ],
}
"""What each row becomes here. (A gateway can ask for a choice, the OpenAI API cannot.)"""
ELSEWHERE = {
    "`tool_choice`: `required`, or one function",
    "`tools`, `tool_calls`, messages of role `tool`",
    "`logprobs`, `top_logprobs` of a chat",
    "`usage`",
    "several prompts",
    "`echo`, `suffix` of a completion",
    "`guided_choice` and other `guided_` fields of vLLM, `structured_outputs`",
}
"""What the gateway makes of it; counts and log probabilities are in `test_engine_service.py`."""


@pytest.mark.parametrize("row", TAKEN, ids=lambda row: row.split("`")[1])
async def test_a_parameter_gets_the_answer_of_our_own_api(running, row: str):
    usual = {"max_tokens": 12, "seed": 1}
    async with gateway_stub(running.address) as front:
        for case in TAKEN[row]:
            others = usual | case.others
            ours = await running.client.generate(tokens=PROMPT_IDS, **others | case.ours)
            theirs = await answered(front.Generate(asked(**others | case.theirs)))
            without = await answered(front.Generate(asked(**others)))
            expected = [list(one.token_ids) for one in (ours if case.ours.get("n") else [ours])]
            assert by_index(theirs.chunks, len(expected)) == expected, case
            assert theirs.tokens != without.tokens, case


def by_index(chunks: list[engine.GenerateStreamChunk], count: int) -> list[list[int]]:
    """The tokens of each completion of a stream."""
    return [
        [token for chunk in chunks if chunk.index == index for token in chunk.token_ids]
        for index in range(count)
    ]


STATUSES: dict[str, tuple[PacelineError, ...]] = {
    "RESOURCE_EXHAUSTED": (Overloaded("too many sessions", 0.1), FormatTooCostly("too much")),
    "UNAVAILABLE": (Draining("stops", 0.1), NoWorker("none", 0.1)),
    "ALREADY_EXISTS": (AlreadyExists("session 'a' is at work already"),),
    "DEADLINE_EXCEEDED": (DeadlinePassed("over"),),
    "FAILED_PRECONDITION": (Impossible("the form allows no token"),),
}


@pytest.mark.parametrize("status", STATUSES)
async def test_an_error_becomes_its_status(running, status: str):
    for error in STATUSES[status]:
        failing = patch.object(running.inference, "generate_once", side_effect=error)
        async with gateway_stub(running.address) as front:
            with failing:
                told = (await answered(front.Generate(asked(**GREEDY)))).refusal
        assert told.code is not None
        assert told.code.name == status


async def test_every_row_of_the_page_is_tried():
    assert {row[0] for row in rows_under("OpenAI")} == TAKEN.keys() | ELSEWHERE
    assert [row[0].strip("`") for row in rows_under("gRPC status")] == list(STATUSES)
    named = [name for row in rows_under("name") for name in re.findall(r"`(\w+)`", row[0])]
    assert set(named) == set(extensions.READERS)
