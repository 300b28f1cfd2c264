"""vLLM as a peer, with a stand-in of that name for the parts that are used."""

import asyncio
import os

import pytest

from services.contract.errors import StartError
from tests.bench.peers.kit import ask, child

PACKAGE = """
__version__ = "0"

class AsyncEngineArgs:
    def __init__(self, **given):
        if given["dtype"] != "bfloat16":
            raise ValueError("this dtype\\nis not there")
        self.given = given

class SamplingParams:
    def __init__(self, temperature, top_p, seed, max_tokens, output_kind):
        assert output_kind == "delta"
        self.max_tokens = max_tokens
"""
SAMPLING = """
class RequestOutputKind:
    DELTA = "delta"
"""
# Every answer takes its turn token by token; a prompt that ends in 0 is refused.
ENGINE = """
import asyncio, os
from types import SimpleNamespace as Of

class AsyncLLM:
    @classmethod
    def from_engine_args(cls, args):
        made = cls()
        made.given = args.given
        return made

    async def generate(self, prompt, sampling, id):
        ids = prompt["prompt_token_ids"]
        if ids[-1] == 0:
            raise RuntimeError("refused")
        spoken = self.given["speculative_config"]
        step = spoken["num_speculative_tokens"] if spoken else 1
        cores = os.environ["VLLM_CPU_OMP_THREADS_BIND"]
        assert cores == "0,1"
        cached = len(ids) if self.given["enable_prefix_caching"] else 0
        for start in range(0, sampling.max_tokens, step):
            await asyncio.sleep(0)
            count = min(step, sampling.max_tokens - start)
            reason = "length" if start + count == sampling.max_tokens else None
            output = Of(token_ids=[ids[-1]] * count, finish_reason=reason)
            yield Of(outputs=[output], num_cached_tokens=cached)

    def shutdown(self):
        pass
"""


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """A package of that name that a child finds."""
    package = tmp_path / "vllm"
    for name, text in {
        "__init__.py": PACKAGE,
        "sampling_params.py": SAMPLING,
        "v1/__init__.py": "",
        "v1/engine/__init__.py": "",
        "v1/engine/async_llm.py": ENGINE,
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return tmp_path


def settings(**changed: object) -> dict[str, object]:
    common = {"threads": 2, "cpus": [0, 1], "dtype": "bfloat16", "model": "m", "ngram": False}
    engine = {"max_context": 100, "concurrency": 3, "prefix_caching": False}
    return {**common, **engine, **changed}


async def test_as_many_are_answered_at_a_time_as_are_asked(vllm):
    async with child("bench.peers.vllm_child", vllm, **settings()) as peer:
        answers = await asyncio.gather(*(ask(peer, "vllm", [1, last]) for last in (5, 6, 7)))
    assert [one.token_ids for one in answers] == [(5,) * 8, (6,) * 8, (7,) * 8]
    assert all(len(one.arrivals) == 8 for one in answers)
    assert {one.complete.finish_reason for one in answers} == {"length"}


async def test_prompts_are_kept_where_text_seen_before_is_measured_and_nowhere_else(vllm):
    found = []
    for caching in (False, True):
        async with child(
            "bench.peers.vllm_child", vllm, **settings(prefix_caching=caching)
        ) as peer:
            answer = await ask(peer, "vllm", [1, 5])
        found.append(answer.complete.usage.cached_tokens)
    assert found == [0, 2]


async def test_n_gram_speculation_is_asked_for_by_name(vllm):
    async with child("bench.peers.vllm_child", vllm, **settings(ngram=True)) as peer:
        answer = await ask(peer, "vllm-ngram", [5])
    assert [count for _, count in answer.arrivals] == [5, 3]


async def test_a_prompt_that_is_refused_is_one_line(vllm):
    async with child("bench.peers.vllm_child", vllm, **settings()) as peer:
        with pytest.raises(StartError, match="peer failed: RuntimeError: refused"):
            await ask(peer, "vllm", [0])


async def test_an_engine_that_does_not_load_is_one_line(vllm):
    with pytest.raises(StartError, match="did not start: ValueError: this dtype is not there"):
        async with child("bench.peers.vllm_child", vllm, **settings(dtype="float32")):
            pass


async def test_an_environment_without_vllm_is_one_line(tmp_path):
    with pytest.raises(StartError, match=r"did not start: ModuleNotFoundError: .*vllm"):
        async with child("bench.peers.vllm_child", tmp_path, **settings()):
            pass
