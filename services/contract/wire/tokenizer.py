"""The tokenizer bundle, which travels serialized and cut into parts."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator

from google.protobuf.message import DecodeError
from paceline.by_name import read, write
from paceline.v1 import types_pb2 as pb

from services.contract.errors import ProtocolError
from services.contract.types import TokenizerBundle
from services.contract.wire.records import require_name

PART_BYTES = 1 << 20
MOST_BYTES = 256 << 20
"""Several times the largest tokenizers there are."""


def split_bundle(bundle: TokenizerBundle) -> Iterator[bytes]:
    """Parts of at most 1 MiB, in order."""
    named = {
        name: [write(pb.NamedText, one) for one in getattr(bundle, name)]
        for name in ("special_tokens", "chat_templates")
    }
    data = write(pb.TokenizerBundle, bundle, **named).SerializeToString()
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


async def gather_parts(parts: AsyncIterable[bytes]) -> list[bytes]:
    """All parts of a bundle; raises ProtocolError when they grow too large."""
    gathered: list[bytes] = []
    size = 0
    async for part in parts:
        size += len(part)
        if size > MOST_BYTES:
            raise ProtocolError(f"the tokenizer is larger than {MOST_BYTES} bytes")
        gathered.append(part)
    return gathered


def join_bundle(parts: Iterable[bytes]) -> TokenizerBundle:
    """The bundle whose parts these are."""
    try:
        message = pb.TokenizerBundle.FromString(b"".join(parts))
    except DecodeError as error:
        raise ProtocolError("the parts of the tokenizer do not fit together") from error
    if not message.tokenizer_json:
        raise ProtocolError("tokenizer.tokenizer_json is empty")
    fingerprint = require_name(message.fingerprint, "tokenizer.fingerprint")
    return read(TokenizerBundle, message, fingerprint=fingerprint)
