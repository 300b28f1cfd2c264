"""The served tokenizer as the ZIP archive that a gateway fetches when it has none of its own."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator

from smg_grpc_proto.generated import common_pb2 as common

from services.contract.types import TokenizerBundle

PART_BYTES = 64 * 1024
# The same archive for the same tokenizer, so that its digest says which one it is.
_MADE = (1980, 1, 1, 0, 0, 0)


def archive(bundle: TokenizerBundle) -> bytes:
    """The files that a model folder would have, without weights."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in _files(bundle).items():
            entry = zipfile.ZipInfo(name, _MADE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, content)
    return buffer.getvalue()


def chunks(data: bytes) -> Iterator[common.GetTokenizerChunk]:
    """The archive in parts; the last one tells its SHA-256."""
    digest = hashlib.sha256(data).hexdigest()
    for start in range(0, len(data), PART_BYTES):
        last = start + PART_BYTES >= len(data)
        part = data[start : start + PART_BYTES]
        yield common.GetTokenizerChunk(data=part, sha256=digest if last else "")


def _files(bundle: TokenizerBundle) -> dict[str, str]:
    config = {
        **{one.name: one.text for one in bundle.special_tokens},
        "bos_token": bundle.bos_token,
        "eos_token": bundle.eos_token,
        "chat_template": _template(bundle),
    }
    return {
        "tokenizer.json": bundle.tokenizer_json,
        "tokenizer_config.json": json.dumps({key: text for key, text in config.items() if text}),
        "generation_config.json": bundle.generation_config_json or "{}",
    }


def _template(bundle: TokenizerBundle) -> str:
    """One for conversations with and without tools: gateways read one."""
    named = {one.name: one.text for one in bundle.chat_templates}
    if (with_tools := named.get("tool_use")) is None:
        return bundle.chat_template
    # Between tags, blanks at the ends of a template would be trimmed, and a last newline kept.
    ends = "{{ '' }}"
    parts = [ends + one.removesuffix("\n") + ends for one in (with_tools, bundle.chat_template)]
    return "{% if tools %}" + "{% else %}".join(parts) + "{% endif %}"
