"""Which verifier computed the beginning of a text lately, so that its K/V is looked for there.

A text counts by its whole chunks of 32 tokens: a chat's next turn has those of the last
one, and sessions of one system prompt have its own. Only this orchestrator's sessions are
known, and what is said here may be out of date: the verifier has dropped the K/V. Then
nothing is lost but the choice.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain

CHUNK = 32
"""Tokens; shorter texts are computed sooner than they are looked for."""
MOST_CHUNKS = 1 << 16
_DIGEST_BYTES = 16


class Texts:
    """The last `most` chunks, by all that is before them, and their verifiers."""

    def __init__(self, most: int = MOST_CHUNKS) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, str] = OrderedDict()

    def note(self, chunks: Sequence[bytes], worker: str) -> None:
        """`worker` computes the text of these chunks, the end of which is forgotten first."""
        for chunk in reversed(chunks):
            self._seen[chunk] = worker
            self._seen.move_to_end(chunk)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def find(self, chunks: Sequence[bytes]) -> str:
        """Who computed most of the text from its beginning on; empty if nobody did."""
        found = ""
        for chunk in chunks:
            worker = self._seen.get(chunk)
            if worker is None:
                break
            found = worker
        return found


def chunks_of(scope: str, *parts: Sequence[int]) -> list[bytes]:
    """A digest of the scope and of all tokens up to the end of each chunk; none without scope."""
    if not scope:
        return []
    text = list(chain(*parts))
    digest, chunks = blake2b(scope.encode(), digest_size=_DIGEST_BYTES), []
    for end in range(CHUNK, len(text) + 1, CHUNK):
        digest.update(array("Q", text[end - CHUNK : end]).tobytes())
        chunks.append(digest.digest())
    return chunks
