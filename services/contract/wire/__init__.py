"""Both directions between the generated classes and our own records.

No other module touches a generated class of the links. Encoding is total on
valid records. Decoding checks shape (a member of every oneof, known enum values,
what makes a frame's columns sound, names that are present) and raises only `ProtocolError`;
the worker checks whether a well-formed command makes sense.

    records     descriptions, sampling, progress: what is said of workers and openings
    checks      what makes a frame's columns sound
    frames      frames, grants and waiting sessions
    messages    what is said of single sessions
    step_times  what a verifier measured of its steps
    tokenizer   the tokenizer bundle, whole and in parts
    codecs      one value per link: how its messages are cut into batches
"""

from services.contract.wire.codecs import DRAFTER_LINK, MESSAGE_BYTES, VERIFIER_LINK, Codec
from services.contract.wire.records import (
    decode_description,
    decode_hello,
    encode_description,
    encode_hello,
    encode_progress,
)
from services.contract.wire.step_times import decode_step_times, encode_step_times
from services.contract.wire.tokenizer import gather_parts, join_bundle, split_bundle

__all__ = [
    "DRAFTER_LINK",
    "MESSAGE_BYTES",
    "VERIFIER_LINK",
    "Codec",
    "decode_description",
    "decode_hello",
    "decode_step_times",
    "encode_description",
    "encode_hello",
    "encode_progress",
    "encode_step_times",
    "gather_parts",
    "join_bundle",
    "split_bundle",
]
