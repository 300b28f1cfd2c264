"""How often a draft model agrees with its target."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from bench.agreement import chosen, measure, parser, show
from services.training.head.head import fresh_head, shape_of
from services.training.head.stored import save_head
from services.training.target import read_target
from tests.models import tiny_model_folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of a target and of a stranger."""
    made = tmp_path_factory.mktemp("models")
    long = {"max_position_embeddings": 8192}
    return [str(tiny_model_folder(made, "llama", seed=seed, **long)) for seed in (0, 1)]


@pytest.fixture
def folder(folders):
    return folders[0]


def report(model, draft):
    asked = ["--model", model, "--draft", draft, "--dtype", "float32"]
    return measure(parser().parse_args([*asked, "--prompts", "13", "--tokens", "6"]))


def test_a_target_agrees_with_itself(folder):
    figures = report(folder, folder)
    assert set(figures["greedy"].values()) == {1.0}
    # All but the tail of the target's law, which is not kept.
    assert 0.9 < figures["acceptance"]["all"] < 1.0001


def test_a_stranger_hardly_agrees(folders):
    figures = report(*folders)
    assert figures["acceptance"]["all"] < 0.5
    assert figures["greedy"]["all"] < 0.5


def test_prompts_come_from_every_category():
    categories = [prompt.category for prompt in chosen(60)]
    assert len(categories) == 60
    assert {"translation", "summarization", "qa", "math_reasoning", "rag"} < set(categories)


def test_the_report_has_a_line_for_each_category(folder):
    figures = report(folder, folder)
    text = show(figures)
    assert all(name in text for name in figures["acceptance"])


def test_a_head_is_measured_step_by_step(folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False
    )
    ids = torch.arange(0, 320, 2)
    head = fresh_head(shape_of(model.config, (0, 1, 2), len(ids)), model, ids, seed=0)
    target = read_target(folder)
    save_head(head, ids, target, tmp_path / "head", storage="int8", drafted=3, card={})
    figures = report(folder, str(tmp_path / "head"))
    assert len(figures["steps"]["acceptance"]) == len(figures["steps"]["greedy"]) == 3
    assert 0.0 < figures["acceptance"]["all"] < 0.5
    assert "step 3" in show(figures)
