"""The models that come with Paceline: found by name, or said to be missing."""

from pathlib import Path

import pytest

from services.contract.errors import StartError
from services.engine.checkpoint import shipped
from services.engine.checkpoint.files import locate, locate_lookahead
from services.engine.checkpoint.heads import is_head
from services.engine.ngram_file import load_ngrams, ngrams_path

KINDS = {
    "heads": ("smollm2-135m-instruct-eagle", locate),
    "ngrams": ("smollm2-135m-instruct-ngrams", ngrams_path),
    "embeddings": ("smollm2-135m-instruct-lookahead", locate_lookahead),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_stands_for_what_comes_with_paceline_in_any_case(kind: str) -> None:
    name, found = KINDS[kind]
    path = found(name)
    assert path.exists()
    assert path.is_relative_to(shipped.MODELS / kind)
    assert found(name.upper()) == path


def test_each_model_is_found_by_one_kind() -> None:
    names = {kind: [n for n in shipped.SHIPPED if shipped.is_shipped(kind, n)] for kind in KINDS}
    assert names == {kind: [name] for kind, (name, _) in KINDS.items()}
    assert len(load_ngrams(ngrams_path(KINDS["ngrams"][0])).laws) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_installed_says_so_and_how_to_mend_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "MODELS", tmp_path)
    name, found = KINDS[kind]
    with pytest.raises(StartError, match=f"model {name}: not installed.*paceline-models"):
        found(name)
    assert is_head(name) == (kind == "heads")


def test_a_path_is_a_path_whatever_it_is_called(tmp_path: Path) -> None:
    assert ngrams_path(str(tmp_path / "smollm2-135m-instruct-ngrams")).parent == tmp_path
