"""The form that a session's output must have, as its drafter follows it.

A draft that leaves the form is never accepted, so it costs speed alone. Where the
form cannot be followed, for whatever reason, or is still being compiled, drafts are made
as if there were none.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.contract.errors import BusyError
from services.contract.types import FormatMarker, ResponseFormat
from services.engine.structure import Compiled, Matcher, StructureError, Structures
from services.grammar.spending import SLICE


class TextForm:
    """Follows the text of one session, once its form is compiled."""

    def __init__(
        self,
        compiled: Compiled,
        structures: Structures,
        prompt_length: int,
        start: FormatMarker | None = None,
    ) -> None:
        """`start`: where the form begins; None: with the output."""
        self._compiled: Compiled | None = compiled
        self._start = start
        self._structures = structures
        self._prompt_length = prompt_length
        self._matcher: Matcher | None = None
        """In front of the output at first."""

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the text stay."""
        if self._matcher is not None:
            kept = max(0, length - self._prompt_length)
            self._matcher.rewind(min(self._matcher.length, kept))

    def of(self, text: Sequence[int]) -> Matcher | None:
        """What may follow the whole text; None where that is anything, or the text is not of it.

        A long text is followed bit by bit, and drafted without its form meanwhile.
        """
        if self._compiled is not None and self._compiled.done:
            self._matcher, self._compiled = self._follow(self._compiled), None
        if self._matcher is None:
            return None
        if self._matcher.spending.over:
            self._matcher = None
            return None
        fresh = text[self._prompt_length + self._matcher.length :]
        if not self._matcher.advance(fresh, SLICE):
            return None
        whole = self._prompt_length + self._matcher.length == len(text)
        return self._matcher if whole else None

    def _follow(self, compiled: Compiled) -> Matcher | None:
        try:
            return self._structures.follow(compiled, self._start, lenient=True)
        except (StructureError, BusyError):
            return None


def form_of(
    wanted: ResponseFormat, prompt_length: int, structures: Structures | None, owner: str = ""
) -> TextForm | None:
    """The form that a session's drafts are to have; None: any. `owner`: whose turn it takes."""
    if structures is None:
        return None
    try:
        compiled = structures.compiled(wanted, owner)
        return TextForm(compiled, structures, prompt_length, wanted.start)
    except BusyError:
        return None
