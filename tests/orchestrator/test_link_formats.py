"""Response formats on their way to drafters: an older one is not sent what it cannot read."""

from __future__ import annotations

import pytest

from services.contract.types import (
    LATER_FORMATS,
    RESPONSE_FORMAT,
    RESPONSE_GRAMMAR,
    RESPONSE_START,
    FormatKind,
    FormatMarker,
    OpenDraft,
    ResolvedSampling,
    ResponseFormat,
    Role,
    VerifyMode,
    WorkerDescription,
)
from tests.orchestrator.test_link_states import link

START = FormatMarker(text="</think>")
PLAIN = ResponseFormat(FormatKind.REGEX, ("a",))
FORMATS = {
    (): None,
    (RESPONSE_FORMAT,): PLAIN,
    (RESPONSE_FORMAT, RESPONSE_GRAMMAR): ResponseFormat(FormatKind.GRAMMAR, ("start: /a/",)),
    (RESPONSE_FORMAT, RESPONSE_START): ResponseFormat(FormatKind.REGEX, ("a",), START),
    (RESPONSE_FORMAT, *LATER_FORMATS): ResponseFormat(FormatKind.STRUCTURAL_TAG, ("{}",), START),
}


@pytest.mark.parametrize(("needed", "wanted"), FORMATS.items(), ids=str)
async def test_an_older_drafter_is_told_of_no_format_that_it_does_not_know(needed, wanted) -> None:
    assert wanted is None or wanted.capabilities == needed
    for able in ((), (RESPONSE_GRAMMAR,), (RESPONSE_START,), LATER_FORMATS):
        made = link(0, [])
        made.description = WorkerDescription("d", Role.DRAFTER, capabilities=able)
        sampling = ResolvedSampling(response_format=wanted)
        made.send(OpenDraft("s", 1, (1,), (), VerifyMode.GREEDY, sampling, 0, 4))
        [sent] = made._outbox
        known = {*needed} <= {RESPONSE_FORMAT, *able}
        assert sent.sampling == (sampling if known else ResolvedSampling())
