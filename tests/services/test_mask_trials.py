"""The search for a skip mask on a drafter's sessions: on what text, and at which moments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.drafter.methods.self_draft.mask_search import SearchRules
from services.drafter.methods.self_draft.mask_trials import WINDOW, WINDOWS, window_of
from services.drafter.protocol import Ask
from services.engine.native import NativeEngine
from services.engine.skip_mask import every_second
from tests.services.skip_search_kit import (
    BAD,
    FREE,
    LAYERS,
    LONG,
    PROMPT,
    Searching,
    engine,
    own_text,
    read,
)

# --- the window -----------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(0, 400))
def test_the_window_is_the_last_whole_one_of_the_committed_output(prompt, said):
    text = list(range(prompt + said + 3))
    window = window_of(Ask((0, "s"), 1, text, prompt, prompt + said, room=1))
    if said < WINDOW + 1:
        assert window is None
        return
    assert len(window) == WINDOW
    assert window.start > prompt, "the first token is the whole model's own"
    assert window.stop <= prompt + said, "only what is committed"
    assert window.stop <= prompt + 1 + WINDOWS * WINDOW, "what a candidate reads is bounded"
    assert prompt + said - window.stop < WINDOW or said > WINDOWS * WINDOW


@pytest.mark.parametrize("mask", [BAD, FREE, every_second(LAYERS)])
def test_a_score_is_the_share_that_the_drafter_itself_would_get_right(mask):
    harness = Searching(mask)
    harness.begin(2 * WINDOW + 5)
    assert harness.core.step()
    text = [*PROMPT, *own_text()]
    first = len(PROMPT) + 1 + WINDOW
    given_by = read(text, mask)[first - 1 : first - 1 + WINDOW].argmax(-1).tolist()
    hits = [one == other for one, other in zip(given_by, text[first:], strict=False)]
    assert harness.search.score == pytest.approx(sum(hits) / WINDOW)


# --- whose moment it is ---------------------------------------------------------------


def test_one_mask_is_scored_in_a_moment_without_owed_drafts_and_none_in_others():
    harness = Searching()
    harness.open("s", PROMPT, output=own_text()[:40], sampling=LONG)
    while harness.core._due():
        harness.core.step()
        assert harness.search.score is None
    for number in range(4):
        assert harness.core.step()
        assert harness.search.candidates == number


def test_without_enough_text_it_rests():
    harness = Searching()
    assert not harness.core.step()
    harness.begin(WINDOW)
    assert not harness.core.step()
    harness.say("s", WINDOW, own_text()[WINDOW : WINDOW + 1])
    harness.draft_all()
    assert harness.core.step()
    harness.core.drop_link(0)
    assert not harness.core.step()


def test_a_search_that_is_over_rests_and_says_so_once(caplog):
    caplog.set_level("INFO")
    harness = Searching(rules=SearchRules(0.5, patience=3, enough=1.0))
    harness.begin(40)
    harness.run()
    assert harness.search.ended
    assert not harness.core.step()
    assert caplog.text.count("the search for a skip mask is over") == 1


def test_without_room_for_a_copy_it_rests_until_there_is_some():
    harness = Searching()
    harness.begin(40)
    cache = harness.cache_of()
    target = engine()
    rest = target.new_cache(target.kv_tokens_capacity - target.kv_tokens_used - cache.length + 1)
    assert not harness.core.step()
    assert harness.search.score is None
    rest.free()
    assert harness.core.step()
    assert harness.search.score is not None


def test_an_error_ends_the_search_and_nothing_else(monkeypatch, caplog):
    harness = Searching()
    harness.begin(40)
    used = engine().kv_tokens_used
    with monkeypatch.context() as patched:
        patched.setattr(NativeEngine, "forward", lambda *_: 1 / 0)
        assert harness.core.step()
    assert "the search for a skip mask failed and is over" in caplog.text
    assert engine().kv_tokens_used == used
    assert not harness.core.step()
    harness.say("s", 40, own_text()[40:41])
    assert harness.draft_all()


def test_the_newest_session_with_a_window_is_the_one():
    harness = Searching()
    harness.begin(40, "old")
    harness.begin(8, "new")
    seen = []
    harness.drafter._trials._try = lambda ask, cache: seen.append((ask.key[1], cache))
    harness.core.step()
    harness.say("new", 8, own_text()[8:WINDOW])
    harness.say("new", WINDOW, own_text()[WINDOW : WINDOW + 1])
    harness.draft_all("new")
    harness.core.step()
    assert [session for session, _ in seen] == [harness.handle(own) for own in ("old", "new")]
    assert seen[1][1] is harness.cache_of("new")


def test_text_that_the_model_cannot_read_is_not_scored_on():
    for place, scored in ((20, False), (WINDOW + 1, True)):
        harness = Searching()
        harness.begin(4, vocab_size=6000)
        text = list(own_text()[4:40])
        text[place - 4] = engine().vocab_size
        harness.say("s", 4, text)
        harness.draft_all()
        assert harness.core.step() == scored, "behind the window it does not matter"
