"""Students of every supported architecture: cut, stored, loaded, run by the engine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.checkpoint.files import weights_digest
from services.engine.native import NativeEngine
from services.engine.native.loading import load_model
from services.engine.native.student import Student, cut, save_student
from services.engine.native.student.shape import shared_names
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.engine.conftest import CLOSE, model_of, random_text, said_by
from tests.models import tiny_model, tiny_model_folder

TEXT = random_text(24)
EVEN = torch.arange(0, 320, 2)


@cache
def base_of(arch: str, folder: Path) -> Path:
    return tiny_model_folder(folder, arch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("students")


def saved(student: Student, draft: Path, arch: str, folder: Path, storage: Any) -> None:
    base = str(base_of(arch, folder))
    weights = weights_digest(base, folder)
    save_student(student, draft, base=base, base_weights=weights, storage=storage, card={})


def error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def test_a_student_with_all_layers_and_tokens_is_its_target(arch: str) -> None:
    student = cut(model_of(arch), [0, 1], torch.arange(320))
    torch.testing.assert_close(said_by(student.model, TEXT), said_by(model_of(arch), TEXT), **CLOSE)


def test_the_columns_of_a_small_head_are_its_targets(arch: str) -> None:
    student = cut(model_of(arch), [0, 1], EVEN)
    expected = said_by(model_of(arch), TEXT)[:, EVEN]
    torch.testing.assert_close(said_by(student.model, TEXT), expected, **CLOSE)


def test_layers_are_taken_in_the_order_asked_for(arch: str) -> None:
    target = model_of(arch)
    first, second, both = (cut(target, layers, EVEN) for layers in ([0], [1], [0, 1]))
    assert error(said_by(first.model, TEXT), said_by(second.model, TEXT)) > 0.1
    assert error(said_by(first.model, TEXT), said_by(both.model, TEXT)) > 0.1
    assert len(first.own()) < len(both.own())


def test_embeddings_are_the_targets_own_memory_and_nothing_else_is(arch: str) -> None:
    target = model_of(arch)
    student = cut(target, [1], EVEN)
    theirs = {p.data_ptr() for p in target.parameters()}
    for name, parameter in student.model.named_parameters():
        shared = name in shared_names(student.model)
        assert (parameter.data_ptr() in theirs) == shared == (name not in student.own())
        assert parameter.requires_grad != shared


@pytest.mark.parametrize(("storage", "bound"), [("bfloat16", 0.01), ("int8", 0.03), ("int4", 0.45)])
def test_what_is_saved_is_loaded_within_the_error_of_its_storage(
    arch: str, folder: Path, tmp_path: Path, storage: Any, bound: float
) -> None:
    student, draft = cut(model_of(arch), [0, 1], EVEN), tmp_path / "draft"
    saved(student, draft, arch, folder, storage)
    loaded = load_model(ModelSpec(str(draft), cache_dir=folder)).model
    assert error(said_by(loaded, TEXT), said_by(student.model, TEXT)) < bound
    for name, parameter in student.own().items():
        miss = loaded.get_parameter(name).detach() - parameter.detach()
        assert float(miss.norm()) <= bound / 4 * float(parameter.detach().norm())
    for name in shared_names(loaded):
        assert torch.equal(loaded.get_parameter(name), model_of(arch).get_parameter(name))


def test_a_saved_student_passes_the_engines_self_check_and_runs(arch, folder, tmp_path) -> None:
    student, draft = cut(model_of(arch), [1], EVEN), tmp_path / "draft"
    saved(student, draft, arch, folder, "bfloat16")
    engine = NativeEngine.load(ModelSpec(str(draft), cache_dir=folder, threads=1))
    cache = engine.new_cache(len(TEXT))
    rows = torch.cat([engine.forward([Segment(cache, part)])[0] for part in (TEXT[:9], TEXT[9:])])
    assert rows.shape == (len(TEXT), len(EVEN))
    assert error(rows, said_by(student.model, TEXT)) < 0.02
    assert engine.head_ids is not None
    assert torch.equal(engine.head_ids, EVEN)


def test_a_student_in_memory_runs_in_an_engine() -> None:
    student = cut(model_of("llama"), [0], EVEN)
    engine = NativeEngine.from_model(student.model, head_ids=student.head_ids)
    cache = engine.new_cache(len(TEXT))
    [rows] = engine.forward([Segment(cache, TEXT)])
    torch.testing.assert_close(rows, said_by(student.model, TEXT), **CLOSE)


def test_a_student_in_half_precision_keeps_its_dtype() -> None:
    target = tiny_model("qwen2").bfloat16()
    student = cut(target, [0], EVEN)
    assert {p.dtype for p in student.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("layers", [[], [2], [-1], [0, 5]])
def test_layers_that_are_not_there_are_named(layers: list[int]) -> None:
    with pytest.raises(StartError, match=r"the target has layers 0\.\.1"):
        cut(model_of("llama"), layers, EVEN)


def test_a_student_is_trained_by_its_own_parameters_alone() -> None:
    student: Student = cut(model_of("llama"), [0], EVEN)
    student.model(torch.tensor([TEXT])).logits.square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in student.own().values())
    assert student.model.get_input_embeddings().weight.grad is None
