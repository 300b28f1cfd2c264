"""Rows of floats as little-endian bytes, by the standard library alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from paceline.v1 import types_pb2 as pb

from services.contract.errors import ProtocolError

_WIDTH = {pb.D_TYPE_FLOAT32: 4, pb.D_TYPE_FLOAT16: 2, pb.D_TYPE_BFLOAT16: 2}


def encode_floats(values: Sequence[float]) -> bytes:
    """Float32 bytes of `values`."""
    return struct.pack(f"<{len(values)}f", *values)


def decode_floats(
    data: bytes, count: int, field: str, dtype: int = pb.D_TYPE_FLOAT32
) -> tuple[float, ...]:
    """`count` floats of `dtype` (a `DType` value). `field` names them in the error."""
    width = _WIDTH.get(dtype)  # type: ignore[call-overload]
    if width is None:
        raise ProtocolError(f"{field}: unknown dtype {dtype}")
    if len(data) != width * count:
        raise ProtocolError(f"{field}: {len(data)} bytes for {count} values of {width} bytes")
    if dtype == pb.D_TYPE_BFLOAT16:
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
    code = "e" if dtype == pb.D_TYPE_FLOAT16 else "f"
    return struct.unpack(f"<{count}{code}", data)
