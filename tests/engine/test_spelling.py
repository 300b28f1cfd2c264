"""Formats for tokenizers that read a text otherwise than it is written."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from services.contract.types import FormatKind, ResponseFormat
from services.engine.structure import StructureError, Structures
from tests.orchestrator.text_kit import EOS, bundle, byte_level_backend, numbered

ACCENT = "cafe\u0301"
FORMATS = [
    ResponseFormat(FormatKind.CHOICE, (ACCENT,)),
    ResponseFormat(FormatKind.CHOICE, ("The LAW \ufb01 ", "The LAW  fi")),
    ResponseFormat(FormatKind.REGEX, (f"x  {ACCENT.upper()}x ",)),
    ResponseFormat(FormatKind.JSON_SCHEMA, (json.dumps({"const": f" {ACCENT}  X"}),)),
]
READERS: dict[str, Any] = {
    "nfc": normalizers.NFC(),
    "nfkc": normalizers.NFKC(),
    "lowercase": normalizers.Lowercase(),
    "no accents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    "strip": normalizers.Strip(),
    "replace": normalizers.Replace("x", "y"),
}


def byte_level(**parts: Any) -> Tokenizer:
    backend = byte_level_backend()
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


def of_blanks(*before: Any) -> Tokenizer:
    """As Llama 2 has it: spaces are written as blanks, other characters as bytes."""
    words = ["<unk>", EOS, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "f", "\xe9"]
    model = models.BPE(numbered(words), [], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    backend = Tokenizer(model)
    backend.add_special_tokens(["<unk>", EOS])
    blanks = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    backend.normalizer = normalizers.Sequence([*before, *blanks])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps)
    return backend


TOKENIZERS = {name: byte_level(normalizer=one) for name, one in READERS.items()}
TOKENIZERS |= {
    "space in front": byte_level(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "blanks": of_blanks(),
    "blanks, nfkc": of_blanks(normalizers.NFKC()),
}
WHITE = pre_tokenizers.Split(" ", "removed")
LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
TOKENIZERS["words"] = byte_level(pre_tokenizer=pre_tokenizers.Sequence([WHITE, LEVEL]))


def said(backend: Tokenizer, wanted: ResponseFormat) -> str:
    """What the longest token that each mask allows makes of a format."""
    given = bundle(backend)
    matcher = Structures(given, backend.get_vocab_size()).matcher(wanted)
    tokens: list[int] = []
    while not tokens or tokens[-1] not in given.eos_token_ids:
        mask = matcher.mask(())
        assert mask is not None
        names = {int(i): backend.id_to_token(int(i)) for i in np.flatnonzero(mask)}
        tokens.append(max(names, key=lambda token: (len(names[token]), token)))
        assert matcher.extend(tokens[-1:]), "the mask allows what its parser does not"
    return backend.decode(tokens)


@pytest.mark.parametrize("wanted", FORMATS, ids=lambda one: one.kind)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_mask_allows_what_its_parser_does_in_any_form_of_the_text(name, wanted):
    text = said(TOKENIZERS[name], wanted)
    if wanted.kind is FormatKind.JSON_SCHEMA:
        assert json.loads(text) == json.loads(wanted.source[0])["const"]
    else:
        assert text in wanted.source


def test_an_option_that_a_model_has_no_tokens_for_is_refused_at_the_start():
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = LEVEL, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=40, special_tokens=[EOS], show_progress=False)
    backend.train_from_iterator(["the law"], trainer)
    structures = Structures(bundle(backend), backend.get_vocab_size())
    structures.matcher(ResponseFormat(FormatKind.CHOICE, ("the law",)))
    with pytest.raises(StructureError, match="no tokens for an option"):
        structures.matcher(ResponseFormat(FormatKind.CHOICE, ("the law", "the café")))
