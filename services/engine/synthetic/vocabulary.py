"""A small tokenizer: one token a byte, and a mark where the output begins.

Conversations end in the mark, so an engine that sees a text knows which place of its
output comes next. The worlds speak in letters and blanks.
"""

from __future__ import annotations

import hashlib
import json

from services.contract.types import TokenizerBundle

START = "<|start|>"
END = "<|end|>"
START_ID, END_ID = 256, 257
VOCAB_SIZE = 1024
"""Of the engines. Wider than the tokenizer: rows of real width are sampled from another way."""

_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}" + START


def make_tokenizer() -> TokenizerBundle:
    """What orchestrators fetch; the same for targets and drafters."""
    text = _tokenizer_json()
    return TokenizerBundle(
        fingerprint=hashlib.sha256(text.encode()).hexdigest(),
        tokenizer_json=text,
        chat_template=_TEMPLATE,
        generation_config_json=json.dumps({"temperature": 0.0, "do_sample": False}),
        eos_token_ids=(END_ID,),
        eos_token=END,
    )


def letters() -> tuple[int, ...]:
    """Token ids of the letters and the blank."""
    ids = _byte_ids()
    return tuple(ids[written] for written in "abcdefghijklmnopqrstuvwxyzĠ")


def signs() -> tuple[int, ...]:
    """Those, and of capitals and digits: what is drawn from."""
    ids = _byte_ids()
    return letters() + tuple(ids[written] for written in "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def _byte_ids() -> dict[str, int]:
    """An id for each byte, in the printable alphabet of byte-level BPE."""
    from tokenizers.pre_tokenizers import ByteLevel

    return {written: index for index, written in enumerate(sorted(ByteLevel.alphabet()))}


def _tokenizer_json() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=_byte_ids(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([START, END])
    return str(tokenizer.to_str())
