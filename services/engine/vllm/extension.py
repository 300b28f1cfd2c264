"""Our step inside vLLM's worker: the only file that knows names which vLLM may change.

vLLM mixes `Steps` into the worker of each rank (`worker_extension_cls`), and calls its methods by
name (`collective_rpc`). The names below are the same in the releases that `loading` takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from services.engine.vllm.passes import Pass


@dataclass(frozen=True, slots=True)
class Loaded:
    """What vLLM made of a model: blocks of K/V of `block_size` tokens, in `groups` layouts."""

    blocks: int
    block_size: int
    kernel_block_size: int
    groups: int
    kinds: tuple[str, ...]
    vocab_size: int
    context: int
    device: str


class Steps:
    """Methods of vLLM's worker, of each rank."""

    model_runner: Any
    vllm_config: Any

    def paceline_loaded(self) -> Loaded:
        """What there is."""
        runner, config = self.model_runner, self.model_runner.kv_cache_config
        sizes = getattr(runner, "_kernel_block_sizes", None)
        spec = config.kv_cache_groups[0].kv_cache_spec
        model = self.vllm_config.model_config
        return Loaded(
            blocks=config.num_blocks,
            block_size=spec.block_size,
            kernel_block_size=sizes[0] if sizes else spec.block_size,
            groups=len(config.kv_cache_groups),
            kinds=tuple(type(one.kv_cache_spec).__name__ for one in config.kv_cache_groups),
            vocab_size=model.get_vocab_size(),
            context=model.max_model_len,
            device=str(runner.device),
        )

    @torch.inference_mode()
    def paceline_step(self, step: Pass) -> Tensor | None:
        """Logits [wanted, V] of a pass, on the device; None of ranks that do not hold them."""
        from vllm.forward_context import set_forward_context

        runner = self.model_runner
        if step.copies:
            self._copy(step.copies)
        total, at = len(step.ids), positions_of(step)
        group = runner.kv_cache_config.kv_cache_groups[0]
        slots = self._on_device(slots_of(step, at, group.kv_cache_spec.block_size))
        positions = self._on_device(at)
        metadata = self._metadata(step, slots, positions)
        by_layer = dict.fromkeys(group.layer_names, slots)
        with set_forward_context(
            metadata, self.vllm_config, num_tokens=total, slot_mapping=by_layer
        ):
            # A compiled model has dropped its guards: other types give other logits, in silence.
            states = runner.get_model()(input_ids=self._on_device(step.ids), positions=positions)
        if not len(step.wanted):
            return None
        if len(step.wanted) < total:
            states = states[self._on_device(step.wanted)]
        logits: Tensor | None = runner.get_model().compute_logits(states)
        return logits

    def _metadata(self, step: Pass, slots: Tensor, positions: Tensor) -> dict[str, Any]:
        """What attention is told, by layer."""
        from vllm.v1.attention.backend import CommonAttentionMetadata

        counts = np.diff(step.starts)
        starts, ends = torch.from_numpy(step.starts), torch.from_numpy(step.ends)
        common = CommonAttentionMetadata(
            query_start_loc=self._on_device(step.starts),
            query_start_loc_cpu=starts,
            seq_lens=self._on_device(step.ends),
            seq_lens_cpu_upper_bound=ends,
            num_reqs=len(counts),
            num_actual_tokens=len(step.ids),
            max_query_len=int(counts.max()),
            max_seq_len=int(step.ends.max()),
            block_table_tensor=self._on_device(step.tables),
            slot_mapping=slots,
            causal=True,
            positions=positions,
            is_prefilling=torch.zeros(len(counts), dtype=torch.bool),
        )
        metadata: dict[str, Any] = {}
        for one in self.model_runner.attn_groups[0]:
            built = one.get_metadata_builder(0).build(0, common)
            metadata.update(dict.fromkeys(one.layer_names, built))
        return metadata

    def _copy(self, copies: list[tuple[int, int]]) -> None:
        """Blocks of all layers, source and target, in one call."""
        from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

        config = self.model_runner.kv_cache_config
        layers = self.vllm_config.compilation_config.static_forward_context
        caches = [layers[name].kv_cache for name in config.kv_cache_groups[0].layer_names]
        copy_kv_cache_blocks_inplace(caches, config.num_blocks, copies)

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.model_runner.device, non_blocking=True)


def add_by_sockets() -> None:
    """Let ranks on CPUs add their sums over sockets, not in shared memory.

    Its name is the same for all that are started as ours are: two models on one machine would
    share it, and a rank that was killed leaves it behind, where no other can begin.
    """
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False


def positions_of(step: Pass) -> NDArray[np.int64]:
    """Of each token of a pass."""
    counts = np.diff(step.starts)
    behind = np.repeat(step.ends - counts - step.starts[:-1], counts)
    return np.arange(len(step.ids), dtype=np.int64) + behind


def slots_of(step: Pass, at: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Where the K/V of each token goes."""
    chains = np.repeat(np.arange(len(step.ends)), np.diff(step.starts))
    return step.tables[chains, at // size].astype(np.int64) * size + at % size
