"""What vLLM drafts with an EAGLE-3 head, in a process of its own, for a process holds one vLLM."""

from __future__ import annotations

import os
from typing import Any

COUNT, LONGEST = 24, 256
PROMPTS = ([5, 9, 200, 31, 7, 7, 80, 2, 119], list(range(100, 140)), [3, 4])
INPUTS = ("target_token_ids", "target_positions", "target_hidden_states", "next_token_ids")


def write_proposals(target: str, head: str, method: str, tokens: int, file: str) -> None:
    """Of every proposal, what went into vLLM's proposer and what came out of it.

    Prompts are read twice: the second time vLLM is given right drafts in place of the head's, some
    of them, so that it accepts several at once.
    """
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
        HF_HUB_OFFLINE="1",
    )
    from safetensors.torch import save_file

    llm = _llm(target, head, method, tokens)
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    seen = Seen(executor.driver_worker.worker.model_runner.drafter)
    for prompt in PROMPTS:
        seen.text = None
        seen.text = [*prompt, *_generated(llm, prompt)]
        assert _generated(llm, prompt) == seen.text[len(prompt) :]
    save_file(seen.tensors, file)


def _llm(target: str, head: str, method: str, tokens: int) -> Any:
    from vllm import LLM

    told = {"model": head, "method": "eagle3", "num_speculative_tokens": tokens}
    told |= {"parallel_drafting": True} if method == "parallel" else {}
    return LLM(
        target,
        dtype="float32",
        enforce_eager=True,
        max_model_len=LONGEST,
        max_num_seqs=1,
        max_num_batched_tokens=512,
        disable_log_stats=True,
        enable_prefix_caching=False,
        speculative_config=told,
    )


def _generated(llm: Any, prompt: list[int]) -> list[int]:
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=COUNT, temperature=0, ignore_eos=True)
    [out] = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    return list(out.outputs[0].token_ids)


class Seen:
    """Stands before a proposer."""

    def __init__(self, drafter: Any) -> None:
        self._propose = drafter.propose
        self.tensors: dict[str, Any] = {}
        self.text: list[int] | None = None
        self._count = 0
        drafter.propose = self.propose

    def propose(self, *args: Any, **named: Any) -> Any:
        given = {name: named[name].clone() for name in INPUTS}
        rejected = named.get("num_rejected_tokens_gpu")
        drafts = self._propose(*args, **named)
        rows = len(given["target_positions"]) - (0 if rejected is None else int(rejected))
        for name, tensor in given.items():
            taken = tensor if name == "next_token_ids" else tensor[:rows]
            self.tensors[f"{self._count:03d}.{name}"] = taken.contiguous()
        self.tensors[f"{self._count:03d}.drafts"] = drafts.clone()
        self._count += 1
        return drafts if self.text is None else self._right(drafts, given, rows)

    def _right(self, drafts: Any, given: dict[str, Any], rows: int) -> Any:
        """As many drafts of the text itself as their number in the row says."""
        assert self.text is not None
        start = int(given["target_positions"][rows - 1]) + 2
        right = self.text[start : start + self._count % (drafts.shape[1] + 1)]
        changed = drafts.clone()
        for column, token in enumerate(right):
            changed[0, column] = token
        return changed
