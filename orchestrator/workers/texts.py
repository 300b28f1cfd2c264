"""Which verifier computed the beginning of a text lately, so that its K/V is looked for there.

A text counts by its whole chunks of 32 tokens: a chat's next turn has those of the last
one, and sessions of one system prompt have its own. Only this orchestrator's sessions are
known, and what is said here may be out of date: the verifier has dropped the K/V. Then
nothing is lost but the choice.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

CHUNK = 32
"""Tokens; shorter texts are computed sooner than they are looked for."""
MOST_CHUNKS = 1 << 16
_DIGEST_BYTES = 16


class Texts:
    """The last `most` chunks, by all that is before them, and their verifiers."""

    def __init__(self, most: int = MOST_CHUNKS) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, str] = OrderedDict()

    def note(self, scope: str, text: Sequence[int], worker: str) -> None:
        """`worker` computes the text; nothing is kept of a text without a scope.

        Of one text the end is forgotten first.
        """
        for chunk in reversed(list(_chunks(scope, text))):
            self._seen[chunk] = worker
            self._seen.move_to_end(chunk)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def find(self, scope: str, text: Sequence[int]) -> str:
        """Who computed most of the text from its beginning on; empty if nobody did."""
        found = ""
        for chunk in _chunks(scope, text):
            worker = self._seen.get(chunk)
            if worker is None:
                break
            found = worker
        return found


def _chunks(scope: str, text: Sequence[int]) -> Iterator[bytes]:
    """A digest of the scope and of all tokens up to the end of each chunk."""
    if not scope:
        return
    digest = blake2b(scope.encode(), digest_size=_DIGEST_BYTES)
    for end in range(CHUNK, len(text) + 1, CHUNK):
        digest.update(array("Q", text[end - CHUNK : end]).tobytes())
        yield digest.digest()
