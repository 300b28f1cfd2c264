"""The form that a session's output must have, as its drafter follows it.

A draft that leaves the form is never accepted, so it costs speed alone. Where the
form cannot be followed, for whatever reason, drafts are made as if there were none.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.common.engine.structure import Mask, Matcher, StructureError, Structures
from services.common.types import OpenDraft


class TextForm:
    """Follows the text of one session; `matcher` is in front of its output."""

    def __init__(self, matcher: Matcher, prompt_length: int) -> None:
        self._matcher = _Lenient(matcher)
        self._prompt_length = prompt_length

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the text stay."""
        kept = max(0, length - self._prompt_length)
        self._matcher.rewind(min(self._matcher.length, kept))

    def of(self, text: Sequence[int]) -> Matcher | None:
        """What may follow the whole text; None where the text itself is not of the form."""
        fresh = text[self._prompt_length + self._matcher.length :]
        return self._matcher if self._matcher.extend(fresh) else None


class _Lenient(Matcher):
    """Allows everything where it cannot tell."""

    def __init__(self, matcher: Matcher) -> None:
        self.__dict__.update(vars(matcher))

    def mask(self, path: Sequence[int]) -> Mask | None:
        """As a `Matcher` does, and None where that fails."""
        try:
            return super().mask(path)
        except StructureError:
            return None


def form_of(opening: OpenDraft, structures: Structures | None) -> TextForm | None:
    """The form that a session's drafts are to have; None: any."""
    wanted = opening.sampling.response_format
    if wanted is None or structures is None:
        return None
    try:
        return TextForm(structures.matcher(wanted), len(opening.prompt))
    except StructureError:
        return None
