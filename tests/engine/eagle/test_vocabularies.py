"""Which tokens the columns of a head stand for, and vocabularies that are padded otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.contract.errors import StartError
from services.engine.port import Segment
from tests.engine.eagle import kit
from tests.engine.eagle.kit import make, states, tokens
from tests.engine.eagle.test_layout import MADE, load


@pytest.mark.parametrize("proof", [True, False])
def test_ids_may_be_said_as_they_are_where_that_is_sure(
    proof: bool, target: Path, tmp_path: Path
) -> None:
    """With t2d always; without it, where they cannot be distances."""
    ids = MADE.tensors["t2d"].nonzero().flatten()
    assert int(ids[-1]) + 39 >= 320
    tensors = MADE.tensors | {"d2t": ids}
    if not proof:
        del tensors["t2d"]
    engine = load(kit.save_speculators(kit.Made(MADE.shape, MADE.head, tensors), tmp_path), target)
    assert engine.head_ids is not None
    assert torch.equal(engine.head_ids, ids)


def test_what_t2d_marks_decides_between_two_tables_that_both_could_be(
    target: Path, tmp_path: Path
) -> None:
    said = torch.arange(40) * 2
    for ids in (said, said + torch.arange(40)):
        marked = torch.zeros(320, dtype=torch.bool).index_fill_(0, ids, True)
        tensors = MADE.tensors | {"d2t": said, "t2d": marked}
        folder = kit.save_speculators(kit.Made(MADE.shape, MADE.head, tensors), tmp_path)
        engine = load(folder, target)
        assert engine.head_ids is not None
        assert torch.equal(engine.head_ids, ids)


@pytest.mark.parametrize("rows", [316, 324])
@pytest.mark.parametrize("columns", [40, 0])
def test_vocabularies_may_be_padded_otherwise_than_the_targets(
    rows: int, columns: int, target: Path, tmp_path: Path
) -> None:
    shape = {"hidden_size": 64, "vocab_size": rows}
    made = make(shape=shape, draft_vocab_size=columns or rows)
    folder = kit.save_specforge(made, tmp_path / "head")
    engine = load(folder, target)
    assert engine.vocab_size == 320
    marked = made.tensors["t2d"].nonzero().flatten() if columns else torch.arange(rows)
    assert engine.head_ids is not None
    assert torch.equal(engine.head_ids, marked[marked < 320])
    cache = engine.new_cache(9)
    cache.anchor(0, states(5, made))
    [logits] = engine.forward([Segment(cache, [*tokens(4, vocab=300), 319, 318])])
    assert bool(logits.isfinite().all())
    reference, row = kit.Reference(made), None
    known = states(5, made)
    for position, token in enumerate(tokens(4, vocab=300)):
        state = known[position - 1] if position else None
        row = reference.compute(kit.Row(token, position, row, state))
    assert row is not None
    assert row.logits is not None
    wanted = row.logits.float()[marked < 320]
    torch.testing.assert_close(logits[3], wanted, atol=2e-4, rtol=1e-4)


def test_columns_of_padding_alone_are_refused(target: Path, tmp_path: Path) -> None:
    made = make(shape={"hidden_size": 64, "vocab_size": 324}, draft_vocab_size=2)
    made.tensors["d2t"] = torch.tensor([321, 321])
    del made.tensors["t2d"]
    with pytest.raises(StartError, match="stand for no token of its target"):
        load(kit.save_specforge(made, tmp_path / "head"), target)


def test_a_vocabulary_of_another_model_is_no_padding(target: Path, tmp_path: Path) -> None:
    made = make(shape={"hidden_size": 64, "vocab_size": 326})
    with pytest.raises(StartError, match="vocabulary of 326"):
        load(kit.save_specforge(made, tmp_path / "head"), target)
