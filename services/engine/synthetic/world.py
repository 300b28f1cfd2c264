"""The token at every place of every output: a pure function of the prompt and the place.

A prompt that ends in the mark of `vocabulary` has a world of its own, told from others
by a checksum. Text without a mark is the one world 0, its first token at place 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.engine.synthetic.agreement import Agreement, mixed
from services.engine.synthetic.vocabulary import START_ID


@dataclass(frozen=True, slots=True)
class World:
    """What target and drafter say. `letters`: token ids to speak in, at least two."""

    letters: Sequence[int]
    agreement: Agreement

    def target(self, world: int, position: int) -> int:
        """The target's token at an output position, whatever stands before it."""
        return self.letters[self._index(world, position)]

    def draft(self, world: int, position: int, right: bool) -> int:
        """The drafter's; `right`: the output before it is the target's.

        Where they disagree, and after anything wrong, it is another token than the target's.
        """
        index = self._index(world, position)
        if right and self.agreement.at(world, position):
            return self.letters[index]
        others = len(self.letters) - 1
        step = 1 + mixed(world, position, 1) % others
        return self.letters[(index + step) % len(self.letters)]

    def _index(self, world: int, position: int) -> int:
        return mixed(world, position) % len(self.letters)


class Place(NamedTuple):
    """The end of a text: which world it is of, and what comes next there.

    `position`: of the next token in the output; `right`: what stands of the output is
    the target's; `digest`: of all tokens.
    """

    world: int = 0
    position: int = 0
    started: bool = False
    right: bool = True
    digest: int = 0

    def then(self, token: int, world: World) -> Place:
        """The place after one more token."""
        digest = zlib.crc32(token.to_bytes(4, "little"), self.digest)
        if token == START_ID:
            return Place(digest, 0, True, True, digest)
        # Without a mark nobody knows where the output begins, and so what is wrong in it.
        right = self.right and (
            not self.started or token == world.target(self.world, self.position)
        )
        return Place(self.world, self.position + 1, self.started, right, digest)
