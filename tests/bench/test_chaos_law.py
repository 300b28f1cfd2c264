"""Texts drawn through faults are told from texts of another law, known mistakes among them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from testkit.chaos.law import Models
from testkit.chaos.models import tiny_models
from testkit.chaos.transcript import Drawn
from tests.models import tiny_tokenizer

PROMPT = "the small drafter rides ahead"
TEMPERATURE = 0.8
TEXTS, TOKENS = 64, 80
Next = Callable[[torch.Tensor, torch.Tensor, torch.Generator], torch.Tensor]
"""The laws p and q of each text's next token [texts, V], and what is drawn [texts]."""


def lawful(p: torch.Tensor, q: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    """Leviathan et al., 2211.17192."""
    return _drafted(p, q, noise, (p - q).clamp(min=0))


def of_the_draft(p: torch.Tensor, q: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    return _draw(q, noise)


def without_the_residual(p: torch.Tensor, q: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    """A rejected draft is replaced by a sample of the target."""
    return _drafted(p, q, noise, p)


def drawn_twice(p: torch.Tensor, q: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    """As if a fault hid half of the tokens that the drafter did not propose, to be drawn anew."""
    first, second = _draw(p, noise), _draw(p, noise)
    unlikely = q.gather(-1, first[:, None])[:, 0] < p.gather(-1, first[:, None])[:, 0]
    hidden = torch.rand(len(p), generator=noise) < 0.5
    return torch.where(unlikely & hidden, second, first)


def _drafted(
    p: torch.Tensor, q: torch.Tensor, noise: torch.Generator, instead: torch.Tensor
) -> torch.Tensor:
    draft = _draw(q, noise)
    ratio = (p / q).gather(-1, draft[:, None])[:, 0]
    accepted = torch.rand(len(p), generator=noise) < ratio
    return torch.where(accepted, draft, _draw(instead, noise))


def _draw(law: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    return torch.multinomial(law, 1, generator=noise)[:, 0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return tiny_models(Path(tmp_path_factory.mktemp("models")))


def drawn(folders: tuple[str, str], step: Next, seed: int, temperature: float) -> list[Drawn]:
    """Texts of equal length, drawn side by side."""
    models = [
        AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False).eval()
        for folder in folders
    ]
    caches = [DynamicCache() for _ in models]
    noise = torch.Generator().manual_seed(seed)
    ids, drawn = torch.tensor([tiny_tokenizer().encode(PROMPT)] * TEXTS), []
    with torch.no_grad():
        for _ in range(TOKENS):
            p, q = (
                torch.softmax(model(ids, past_key_values=cache).logits[:, -1] / temperature, -1)
                for model, cache in zip(models, caches, strict=True)
            )
            drawn.append(step(p, q, noise))
            ids = drawn[-1][:, None]
    texts = torch.stack(drawn, dim=1).tolist()
    return [Drawn("standard", PROMPT, TEMPERATURE, tuple(text)) for text in texts]


@pytest.mark.parametrize("seed", range(2))
def test_lawful_texts_raise_no_alarm(folders, seed):
    [fit] = Models(*folders).fit(drawn(folders, lawful, seed, TEMPERATURE))
    assert fit.complaint == ""
    assert fit.p_value > 1e-3
    assert (fit.sessions, fit.tokens) == (TEXTS, TEXTS * TOKENS)


@pytest.mark.parametrize("step", [of_the_draft, without_the_residual, drawn_twice])
def test_texts_that_faults_or_mistakes_bent_are_seen(folders, step):
    [fit] = Models(*folders).fit(drawn(folders, step, 0, TEMPERATURE))
    assert "another distribution" in fit.complaint


def test_texts_of_another_temperature_are_seen_without_a_draft_model_too(folders):
    texts = drawn(folders, lawful, 0, 1.0)
    [fit] = Models(folders[0]).fit(texts)
    assert "another distribution" in fit.complaint


def test_each_rule_is_told_apart(folders):
    texts = drawn(folders, lawful, 0, TEMPERATURE)
    bent = [
        Drawn("block", one.prompt, one.temperature, one.token_ids)
        for one in drawn(folders, of_the_draft, 0, TEMPERATURE)
    ]
    block, standard = Models(*folders).fit([*texts, *bent])
    assert [block.rule, standard.rule] == ["block", "standard"]
    assert block.complaint.startswith(
        f"block: {TEXTS * TOKENS} tokens of another distribution, p = "
    )
    assert standard.complaint == ""
