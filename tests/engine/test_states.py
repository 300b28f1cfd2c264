"""States of layers by the native engine."""

import pytest
import torch

from services.contract.errors import StartError
from services.engine.port import Segment
from tests.engine.conftest import engine_of, model_of
from tests.engine.states import check_states, stock_states
from tests.models import SUPPORTED


@pytest.mark.parametrize("arch", SUPPORTED)
def test_they_are_what_transformers_says_goes_into_the_layers(arch):
    check_states(engine_of(arch), model_of(arch), [0, 1])
    check_states(engine_of(arch), model_of(arch), [1])


def test_the_last_one_comes_out_of_the_last_layer(llama):
    llama.watch([2])
    text, model = [5, 9, 2], model_of("llama")
    _, (states,) = llama.forward_with_states([Segment(llama.new_cache(3), text)])
    torch.testing.assert_close(model.model.norm(states), stock_states(model, text, [2]))


def test_without_segments_there_are_none(llama):
    llama.watch([1])
    assert llama.forward_with_states([]) == ([], [])


def test_a_forward_without_memory_for_them_changes_nothing(llama, monkeypatch):
    llama.watch([1])
    cache = llama.new_cache(8)
    with monkeypatch.context() as short:
        short.setattr(type(llama._states), "rows", lambda _: torch.empty(1 << 60))
        with pytest.raises(RuntimeError):
            llama.forward_with_states([Segment(cache, [1, 2])])
    assert cache.length == 0
    check_states(llama, model_of("llama"), [1])


@pytest.mark.parametrize("layers", [[], [1, 0], [0, 0], [3], [-1]])
def test_layers_that_there_are_not_are_refused(llama, layers):
    with pytest.raises(StartError, match="give some of 0 to 2, ascending"):
        llama.watch(layers)
