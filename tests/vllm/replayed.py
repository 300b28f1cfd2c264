"""CUDA graphs played on a CPU: a pass is computed from the runner's buffers alone, padded.

A real graph reads memory at fixed places. So does this: what a pass leaves wrong or out in the
buffers, or in what attention is told, changes its rows.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

TOKENS, SEQUENCES, BLOCKS = 64, 16, 64
WHOLE_UP_TO, PIECES_UP_TO = 8, 16
"""Tokens of the largest passes that are replayed whole and in pieces; others run as they are."""


class Graphs:
    """In place of vLLM's `ModelCudaGraphManager`: shapes of eight tokens more, each."""

    def __init__(self, steps: Any) -> None:
        from vllm.config import CUDAGraphMode

        self._steps, self.runner = steps, steps.model_runner
        self.modes, self.cudagraph_mode = CUDAGraphMode, CUDAGraphMode.FULL
        self.counts = {"FULL": 0, "PIECEWISE": 0, "NONE": 0}
        self._told: Any = None
        self._watch()

    def _watch(self) -> None:
        """Keep what attention is told, as the graph's own attention would find it."""
        for group in self.runner.attn_groups[0]:
            builder = group.get_metadata_builder(0)

            def build(prefix: int, common: Any, own: Any = builder.build) -> Any:
                self._told = own(prefix, common), common
                return self._told[0]

            builder.build = build

    def dispatch(
        self, sequences: int, tokens: int, uniform: int | None, loras: int, max_query_len: int
    ) -> Any:
        padded = -(-tokens // 8) * 8
        whole = padded <= WHOLE_UP_TO and sequences <= SEQUENCES
        name = "FULL" if whole else "PIECEWISE" if padded <= PIECES_UP_TO else "NONE"
        self.counts[name] += 1
        return SimpleNamespace(
            cg_mode=self.modes[name], num_tokens=padded, num_reqs=SEQUENCES if whole else None
        )

    def run_fullgraph(self, shape: Any) -> Tensor:
        from vllm.forward_context import set_forward_context

        metadata, common = self._told
        buffers, blocks = self.runner.input_buffers, self.runner.block_tables
        places = (buffers.query_start_loc, buffers.seq_lens, blocks.input_block_tables[0])
        read = (common.query_start_loc, common.seq_lens, common.block_table_tensor)
        assert [one.data_ptr() for one in read] == [one.data_ptr() for one in places]
        assert len(common.seq_lens) == common.num_reqs == SEQUENCES
        # Kernels that CPUs do not have take no less, and want empty sequences behind.
        assert common.num_actual_tokens == shape.num_tokens
        counts = common.query_start_loc.diff()
        assert bool(((counts > 0) == (common.seq_lens > 0)).all())
        assert int(counts.min()) >= 0
        [group] = self.runner.kv_cache_config.kv_cache_groups
        tokens = shape.num_tokens
        slots = blocks.slot_mappings[0][:tokens]
        with set_forward_context(
            dict.fromkeys(group.layer_names, metadata),
            self._steps.vllm_config,
            num_tokens=tokens,
            slot_mapping=dict.fromkeys(group.layer_names, slots),
        ):
            states: Tensor = self.runner.get_model()(
                input_ids=buffers.input_ids[:tokens], positions=buffers.positions[:tokens]
            )
        return states

    def run_pw_graph(self, model: Any, inputs: dict[str, Tensor]) -> Tensor:
        buffers = self.runner.input_buffers
        assert inputs["input_ids"].data_ptr() == buffers.input_ids.data_ptr()
        assert inputs["positions"].data_ptr() == buffers.positions.data_ptr()
        states: Tensor = model(**inputs)
        return states


def capture(steps: Any) -> Graphs:
    """Give a runner for CPUs what those for GPUs have, full of what an earlier pass left there."""
    runner = steps.model_runner
    runner.input_buffers = SimpleNamespace(
        input_ids=torch.full((TOKENS,), 3, dtype=torch.int32),
        positions=torch.full((TOKENS,), 3),
        is_padding=torch.zeros(TOKENS, dtype=torch.bool),
        query_start_loc=torch.full((SEQUENCES + 1,), 3, dtype=torch.int32),
        seq_lens=torch.full((SEQUENCES,), 3, dtype=torch.int32),
    )
    runner.block_tables = SimpleNamespace(
        input_block_tables=[torch.ones(SEQUENCES, BLOCKS, dtype=torch.int32)],
        slot_mappings=torch.zeros(1, TOKENS, dtype=torch.int64),
    )
    return Graphs(steps)
