"""What tells an answer that found something of the texts before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.cluster.figures import Measured
from services.cluster.fresh import NotFresh, recalled_tokens, require_fresh
from services.contract import types as t
from services.contract.errors import StartError
from services.runtime.ports import free_port
from tests.bench.test_figures import trial
from tests.services.link_kit import worker


def answer(cached: int) -> Measured:
    [result] = trial("any", 0, 1.0).results
    usage = replace(result.complete.usage, cached_tokens=cached)
    return replace(result, complete=replace(result.complete, usage=usage))


def test_an_answer_that_found_nothing_passes():
    require_fresh("plain", [answer(0), answer(0)], recalled=0)


@pytest.mark.parametrize(
    ("cached", "recalled", "words"),
    [
        (3, 0, "3 of 10 prompt tokens came from a cache"),
        (0, 2, "2 draft tokens came from what other sessions said"),
        (
            3,
            2,
            "3 of 10 prompt tokens came from a cache and "
            "2 draft tokens came from what other sessions said",
        ),
    ],
)
def test_what_was_found_is_said_with_what_it_was_found_by(cached, recalled, words):
    with pytest.raises(NotFresh) as caught:
        require_fresh("eager, prompt 7", [answer(cached), answer(0)], recalled)
    assert str(caught.value) == (
        f"eager, prompt 7 was to find nothing of the texts before it, and {words}"
    )


@pytest.mark.parametrize("role", list(t.Role))
async def test_what_workers_took_from_other_texts_is_read_from_them_while_they_serve(role):
    async with worker(role, bundle=None) as served:
        known = (await served.address, role)
        assert await recalled_tokens([known, known]) == 0
        served.host._progress = t.Progress(recalled_tokens=3)
        assert await recalled_tokens([known, known]) == 6


async def test_a_drafter_that_is_gone_is_named():
    with pytest.raises(StartError, match=r"the drafter on 127\.0\.0\.1:\d+ does not tell"):
        await recalled_tokens([(f"127.0.0.1:{free_port()}", t.Role.DRAFTER)])


async def test_without_a_drafter_nothing_is_recalled():
    assert await recalled_tokens([]) == 0
