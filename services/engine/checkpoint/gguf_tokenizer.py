"""The tokenizer in a GGUF file, as the format's own project reads it: llama.cpp, llama-vocab.cpp.

A file has no `tokenizer.json`, but tokens, what kind each is of, and merges or scores. Three kinds
of vocabularies are known: `gpt2` (bytes, merged in words), `llama` and `gemma4` (SentencePiece).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from services.engine.checkpoint.gguf_file import GgufFile
from services.engine.checkpoint.gguf_splits import BEGINNING, DEFAULT, PATTERNS, WHOLE_WORDS

_log = logging.getLogger(__name__)
_BLANK = "▁"
_UNKNOWN, _CONTROL, _OF_USERS = 2, 3, 4
"""Kinds of tokens."""
_GEMMA = "gemma"
_LONGEST = 256
"""Letters of a piece of SentencePiece's whose merges are looked for: real ones have a tenth."""
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_ENDS = {"eot": "eot", "eom": "eom"}
"""Of a turn, and of a message that a turn goes on behind: both end an output."""
_TURN_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end_of_turn|>", "<turn|>"),
    *("<|END_OF_TURN_TOKEN|>", "<|end|>"),
)
_HARMONY = "<|return|>"
"""Ends outputs where `<|end|>` ends a message alone."""
_TEMPLATE = "tokenizer.chat_template"
_Merges = Sequence[tuple[str, str]]


def read_tokenizer(file: GgufFile) -> Any:
    """The tokenizer of a file that was read with its vocabulary, as transformers has them.

    Raises ValueError for one that is broken, or of a kind that is not read here.
    """
    from transformers import PreTrainedTokenizerFast

    said = {name: field.value for name, field in file.fields.items() if "tokenizer." in name}
    ggml = {name.removeprefix("tokenizer.ggml."): value for name, value in said.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=_made(ggml, file.architecture),
        chat_template=_templates(said),
        extra_special_tokens=_ends(ggml),
        **_settings(ggml),
    )


def _made(ggml: Mapping[str, Any], architecture: str) -> Tokenizer:
    for name in ("model", "tokens"):
        if not ggml.get(name):
            raise ValueError(f"it has no tokenizer.ggml.{name}")
    kind = ggml["model"]
    if kind == "gpt2":
        tokenizer = _of_bytes(ggml)
    elif kind in ("llama", "gemma4"):
        tokenizer = _of_pieces(ggml, gemma=architecture.startswith(_GEMMA))
    else:
        raise ValueError(f"tokenizers of the kind {kind} are not read here; llama.cpp reads them")
    _add(tokenizer, ggml)
    return tokenizer


def _of_bytes(ggml: Mapping[str, Any]) -> Tokenizer:
    pre = ggml.get("pre") or DEFAULT
    if pre not in PATTERNS or pre == DEFAULT:
        _log.warning("the file does not say how words are cut (tokenizer.ggml.pre is %s)", pre)
    vocabulary = _numbered(ggml["tokens"])
    merges = list(_stored(ggml.get("merges", ()), vocabulary))
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre in WHOLE_WORDS))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(
                pre_tokenizers.Split(Regex(pattern), "isolated")
                for pattern in PATTERNS.get(pre, PATTERNS[DEFAULT])
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _of_pieces(ggml: Mapping[str, Any], *, gemma: bool) -> Tokenizer:
    """SentencePiece's: a blank is a letter of its own, and a byte with no piece is a token."""
    tokens = [_BLANK * len(one) if one and not one.strip(" ") else one for one in ggml["tokens"]]
    prefix = ggml.get("add_space_prefix", not gemma)
    vocabulary = _numbered(tokens)
    if "merges" in ggml:
        merges: _Merges = list(_stored(ggml["merges"], vocabulary))
    else:
        # Gemma's pieces were merged in the order in which they are listed, whatever their scores.
        scores = range(0, -len(tokens), -1) if gemma else ggml.get("scores", ())
        merges = _recovered(vocabulary, dict(zip(tokens, scores, strict=False)))
    unknown = next(iter(_of_kind(ggml, _UNKNOWN)), None)
    model = BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    escape, first = normalizers.Replace(" ", _BLANK), normalizers.Prepend(_BLANK)
    tokenizer.normalizer = normalizers.Sequence([first, escape] if prefix else [escape])
    undone = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*undone, *([decoders.Strip(" ", 1)] if prefix else [])])
    return tokenizer


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token or f"[EMPTY_{index}]": index for index, token in enumerate(tokens)}


