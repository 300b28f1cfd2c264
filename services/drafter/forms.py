"""The form that a session's output must have, as its drafter follows it.

A draft that leaves the form is never accepted, so it costs speed alone. Where the
form cannot be followed, for whatever reason, drafts are made as if there were none.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.common.engine.structure import Matcher, StructureError, Structures
from services.common.types import ResponseFormat


class TextForm:
    """Follows the text of one session; `matcher` is in front of its output."""

    def __init__(self, matcher: Matcher, prompt_length: int) -> None:
        self._matcher = matcher
        self._prompt_length = prompt_length

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the text stay."""
        kept = max(0, length - self._prompt_length)
        self._matcher.rewind(min(self._matcher.length, kept))

    def of(self, text: Sequence[int]) -> Matcher | None:
        """What may follow the whole text; None where the text itself is not of the form."""
        fresh = text[self._prompt_length + self._matcher.length :]
        return self._matcher if self._matcher.extend(fresh) else None


def form_of(
    wanted: ResponseFormat, prompt_length: int, structures: Structures | None
) -> TextForm | None:
    """The form that a session's drafts are to have; None: any."""
    if structures is None:
        return None
    try:
        return TextForm(structures.matcher(wanted, lenient=True), prompt_length)
    except StructureError:
        return None
