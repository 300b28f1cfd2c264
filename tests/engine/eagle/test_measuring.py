"""Readings that a layout leaves open are measured by the target's own text, and the better kept."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from services.contract.errors import StartError
from services.engine.eagle import measuring
from services.engine.eagle.engine import EagleEngine
from services.engine.eagle.loading import load_head
from services.engine.eagle.measuring import LEAST, LENGTH, QUESTIONS, agreements, settle
from services.engine.eagle.readings import Reading
from services.engine.native import NativeEngine
from services.engine.native import states as native
from services.engine.spec import ModelSpec
from tests.engine.eagle import kit
from tests.engine.eagle.kit import Made, make
from tests.models import tiny_model_folder

DEPTH, WIDTH = 8, 64
ALL = len(QUESTIONS) * LENGTH
FLOOR = 0.1
IDS = "eagle_aux_hidden_state_layer_ids"
Save = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models"), num_hidden_layers=DEPTH)


@pytest.fixture(scope="module")
def target(folder: Path) -> NativeEngine:
    return NativeEngine.load(ModelSpec(str(folder), threads=1, kv_capacity_tokens=4096))


def taught(target: NativeEngine, layers: Sequence[int], *, norm: bool) -> Made:
    """A head that knows the target's answers by heart, from these states alone.

    Its layer adds nothing, and its fusion is a least squares fit from the states to the row of the
    output that stands for the token after the next one. The feature's norm turns signs: read the
    other way, nothing is right any more.
    """
    shape = {"hidden_size": WIDTH, "num_attention_heads": 4}
    made = make(shape=shape, draft_vocab_size=320, norm_before_residual=norm)
    tensors = made.tensors
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"layers.0.{name}.weight"].zero_()
    signs = torch.randint(0, 2, (WIDTH,), generator=torch.Generator().manual_seed(2)) * 2.0 - 1
    tensors["layers.0.hidden_norm.weight"], tensors["norm.weight"] = signs, torch.ones(WIDTH)
    answers = measuring._answers(target, layers, measuring._prompts(target), lambda: False)
    known, wanted = [], []
    for answer in answers:
        states = torch.cat([answer.states[layer] for layer in layers], -1)
        known.append(states[answer.start - 2 : -1])
        wanted.append(tensors["lm_head.weight"][answer.token_ids[answer.start :]])
    rows = torch.cat(wanted) * (signs if norm else 1)
    tensors["fc.weight"] = torch.linalg.lstsq(torch.cat(known), rows, driver="gelsd").solution.T
    return made


def saved(made: Made, folder: Path, save: Save, ids: Sequence[int], **head: object) -> Path:
    own = {name: one for name, one in made.head.items() if name != "norm_before_residual"}
    return save(Made(made.shape, own | {IDS: list(ids)} | head, made.tensors), folder)


def load(head: Path, folder: Path) -> EagleEngine:
    return load_head(ModelSpec(str(head), "float32", base=str(folder), threads=1))


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(
    ("save", "ids", "layers"),
    [
        (kit.save_speculators, (2, 5, 7), (2, 5, 7)),
        (kit.save_speculators, (1, 4, 6), (2, 5, 7)),
        (kit.save_specforge, (1, 4, 6), (2, 5, 7)),
        (kit.save_specforge, (1, 4, 6), (1, 4, 6)),
        (kit.save_specforge, (2, 5, 7), (2, 5, 7)),
        (kit.save_specforge, (2, 5, 7), (3, 6, 8)),
    ],
)
def test_of_the_readings_that_are_open_the_one_that_agrees_is_kept(
    target: NativeEngine,
    folder: Path,
    tmp_path: Path,
    save: Save,
    ids: Sequence[int],
    layers: tuple[int, ...],
    norm: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    head = load(saved(taught(target, layers, norm=norm), tmp_path / "head", save, ids), folder)
    assert len(head.readings) == 4
    found = {one.reading: one.share for one in agreements(head, target)}
    right = Reading(layers, norm)
    assert found.pop(right) > 0.8
    assert max(found.values()) < 0.5
    with caplog.at_level(logging.INFO):
        settle(head, target, FLOOR)
    assert head.reading == right
    assert head.layers == layers
    assert f"says {ALL} tokens of" in caplog.text
    assert all(str(reading) in caplog.text for reading in head.readings)
    assert target.kv_tokens_used == head.kv_tokens_used == 0


def test_what_a_file_says_of_norms_is_not_open_and_our_own_heads_leave_nothing_open(
    target: NativeEngine, folder: Path, tmp_path: Path
) -> None:
    made = taught(target, (2, 5, 7), norm=True)
    told = saved(made, tmp_path / "told", kit.save_specforge, (2, 5, 7), norm_before_residual=True)
    assert load(told, folder).readings == (Reading((2, 5, 7), True), Reading((3, 6, 8), True))
    own = saved(
        made,
        tmp_path / "own",
        kit.save_speculators,
        (1, 4, 6),
        norm_before_residual=False,
        paceline={"target": str(folder)},
    )
    assert load(own, folder).readings == (Reading((1, 4, 6), False),)


def test_a_head_that_hardly_says_what_its_target_says_is_refused_with_all_that_was_tried(
    target: NativeEngine, folder: Path, tmp_path: Path
) -> None:
    made = make(shape={"hidden_size": WIDTH, "num_attention_heads": 4})
    head = load(saved(made, tmp_path / "head", kit.save_specforge, (2, 5, 7)), folder)
    with pytest.raises(StartError, match="less than 10% is hardly a head") as caught:
        settle(head, target, FLOOR)
    assert all(str(reading) in str(caught.value) for reading in head.readings)
    assert len(str(caught.value).splitlines()) == 1
    assert target.kv_tokens_used == head.kv_tokens_used == 0


def test_a_slow_target_writes_less(target: NativeEngine, folder: Path, tmp_path: Path) -> None:
    made = taught(target, (2, 5, 7), norm=True)
    head = load(saved(made, tmp_path / "head", kit.save_speculators, (2, 5, 7)), folder)
    [first, *_] = agreements(head, target, lambda: True)
    assert first.tokens == len(QUESTIONS) * LEAST
    assert first.share > 0.8


def _no_stack(model: object) -> str:
    raise StartError(f"{type(model).__name__}: 0 stacks")


@pytest.mark.parametrize("lacks", ["states", "layers", "tokenizer", "room", "context"])
def test_where_nothing_can_be_measured_a_head_is_read_as_is_likeliest(
    folder: Path,
    tmp_path: Path,
    lacks: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = 64 if lacks == "room" else 4096
    context = 16 if lacks == "context" else None
    spec = ModelSpec(str(folder), threads=1, kv_capacity_tokens=room, max_context=context)
    target = NativeEngine.load(spec)
    if lacks == "states":
        monkeypatch.setattr(NativeEngine, "capabilities", frozenset())
    if lacks == "layers":
        monkeypatch.setattr(native, "stack_path", _no_stack)
    if lacks == "tokenizer":
        target.bundle = None
    made = make(shape={"hidden_size": WIDTH, "num_attention_heads": 4})
    head = load(saved(made, tmp_path / "head", kit.save_specforge, (2, 5, 7)), folder)
    settle(head, target, FLOOR)
    assert head.layers == (2, 5, 7)
    assert "was not measured" in caplog.text
    assert target.kv_tokens_used == head.kv_tokens_used == 0


def test_a_template_that_loses_the_users_words_is_no_hindrance(tmp_path: Path) -> None:
    other = tiny_model_folder(tmp_path, num_hidden_layers=DEPTH)
    config = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "hello"}))
    (other / "chat_template.jinja").write_text("hello")
    odd = NativeEngine.load(ModelSpec(str(other), threads=1, kv_capacity_tokens=4096))
    prompts = measuring._prompts(odd)
    assert len({tuple(prompt) for prompt in prompts}) == len(QUESTIONS)