def _stored(merges: Sequence[str], vocabulary: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Those of a file; one that makes no token, or is made of none, merges nothing."""
    for merge in merges:
        # The first letter of a pair may be a blank.
        at = merge.find(" ", 1)
        left, right = merge[:at], merge[at + 1 :]
        if at > 0 and {left, right, left + right} <= vocabulary.keys():
            yield left, right


def _recovered(vocabulary: Mapping[str, int], scores: Mapping[str, float]) -> _Merges:
    """The pairs that make a piece, those of the best piece first."""
    found = [
        (score, at, len(piece) - at, -vocabulary[piece], piece)
        for piece, score in scores.items()
        if len(piece) <= _LONGEST
        for at in range(1, len(piece))
        if piece[:at] in vocabulary and piece[at:] in vocabulary
    ]
    return [(piece[:at], piece[at:]) for _, at, _, _, piece in sorted(found, reverse=True)]


def _add(tokenizer: Tokenizer, ggml: Mapping[str, Any]) -> None:
    """Tokens that are found whole in a text before anything else is."""
    for kind in (_CONTROL, _OF_USERS):
        special = kind == _CONTROL
        names = [one for one in _of_kind(ggml, kind) if tokenizer.token_to_id(one) is not None]
        added = [AddedToken(name, normalized=False, special=special) for name in names]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)


def _of_kind(ggml: Mapping[str, Any], wanted: int) -> Iterator[str]:
    kinds = zip(ggml["tokens"], ggml.get("token_type", ()), strict=False)
    return (token for token, kind in kinds if kind == wanted and token)


def _settings(ggml: Mapping[str, Any]) -> dict[str, Any]:
    """Which tokens are special, and what a text begins and ends with."""
    ids = {name: ggml.get(f"{stored}_token_id") for name, stored in _SPECIAL.items()}
    special = {f"{name}_token": ggml["tokens"][one] for name, one in ids.items() if one is not None}
    first = ggml.get("add_bos_token", ggml["model"] == "llama" or ggml.get("pre") in BEGINNING)
    # Templates of Gemma 4 write the first token themselves, and its own tokenizer adds none.
    first = first and "bos_token" in special and ggml["model"] != "gemma4"
    last = ggml.get("add_eos_token", False) and "eos_token" in special
    return {**special, "add_bos_token": first, "add_eos_token": last}


def _ends(ggml: Mapping[str, Any]) -> dict[str, str]:
    """What ends an output beside the end of a text, by the names of such tokens.

    Files made before there were settings for it say it by the token's text alone.
    """
    tokens = ggml["tokens"]
    ids = {name: ggml.get(f"{stored}_token_id") for name, stored in _ENDS.items()}
    found = {f"{name}_token": tokens[one] for name, one in ids.items() if one is not None}
    if "eot_token" not in found:
        control = set(_of_kind(ggml, _CONTROL))
        known = [one for one in _TURN_ENDS if one in control]
        if known and _HARMONY not in control:
            found["eot_token"] = known[0]
    return found


def _templates(said: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The chat template; where there are several, all by name."""
    named = {
        name.removeprefix(f"{_TEMPLATE}."): text
        for name, text in said.items()
        if name.startswith(f"{_TEMPLATE}.")
    }
    default: str | None = said.get(_TEMPLATE)
    return {"default": default or "", **named} if named else default
