"""vLLM, offline, in the environment of another Python: plain, and with n-gram speculation.

Prefix caching is on where text seen before is measured, and off elsewhere: every prompt comes
again with each repeat. All else is vLLM's default.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from bench.peers.lines import Lines, Request
from services.runtime.tether import die_with

NGRAM: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 5,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 5,
}


def engine(settings: dict[str, Any]) -> Any:
    """VLLM's asynchronous engine, its worker bound to the cores."""
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, settings["cpus"]))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = AsyncEngineArgs(
        model=settings["model"],
        dtype=settings["dtype"],
        max_model_len=settings["max_context"],
        max_num_seqs=settings["concurrency"],
        enable_prefix_caching=settings["prefix_caching"],
        speculative_config=NGRAM if settings["ngram"] else None,
    )
    return AsyncLLM.from_engine_args(arguments)


async def answer(made: Any, lines: Lines, request: Request) -> None:
    """One prompt, its tokens as they come."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        max_tokens=request.max_tokens,
        output_kind=RequestOutputKind.DELTA,
    )
    reason, cached = "length", 0
    prompt = {"prompt_token_ids": list(request.token_ids)}
    try:
        async for output in made.generate(prompt, sampling, str(request.id)):
            lines.tokens(request, output.outputs[0].token_ids, None)
            reason = output.outputs[0].finish_reason or reason
            cached = output.num_cached_tokens or cached
    except Exception as error:
        lines.fail(error, request)
    else:
        lines.end(request, reason, cached)


async def serve(lines: Lines) -> int:
    """Load, then answer as many at a time as are asked; the exit status."""
    settings = lines.settings()
    try:
        die_with(settings["tether"])
        made = engine(settings)
    except Exception as error:
        lines.fail(error)
        return 1
    lines.ready(_about())
    asked, running = lines.requests(), set()
    # The next request is waited for in a thread: answers go on meanwhile.
    while request := await asyncio.to_thread(next, asked, None):
        task = asyncio.create_task(answer(made, lines, request))
        running.add(task)
        task.add_done_callback(running.discard)
    made.shutdown()
    return 0


def _about() -> str:
    import vllm

    return f"vllm {vllm.__version__}"


if __name__ == "__main__":
    sys.exit(asyncio.run(serve(Lines())))
