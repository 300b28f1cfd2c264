"""Our step inside vLLM's worker: the only file that knows names which vLLM may change.

vLLM mixes `Steps` into the worker of each rank (`worker_extension_cls`), and calls its methods by
name (`collective_rpc`). The names below are the same in the releases that `loading` takes.

A step computes fresh tensors where vLLM captured no CUDA graph that fits. Where it did, the pass is
padded to the graph's shape and lies in the runner's own buffers, from which the graph reads, as
`GPUModelRunner.execute_model` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from services.engine.vllm.passes import Pass


class Computed(NamedTuple):
    """What a pass gives, on the device: logits [wanted, V], and states [watched, layers x width].

    None: none are asked for, or this rank has none.
    """

    logits: Tensor | None
    states: Tensor | None = None


Step = Callable[["Pass"], Computed]
"""Computes a pass."""

EAGER, FULL = "NONE", "FULL"
"""Names of vLLM's `CUDAGraphMode`."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What vLLM made of a model: blocks of K/V of `block_size` tokens, in `groups` layouts.

    `graphs`: the name of the mode in which it captured CUDA graphs.
    """

    blocks: int
    block_size: int
    kernel_block_size: int
    groups: int
    kinds: tuple[str, ...]
    vocab_size: int
    context: int
    device: str
    graphs: str = EAGER


@dataclass(frozen=True, slots=True)
class _Inputs:
    """A pass on the device; see `Pass`."""

    ids: Tensor
    positions: Tensor
    slots: Tensor
    starts: Tensor
    ends: Tensor
    tables: Tensor


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
        graphs = self._graphs()
        return Loaded(
            blocks=config.num_blocks,
            block_size=spec.block_size,
            kernel_block_size=sizes[0] if sizes else spec.block_size,
            groups=len(config.kv_cache_groups),
            kinds=tuple(type(one.kv_cache_spec).__name__ for one in config.kv_cache_groups),
            vocab_size=model.get_vocab_size(),
            context=model.max_model_len,
            device=str(runner.device),
            graphs=EAGER if graphs is None else graphs.cudagraph_mode.name,
        )

    def paceline_steps(self) -> Step:
        """What computes passes, to be called in this process."""
        return self.step

    def paceline_watch(self, layers: tuple[int, ...]) -> bool:
        """Have the model give these layers' states beside its own; whether it can."""
        try:
            self.model_runner.get_model().set_aux_hidden_state_layers(layers)
        except (AttributeError, AssertionError):
            return False
        return True

    @torch.inference_mode()
    def step(self, one: Pass) -> Computed:
        """Compute a pass; see `Step`."""
        if one.copies:
            self._copy(one.copies)
        total, model = len(one.ids), self.model_runner.get_model()
        shape = self._shape(one)
        given = self._run(one) if shape is None else self._replay(one, shape)
        last, beside = given if isinstance(given, tuple) else (given, [])
        states = None
        if len(one.watched):
            states = self._some(torch.cat(beside, -1)[:total], one.watched)
        if not len(one.wanted):
            return Computed(None, states)
        return Computed(model.compute_logits(self._some(last[:total], one.wanted)), states)

    def _some(self, rows: Tensor, which: NDArray[np.int64]) -> Tensor:
        return rows if len(which) == len(rows) else rows[self._on_device(which)]

    # --- as it is -----------------------------------------------------------------

    def _run(self, one: Pass) -> Any:
        """The last layer's states [tokens, width]; where layers are watched, theirs beside them."""
        from vllm.forward_context import set_forward_context

        arrays = (one.ids, one.positions, one.slots, one.starts, one.ends, one.tables)
        inputs = _Inputs(*[self._on_device(array) for array in arrays])
        with set_forward_context(
            self._metadata(one, inputs, len(one.ids)),
            self.vllm_config,
            num_tokens=len(one.ids),
            slot_mapping=self._by_layer(inputs.slots),
        ):
            # A compiled model has dropped its guards: other types give other logits, in silence.
            return self.model_runner.get_model()(input_ids=inputs.ids, positions=inputs.positions)

    # --- by a CUDA graph ------------------------------------------------------------

    def _graphs(self) -> Any:
        """What captured graphs; None of a runner that captures none."""
        return getattr(self.model_runner, "cudagraph_manager", None)

    def _shape(self, one: Pass) -> Any:
        """The captured graph that takes a pass; None: none does."""
        graphs = self._graphs()
        if graphs is None:
            return None
        total, sequences = len(one.ids), len(one.ends)
        uniform = one.longest if one.longest * sequences == total else None
        shape = graphs.dispatch(sequences, total, uniform, 0, max_query_len=one.longest)
        return None if shape.cg_mode.name == EAGER else shape

    def _replay(self, one: Pass, shape: Any) -> Any:
        """The same as `_run`, [tokens of the shape, width]."""
        from vllm.forward_context import BatchDescriptor, set_forward_context

        whole, total = shape.cg_mode.name == FULL, len(one.ids)
        one = one.padded(shape.num_tokens, shape.num_reqs if whole else None)
        inputs, padding = self._buffered(one), self._marked(total, shape.num_tokens)
        # Of a whole graph attention is a part: what it reads is written here, too.
        metadata = self._metadata(one, inputs, shape.num_tokens if whole else total)
        if whole:
            return self._graphs().run_fullgraph(shape)
        with set_forward_context(
            metadata,
            self.vllm_config,
            num_tokens=shape.num_tokens,
            cudagraph_runtime_mode=shape.cg_mode,
            batch_descriptor=BatchDescriptor(num_tokens=shape.num_tokens),
            slot_mapping=self._by_layer(inputs.slots),
            is_padding=padding,
        ):
            named = {"input_ids": inputs.ids, "positions": inputs.positions}
            return self._graphs().run_pw_graph(self.model_runner.get_model(), named)

    def _buffered(self, one: Pass) -> _Inputs:
        """A pass in the runner's own buffers."""
        buffers, blocks = self.model_runner.input_buffers, self.model_runner.block_tables
        table = blocks.input_block_tables[0][: len(one.ends)]
        table[:, : one.tables.shape[1]].copy_(torch.from_numpy(one.tables), non_blocking=True)
        return _Inputs(
            ids=_written(buffers.input_ids, one.ids),
            positions=_written(buffers.positions, one.positions),
            slots=_written(blocks.slot_mappings[0], one.slots),
            starts=_written(buffers.query_start_loc, one.starts),
            ends=_written(buffers.seq_lens, one.ends),
            tables=table,
        )

    def _marked(self, total: int, tokens: int) -> Tensor:
        """Which tokens of a padded pass are none."""
        marks: Tensor = self.model_runner.input_buffers.is_padding[:tokens]
        marks[:total] = False
        marks[total:] = True
        return marks

    # --- what both need ---------------------------------------------------------------

    def _metadata(self, one: Pass, inputs: _Inputs, tokens: int) -> dict[str, Any]:
        """What attention is told, by layer; `tokens`: of how many it computes rows."""
        from vllm.v1.attention.backend import CommonAttentionMetadata

        common = CommonAttentionMetadata(
            query_start_loc=inputs.starts,
            query_start_loc_cpu=torch.from_numpy(one.starts),
            seq_lens=inputs.ends,
            seq_lens_cpu_upper_bound=torch.from_numpy(one.ends),
            num_reqs=len(one.ends),
            num_actual_tokens=tokens,
            max_query_len=one.longest,
            max_seq_len=int(one.ends.max()),
            block_table_tensor=inputs.tables,
            slot_mapping=inputs.slots,
            causal=True,
            positions=inputs.positions,
            is_prefilling=torch.zeros(len(one.ends), dtype=torch.bool),
        )
        metadata: dict[str, Any] = {}
        for group in self.model_runner.attn_groups[0]:
            built = group.get_metadata_builder(0).build(0, common)
            metadata.update(dict.fromkeys(group.layer_names, built))
        return metadata

    def _by_layer(self, slots: Tensor) -> dict[str, Tensor]:
        [group] = self.model_runner.kv_cache_config.kv_cache_groups
        return dict.fromkeys(group.layer_names, slots)

    def _copy(self, copies: list[tuple[int, int]]) -> None:
        """Blocks of all layers, source and target, in one call."""
        from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

        config = self.model_runner.kv_cache_config
        layers = self.vllm_config.compilation_config.static_forward_context
        caches = [layers[name].kv_cache for name in config.kv_cache_groups[0].layer_names]
        copy_kv_cache_blocks_inplace(caches, config.num_blocks, copies)

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.model_runner.device, non_blocking=True)


def _written(buffer: Tensor, array: NDArray[Any]) -> Tensor:
    """The part of a buffer that now holds an array."""
    part = buffer[: len(array)]
    part.copy_(torch.from_numpy(array), non_blocking=True)
    return part


def add_by_sockets() -> None:
    """Let ranks on CPUs add their sums over sockets, not in shared memory.

    Its name is the same for all that are started as ours are: two models on one machine would
    share it, and a rank that was killed leaves it behind, where no other can begin.
    """
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False
