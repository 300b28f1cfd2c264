"""What a client writes and gets is in no log line, span, metric or error of others."""

import asyncio
import io
import logging
import sys
from typing import Any

import pytest
from paceline import InvalidArgument, PacelineError

from services.drafter.methods.ngram.ngram import NgramDrafter
from services.runtime.logs import setup_logging
from tests.integration.cluster import DRAFTERS, PATIENT, cluster, start_drafter, start_verifier
from tests.models import tiny_tokenizer

MARK = "zyxw-only-the-client-knows-this"
PROMPT = f"the small drafter rides ahead, {MARK} and the large verifier checks"
OPTIONS = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}


class Quoting(NgramDrafter):
    """Fails, and quotes what it failed on, as foreign code does."""

    def open(self, key: Any, opening: Any) -> None:
        raise ValueError(tiny_tokenizer().decode(list(opening.prompt)))


@pytest.fixture
def lines(monkeypatch):
    """Every log line down to DEBUG, as processes write them."""
    root, written = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", written)
        setup_logging(json=True, level="debug")
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)


async def failures(running, monkeypatch) -> list[PacelineError]:
    """What clients are told when things go wrong in the orchestrator."""
    told = []

    async def ask(prompt: str = PROMPT, **options: Any) -> None:
        with pytest.raises(PacelineError) as caught:
            await running.client.generate(prompt, **{**OPTIONS, **options})
        told.append(caught.value)

    await ask(PROMPT, max_tokens=10**6)
    await ask(PROMPT * 400)
    await ask(PROMPT, stop=[MARK * 100])
    assert all(isinstance(error, InvalidArgument) for error in told)

    async def quoting(*_: Any) -> None:
        raise KeyError(PROMPT)

    monkeypatch.setattr(running.inference, "generate", quoting)
    await ask()
    return told


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_marked_prompt_is_found_nowhere(lines, receiver, monkeypatch, temperature):
    monkeypatch.setitem(DRAFTERS, "quoting", lambda *_: Quoting())
    verifier = await start_verifier()
    drafters = [await start_drafter("d1"), await start_drafter("d2", methods=("quoting",))]
    async with cluster([verifier], drafters, PATIENT) as running:
        asked = {**OPTIONS, "temperature": temperature, "stop": [MARK], "seed": 3}
        run = await running.client.generate(PROMPT, request_id="one", **asked)
        failed = await running.client.generate(PROMPT, method="quoting", **asked)
        assert len(run.token_ids) == len(failed.token_ids) == 24
        assert (await running.client.resume("one", 3)).token_ids == run.token_ids[3:]
        broken = asyncio.ensure_future(running.client.generate(PROMPT, **asked))
        await asyncio.sleep(0.01)
        broken.cancel()
        await asyncio.wait([broken])
        told = await failures(running, monkeypatch)
    errors = [f"{error!r} {error} {error.__cause__!r}" for error in told]
    written = lines.getvalue()
    assert "an RPC failed unexpectedly" in written
    assert "a draft session failed" in written
    assert receiver.named("Generate")
    exported = b"".join(receiver.raw)
    assert b"spec_round" in exported
    for secret in (MARK, run.text, failed.text):
        assert secret not in written
        assert secret.encode() not in exported
        assert not [error for error in errors if secret in error]
