"""Where no token may follow: what a session says and how it ends is what plain decoding does."""

from typing import Any

import pytest
from paceline import FailedPrecondition

from tests.integration.cluster import PROMPT, Cluster, cluster, start_verifier
from tests.integration.plain_reckoning import start_near_drafter
from tests.models import tiny_tokenizer

[A] = tiny_tokenizer().encode("a")
MOST = 12
"""Of that token one behind the other."""
RULES = ("greedy", "coupled", "standard", "block")
ENDS: dict[str, dict[str, Any]] = {
    "a stop string": {"stop": ["a" * MOST]},
    "the length": {"max_tokens": MOST},
    "nothing": {},
    "nothing, with logprobs": {"logprobs": 2},
}


async def said(live: Cluster, rule: str, *, plain: bool, **options: Any) -> tuple[Any, ...]:
    """The tokens of a session that may say only "a", and not too often, and how it ended."""
    heat = {"temperature": 0.0} if rule == "greedy" else {"rejection_sample_method": rule}
    usual = {"temperature": 1.0, "max_tokens": 2 * MOST, "seed": 1, "ignore_eos": True}
    given = {**usual, **heat, **options}
    tokens: list[int] = []
    drafted, end = 0, None
    try:
        async for event in live.client.generate(
            PROMPT,
            disable_speculative_decoding=plain,
            allowed_token_ids=[A],
            bad_words=["a" * (MOST + 1)],
            include_rounds=True,
            **given,
        ):
            tokens += getattr(event, "token_ids", ())
            drafted += sum(stats.draft_tokens for stats in getattr(event, "rounds", ()))
            end = getattr(event, "finish_reason", None)
    except FailedPrecondition as error:
        return tokens, str(error), drafted
    return tokens, end, drafted


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("rule", RULES)
async def test_a_dead_end_is_the_end_only_where_plain_decoding_gets_there(rule, end):
    drafters = [await start_near_drafter()]
    async with cluster([await start_verifier()], drafters, pacing="fixed") as live:
        *plain, none = await said(live, rule, plain=True, **ENDS[end])
        *drafted, some = await said(live, rule, plain=False, **ENDS[end])
    assert (none, drafted) == (0, plain)
    assert plain[0] == [A] * MOST
    assert some > 0, "nothing was drafted"
