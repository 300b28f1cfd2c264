"""A whole search on a tiny target: its files, its refusals, and one that was stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from services.contract.errors import StartError
from services.engine.checkpoint.files import weights_digest
from services.engine.skip_mask_file import mask_for, read_mask
from services.training.reporting import Stopped
from services.training.skip_mask.train import train_skip_mask
from tests.models import tiny_model_folder
from tests.training.kit import Quiet, StopsAt
from tests.training.skip_mask.kit import small


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("target"), num_hidden_layers=4)


def test_a_search_ends_with_a_mask_for_its_target_and_a_picture(target, tmp_path) -> None:
    options, reporter = small(target, tmp_path / "mask.json", command="paceline"), Quiet()
    result = train_skip_mask(options, reporter)
    content = read_mask(options.out)
    assert content.mask == result.mask == mask_for(options.out, str(target))
    assert content.weights == weights_digest(str(target))
    assert content.measured["trials"] == 5
    assert content.measured["cost"] == pytest.approx(result.figures.cost, abs=1e-3)
    assert content.measured["command"] == "paceline"
    assert b"<svg" in options.out.with_suffix(".svg").read_bytes()
    assert reporter.stages[0] == ("searching", 5, 0)
    assert reporter.done[4] == 5
    assert "x plain" in reporter.figures[4]


def test_a_search_that_was_stopped_goes_on_where_it_was(target: Path, tmp_path: Path) -> None:
    options = small(target, tmp_path / "mask.json")
    with pytest.raises(Stopped):
        train_skip_mask(options, StopsAt("searching", 2))
    assert not options.out.exists()
    assert options.journal_file.exists()
    reporter = Quiet()
    train_skip_mask(options, reporter)
    assert reporter.stages[0] == ("searching", 5, 2)
    assert options.out.exists()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"prompts": Path("/nowhere/p.txt")}, "--prompts: /nowhere/p.txt: No such file"),
        ({"out": Path("/nowhere/mask.json")}, "--out: /nowhere is no folder"),
        ({"target": "/nowhere/model"}, "no such file or folder"),
        ({"prompt_tokens": 508}, "--prompt-tokens: 508 leave no room"),
        ({"prompt_tokens": 3}, "--prompt-tokens: the target's chat template takes"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(target, tmp_path, changed, told) -> None:
    with pytest.raises(StartError, match=told) as caught:
        train_skip_mask(replace(small(target, tmp_path / "mask.json"), **changed), Quiet())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "mask.json.journal").exists()


def test_a_mask_that_is_there_is_never_replaced(target: Path, tmp_path: Path) -> None:
    (tmp_path / "mask.json").write_text("{}")
    with pytest.raises(StartError, match=r"mask\.json exists already"):
        train_skip_mask(small(target, tmp_path / "mask.json"), Quiet())


def test_a_journal_of_other_prompts_is_refused(target: Path, tmp_path: Path) -> None:
    options = small(target, tmp_path / "mask.json")
    with pytest.raises(Stopped):
        train_skip_mask(options, StopsAt("searching", 1))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Something else\n")
    with pytest.raises(StartError, match="another search: content of the prompts was"):
        train_skip_mask(small(target, tmp_path / "mask.json", prompts=prompts), Quiet())
