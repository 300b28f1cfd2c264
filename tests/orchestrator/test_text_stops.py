"""The stop string automaton against plain searching."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.text.stops import ROOT, StopMatcher

WORDS = st.text(alphabet="abc", min_size=1, max_size=5)


@given(stops=st.lists(WORDS, min_size=1, max_size=5), text=st.text(alphabet="abcd", max_size=30))
def test_matches_and_held_ends_equal_a_plain_search(stops: list[str], text: str) -> None:
    matcher, node = StopMatcher(stops), ROOT
    for end, char in enumerate(text, 1):
        node = matcher.step(node, char)
        ends = [stop for stop in stops if text[:end].endswith(stop)]
        assert matcher.match(node) == max(ends, key=len, default="")
        proper = [stop[:n] for stop in stops for n in range(1, len(stop))]
        held = [part for part in proper if text[:end].endswith(part)]
        assert matcher.held(node) == max(map(len, held), default=0)
