"""What followed where a text's end stood before: against a search of the text."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.drafter.methods.ngram.text_index import (
    BORDER,
    LONGEST_MATCH,
    LONGEST_WALK,
    TextIndex,
    Votes,
)
from tests.tries import tries


def searched(text, context):
    """What followed the last 1, 2, 3 and 5 tokens, at the latest places of each walk."""
    found = []
    for least, walked in ((1, 1), (2, 2), (3, 2), (5, 2)):
        counts = Counter()
        places = [
            end
            for end in range(len(text) - 1, walked - 1, -1)
            if len(context) >= walked
            and text[end - walked : end] == context[-walked:]
            and text[end] != BORDER
        ][:LONGEST_WALK]
        for end in places:
            if len(context) >= least <= end and text[end - least : end] == context[-least:]:
                counts[text[end]] += 1
        found.append(counts)
    return found


def matched(text, context, most):
    """The most of the last tokens that stood before, and the latest place."""
    for count in range(min(most, len(context)), 0, -1):
        for end in range(len(text) - 1, count - 1, -1):
            if text[end - count : end] == context[-count:] and text[end] != BORDER:
                return count, end
    return 0, 0


@tries(300)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.lists(st.sampled_from([0, 1, 2, BORDER]), max_size=9)),
        min_size=1,
        max_size=7,
    ),
    st.lists(st.integers(0, 2), max_size=3),
)
def test_the_index_equals_a_search_of_the_text_after_any_rewinds(edits, path):
    index, text = TextIndex(), []
    for keep, tokens in edits:
        index.rewind(keep)
        text = text[:keep] + tokens
        index.extend(tokens)
        assert index.tokens == text
        context = (text + path)[-LONGEST_MATCH:]
        if not context or BORDER in context:
            continue
        assert [index.match(context, most) for most in (1, 4)] == [
            matched(text, context, most) for most in (1, 4)
        ]
        votes = Votes()
        index.vote(context, votes)
        expected = searched(text, context)
        assert [dict(counts) for counts in votes.counts] == [dict(c) for c in expected]
        assert votes.totals == [sum(counts.values()) for counts in expected]


def test_a_text_that_is_taken_back_leaves_nothing():
    index = TextIndex()
    index.extend(list(range(100)) * 3)
    index.rewind(0)
    assert not any(getattr(index, name) for name in TextIndex.__slots__)
