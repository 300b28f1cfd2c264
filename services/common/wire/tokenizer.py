"""The tokenizer bundle, which travels serialized and cut into parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError
from paceline.v1 import types_pb2 as pb

from services.common.errors import ProtocolError
from services.common.types import TokenizerBundle
from services.common.wire.records import require_name

PART_BYTES = 1 << 20


def split_bundle(bundle: TokenizerBundle) -> Iterator[bytes]:
    """Parts of at most 1 MiB, in order."""
    data = pb.TokenizerBundle(
        fingerprint=bundle.fingerprint,
        tokenizer_json=bundle.tokenizer_json,
        chat_template=bundle.chat_template,
        generation_config_json=bundle.generation_config_json,
        eos_token_ids=bundle.eos_token_ids,
        bos_token=bundle.bos_token,
        eos_token=bundle.eos_token,
    ).SerializeToString()
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


def join_bundle(parts: Iterable[bytes]) -> TokenizerBundle:
    """The bundle whose parts these are."""
    try:
        message = pb.TokenizerBundle.FromString(b"".join(parts))
    except DecodeError as error:
        raise ProtocolError("the parts of the tokenizer do not fit together") from error
    return TokenizerBundle(
        fingerprint=require_name(message.fingerprint, "tokenizer.fingerprint"),
        tokenizer_json=require_name(message.tokenizer_json, "tokenizer.tokenizer_json"),
        chat_template=message.chat_template,
        generation_config_json=message.generation_config_json,
        eos_token_ids=tuple(message.eos_token_ids),
        bos_token=message.bos_token,
        eos_token=message.eos_token,
    )
