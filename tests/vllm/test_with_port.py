"""The suite of the port on vLLM itself; see `port_suite`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import cycle

import pytest

from services.contract.errors import StartError
from services.engine.port import Capability, Engine, Segment
from services.engine.spec import ModelSpec
from services.engine.vllm import loading
from services.engine.vllm.blocks import Blocks
from services.engine.vllm.engine import VllmEngine, Watching
from services.engine.vllm.extension import Computed, Step
from services.engine.vllm.passes import Pass
from tests.engine.port_suite import *  # noqa: F403
from tests.engine.port_suite import CAPACITY, CONTEXT
from tests.engine.states import check_states
from tests.models import tiny_model
from tests.vllm.kit import WIDE, wide_folder
from tests.vllm.replayed import Graphs, capture

PARTS, BLOCKS = 4, 128
"""Engines at a time in one vLLM, and what each has of its memory."""


class Part(Blocks):
    """Some of the blocks that vLLM holds."""

    def __init__(self, index: int, size: int) -> None:
        super().__init__(BLOCKS, size)
        self.capacity = CAPACITY
        self._free = [index * BLOCKS + block for block in self._free]
        self._holders = [0] * (BLOCKS * (index + 1))


@pytest.fixture(autouse=True, scope="module")
def _model(tmp_path_factory: pytest.TempPathFactory) -> None:
    global folder
    folder = wide_folder(tmp_path_factory.mktemp("models"))


@cache
def whole() -> VllmEngine:
    """One vLLM in this process: a second one cannot be started."""
    tokens = PARTS * BLOCKS * loading.CPU_BLOCK
    return loading.load(ModelSpec(str(folder), threads=1, kv_capacity_tokens=tokens))


parts = cycle(range(PARTS))
replaying = cycle((True, False))


def part(compute: Step, watching: Watching | None = None) -> VllmEngine:
    engine = whole()
    return VllmEngine(
        compute,
        Part(next(parts), engine.budget.size),
        model_id="tiny",
        dtype="float32",
        vocab_size=engine.vocab_size,
        max_context=CONTEXT,
        most_tokens=64,
        most_sequences=8,
        watching=watching,
    )


def vllm() -> Engine:
    return part(whole()._compute)


@cache
def graphs() -> Graphs:
    return capture(whole()._compute.__self__.worker_step.__self__)


def replayed() -> Engine:
    """Every other one is computed by graphs; those between say what is right."""
    if not next(replaying):
        return vllm()
    runner, captured, compute = graphs().runner, graphs(), whole()._compute

    def replay(one: Pass) -> Computed:
        runner.cudagraph_manager = captured
        try:
            return compute(one)
        finally:
            runner.cudagraph_manager = None

    return part(replay)


ENGINES: list[Callable[[], Engine]] = [vllm, replayed]


@pytest.mark.parametrize("layers", [[1], [0, 1, 2]])
def test_states_are_what_goes_into_the_layers(layers: list[int]) -> None:
    engine = whole()
    assert Capability.HIDDEN_STATES in engine.capabilities
    parted = part(engine._compute, engine._watching)
    if 2 in layers:
        # Transformers has the last one behind the model's last norm.
        parted.watch(layers)
        cache = parted.new_cache(9)
        _, (states,) = parted.forward_with_states([Segment(cache, [5, 9, 2], logits_from=3)])
        assert states.shape == (3, 3 * WIDE["hidden_size"])
        layers = layers[:2]
    check_states(parted, tiny_model("llama", **WIDE), layers)
    engine._watching.begin(())


def test_states_that_cannot_be_had_are_refused() -> None:
    engine = whole()
    with pytest.raises(StartError, match="give some of 0 to 2, ascending"):
        engine.watch([4])
    with pytest.raises(StartError, match="states of layers need --execution eager and one process"):
        part(engine._compute).watch([1])
    mute = Watching(2, 4, lambda _: False)
    with pytest.raises(StartError, match="vLLM gives no states of this model's layers"):
        part(engine._compute, mute).watch([1])


def test_graphs_of_each_kind_were_replayed() -> None:
    assert min(graphs().counts.values()) > 30
