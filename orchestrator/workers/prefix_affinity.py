"""Which verifier last computed a prefix, so that the next text with it finds its K/V there.

Texts are compared by whole chunks of 32 tokens: a chat's next turn shares those of the last
turn, and sessions with one system prompt share its chunks. Only this orchestrator's sessions
are known. An entry may be stale, when the verifier has dropped the K/V; then the text is
prefilled as any other.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain

CHUNK = 32
"""Tokens; shorter texts are prefilled faster than they are looked up."""
MOST_CHUNKS = 1 << 16
_DIGEST_BYTES = 16


class PrefixAffinity:
    """The verifier of each of the last `most` chunks; a chunk counts with its whole prefix."""

    def __init__(self, most: int = MOST_CHUNKS) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, str] = OrderedDict()

    def note(self, chunks: Sequence[bytes], worker: str) -> None:
        """`worker` computes the text of these chunks; its end is forgotten first."""
        for chunk in reversed(chunks):
            self._seen[chunk] = worker
            self._seen.move_to_end(chunk)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def find(self, chunks: Sequence[bytes]) -> str:
        """The worker that computed the longest prefix of the text; empty if none did."""
        found = ""
        for chunk in chunks:
            worker = self._seen.get(chunk)
            if worker is None:
                break
            found = worker
        return found


def chunks_of(scope: str, *parts: Sequence[int]) -> list[bytes]:
    """For each chunk a digest of scope and tokens up to its end; empty without a scope."""
    if not scope:
        return []
    text = list(chain(*parts))
    digest, chunks = blake2b(scope.encode(), digest_size=_DIGEST_BYTES), []
    for end in range(CHUNK, len(text) + 1, CHUNK):
        digest.update(array("Q", text[end - CHUNK : end]).tobytes())
        chunks.append(digest.digest())
    return chunks
