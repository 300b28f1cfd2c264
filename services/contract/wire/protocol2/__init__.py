"""The links of protocol 2, between the generated classes and our own records.

As in protocol 1, encoding is total on valid records, and decoding raises only `ProtocolError`.
What a frame says of all its sessions is checked here, once; what concerns one session (whether it
is known, whether a text fits) is its reader's to say.

    checks    what makes a frame's columns sound
    frames    frames, grants and waiting sessions
    messages  what is said of single sessions
    links     one value per link
"""

from services.contract.wire.protocol2.links import DRAFTER_LINK_2, VERIFIER_LINK_2

__all__ = ["DRAFTER_LINK_2", "VERIFIER_LINK_2"]
