"""Both directions between the generated classes and `services.contract.types`.

No other module touches a generated class of the links. Encoding is total on
valid records. Decoding checks shape (a member of every oneof, known enum values,
matching lengths, names that are present) and raises only `ProtocolError`; the
worker checks whether a well-formed command makes sense.

    records     what both links share
    drafter     commands and events of the drafter link
    verifier    commands and events of the verifier link
    step_times  what a verifier measured of its steps
    tokenizer   the tokenizer bundle, whole and in parts
    codecs      one value per link: how its messages are cut into batches
    protocol2   the same for protocol 2
"""

from services.contract.wire.codecs import (
    DRAFTER_LINK,
    MESSAGE_BYTES,
    VERIFIER_LINK,
    Codec,
    LinkCodec,
    in_messages,
)
from services.contract.wire.drafter import (
    decode_drafter_command,
    decode_drafter_event,
    encode_drafter_command,
    encode_drafter_event,
)
from services.contract.wire.records import (
    decode_description,
    decode_hello,
    encode_description,
    encode_hello,
    encode_progress,
)
from services.contract.wire.step_times import decode_step_times, encode_step_times
from services.contract.wire.tokenizer import gather_parts, join_bundle, split_bundle
from services.contract.wire.verifier import (
    decode_verifier_command,
    decode_verifier_event,
    encode_verifier_command,
    encode_verifier_event,
)

__all__ = [
    "DRAFTER_LINK",
    "MESSAGE_BYTES",
    "VERIFIER_LINK",
    "Codec",
    "LinkCodec",
    "decode_description",
    "decode_drafter_command",
    "decode_drafter_event",
    "decode_hello",
    "decode_step_times",
    "decode_verifier_command",
    "decode_verifier_event",
    "encode_description",
    "encode_drafter_command",
    "encode_drafter_event",
    "encode_hello",
    "encode_progress",
    "encode_step_times",
    "encode_verifier_command",
    "encode_verifier_event",
    "gather_parts",
    "in_messages",
    "join_bundle",
    "split_bundle",
]
