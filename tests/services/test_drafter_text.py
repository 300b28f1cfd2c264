"""The text drafter: two vocabularies, what stays of a draft, and any text at all."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.contract.errors import StartError
from services.contract.types import LATER_FORMATS
from services.drafter.methods.text.coder import Coder, settled, whole
from services.drafter.methods.text.text import TextDrafter
from services.drafter.methods.text.written import WINDOW, Languages, Written
from tests.services.drafter_kit import EXACT, SAMPLED
from tests.services.text_kit import (
    OTHER,
    SENTENCE,
    Teller,
    Texts,
    byte_level,
    coder,
    lower_case,
    sentence_piece,
)
from tests.tries import tries

VOCABULARIES = {
    "bytes": byte_level(),
    "other bytes": byte_level(340, OTHER),
    "pieces": sentence_piece(),
    "plain pieces": sentence_piece(OTHER, prepend=False),
    "lower case": lower_case(),
}
SPELLING = [name for name in VOCABULARIES if name != "lower case"]
PAIRS = [("bytes", "other bytes"), ("pieces", "bytes"), ("other bytes", "pieces")]
HOSTILE = [
    "",
    " ",
    " " * 500,
    "\n \t\n  x",
    "a" * 700,
    "👩‍👩‍👧‍👦 e\u0301 \ufeff\u2028",
    "<|end|><|start|></s><unk><0x0A>",
    "日本語の長い文には空白がない" * 20,
    "\x00\x01\x7f",
]


def languages(target: str, draft: str) -> Languages:
    return Languages(coder(VOCABULARIES[target]), coder(VOCABULARIES[draft]))


def caught_up(written: Written) -> Written:
    while not written.caught_up:
        before = len(written._said)
        written.catch_up()
        assert len(written._said) > before
    return written


def spelled(own: Coder, tokens) -> bytes:
    return b"".join(own.bytes_of(token) or b"" for token in tokens)


# --- one vocabulary ---------------------------------------------------------------


@pytest.mark.parametrize("name", SPELLING)
@pytest.mark.parametrize("text", HOSTILE)
def test_tokens_spell_the_text_and_are_never_marks(name, text):
    own = coder(VOCABULARIES[name])
    found = own.encode(text.encode())
    assert spelled(own, found.ids) == text.encode()
    assert all(own.bytes_of(token) is not None for token in found.ids)
    assert found.ends[-1:] == ([len(text.encode())] if text else [])


@tries(150)
@given(st.sampled_from(SPELLING), st.binary(max_size=40))
def test_any_bytes_are_encoded_one_by_one_where_they_are_no_text(name, data):
    own = coder(VOCABULARIES[name])
    found = own.encode(data)
    assert spelled(own, found.ids) == data
    at = 0
    for token, end in zip(found.ids, found.ends, strict=True):
        at += len(own.bytes_of(token))
        assert at == end


def test_a_rewritten_text_ends_with_its_last_token():
    own = coder(lower_case())
    found = own.encode(b"The SMALL drafter")
    assert spelled(own, found.ids) == b"the small drafter"
    assert set(found.ends) == {17}


def test_no_space_is_put_before_a_text_in_the_middle():
    own = coder(sentence_piece())
    for text in ("erify", " verify", "\nverify", ".", "x"):
        assert spelled(own, own.encode(text.encode()).ids) == text.encode()


def test_a_vocabulary_of_words_is_refused():
    from tokenizers import Tokenizer, decoders, models

    from tests.services.text_kit import bundle

    words = Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1, "e": 2}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    with pytest.raises(StartError, match="do not stand for bytes"):
        coder(bundle(words, "e"))


def test_a_last_word_or_gap_may_go_on():
    for text, last in (("the cat", 3), ("the cat ", 7), ("cat.", 3), ("a\n\n", 1), ("", 0)):
        assert settled(text.encode()) == last
    assert settled(b"x" * 100) == 36


def test_an_unfinished_character_is_not_whole():
    data = "né 日🎈".encode()
    ends = [len("né 日🎈"[:count].encode()) for count in range(6)]
    for size in range(len(data) + 1):
        assert whole(data[:size]) == max(end for end in ends if end <= size)
    assert whole(b"ab\xff") == 3
    assert whole(b"\xa5\xa5\xa5\xa5") == 4


# --- the text in two vocabularies ---------------------------------------------------


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_text_that_the_draft_wrote_stays_in_its_tokens(target, draft):
    own = languages(target, draft)
    written = Written(own)
    written.extend(own.target.encode(b"the small").ids)
    caught_up(written)
    for token in own.draft.encode(b" drafter rides ahead ").ids:
        written.append(token, own.draft.bytes_of(token))
    before = list(written.ids)
    written.unchanged = len(before)
    tokens = written.drafted()
    assert spelled(own.target, tokens) in (b" drafter rides", b" drafter rides ahead")
    written.extend(tokens)
    assert written.ids == before
    assert written.unchanged == len(before)
    assert (b"ahead" in written.ahead) == (b"ahead" not in spelled(own.target, tokens))


def test_only_what_differs_is_encoded_anew():
    own = languages("bytes", "other bytes")
    written = Written(own)
    written.extend(own.target.encode(b"the small drafter ").ids)
    caught_up(written)
    for token in own.draft.encode(b"drafting in words").ids:
        written.append(token, own.draft.bytes_of(token))
    kept = len(own.draft.encode(b"the small drafter drafting").ids)
    written.unchanged = len(written.ids)
    written.extend(own.target.encode(b"drafting is more").ids)
    assert kept - 1 <= written.unchanged < len(written.ids) + 2
    assert caught_up(written).ids == own.draft.encode(b"the small drafter drafting is more").ids


def test_a_word_that_goes_on_is_joined():
    """The target's token ends in the middle of what is one token for the draft."""
    own = languages("bytes", "other bytes")
    written = Written(own)
    for part in (b"a straw", b"berry is"):
        written.extend(own.target.encode(part).ids)
        caught_up(written)
    assert written.ids == own.draft.encode(b"a strawberry is").ids


def test_a_merge_over_the_end_of_the_text_is_no_draft_of_other_text():
    own = languages("other bytes", "bytes")
    written = Written(own)
    written.extend(own.target.encode(b"a straw").ids)
    caught_up(written)
    for token in own.draft.encode(b"berry is more").ids:
        written.append(token, own.draft.bytes_of(token))
    assert spelled(own.target, written.drafted()) == b"berry is"


def test_marks_pass_by_name_or_as_the_end_or_not_at_all():
    own = languages("bytes", "other bytes")
    start, end = own.target.mark("<|start|>"), own.target.mark("<|end|>")
    assert own.mark(end) == own.draft.mark("<|end|>")
    assert own.mark(start) == own.draft.mark("<|start|>")
    other = languages("bytes", "pieces")
    assert other.mark(end) == other.draft.mark("</s>")
    assert other.mark(start) is None
    written = Written(other)
    written.extend([start, *other.target.encode(b"the<|end|> ").ids, end, end, start])
    marks = [token for token in caught_up(written).ids if other.draft.bytes_of(token) is None]
    assert marks == [other.draft.mark("</s>")] * 2
    assert spelled(other.draft, written.ids) == b"the<|end|> "


def test_a_draft_never_says_a_mark_as_text():
    own = languages("bytes", "pieces")
    written = Written(own)
    written.extend(own.target.encode(b"the").ids)
    caught_up(written)
    for token in own.draft.encode(b" <|end|><|start|> now").ids:
        written.append(token, own.draft.bytes_of(token))
    drafted = written.drafted(ended=True)
    assert spelled(own.target, drafted) == b" <|end|><|start|> now"


def test_a_long_text_is_encoded_by_windows():
    own = languages("bytes", "other bytes")
    written = Written(own)
    text = (SENTENCE * 100).encode()
    written.extend(own.target.encode(text).ids)
    sizes = []
    while not written.caught_up:
        before = len(written._said)
        written.catch_up()
        sizes.append(len(written._said) - before)
    assert max(sizes) <= WINDOW
    assert len(sizes) < len(text) / WINDOW + 2
    assert spelled(own.draft, written.ids) == text


def test_what_the_tokenizer_rewrites_is_not_encoded_for_ever(monkeypatch):
    own = languages("bytes", "lower case")
    written, encode, sizes = Written(own), own.draft.encode, []

    def counted(data):
        sizes.append(len(data))
        return encode(data)

    monkeypatch.setattr(own.draft, "encode", counted)
    for part in ("A small word. ", *["and the next word "] * 300):
        written.extend(own.target.encode(part.encode()).ids)
        caught_up(written)
    assert max(sizes) < 400
    assert spelled(own.draft, written.ids).endswith(b"and the next word " * 100)


def test_a_byte_that_looks_like_a_mark_is_none():
    own = languages("bytes", "other bytes")
    start = own.target.mark("<|start|>")
    written = Written(own)
    odd = own.target.encode(b"\xff").ids
    for tokens in ([start], odd, odd, own.target.encode(b"the").ids):
        written.extend(tokens)
        caught_up(written)
    assert written.ids[0] == own.draft.mark("<|start|>")
    assert spelled(own.draft, written.ids) == b"\xff\xffthe"


def test_a_text_of_many_marks_enters_in_few_steps():
    texts = Texts(byte_level(), byte_level(340, OTHER), step_tokens=512, context=4_000)
    turn = [texts.target.mark("<|start|>"), *texts.encode("the"), *texts.target.ends]
    texts.open("s", turn * 100, vocab_size=texts.target.size)
    texts.core.step()
    texts.core.step()
    assert texts.state.cache.length > 300
    texts.check()


PIECES = st.one_of(
    st.sampled_from(
        [" the", "small", " draft", "er", "日", "é", "  ", "\n", "straw", "berry", "."]
    ),
    st.text(max_size=6),
)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("text"), PIECES),
        st.tuples(st.just("token"), st.integers(0, 10_000)),
        st.tuples(st.just("draft"), st.integers(0, 10_000)),
        st.tuples(st.just("say"), PIECES),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("rewind"), st.integers(0, 6)),
    ),
    max_size=25,
)


@tries(300)
@given(st.sampled_from(sorted(VOCABULARIES)), st.sampled_from(sorted(VOCABULARIES)), MOVES)
def test_whatever_happens_both_texts_are_one(target, draft, moves):
    """Random tokens on both sides, lone bytes and marks too, and texts that go back."""
    own = languages(target, draft)
    written, tokens, fed = Written(own), [], []
    for what, value in moves:
        match what:
            case "text" | "token":
                more = [value % own.target.size] if what == "token" else []
                tokens += more or own.target.encode(value.encode()).ids
            case "draft" | "say":
                more = [value % own.draft.size] if what == "draft" else []
                for token in more or own.draft.encode(value.encode()).ids:
                    if said := own.draft.bytes_of(token):
                        written.append(token, said)
            case "take":
                tokens += written.drafted()[:value]
            case "rewind":
                del tokens[max(0, len(tokens) - value) :]
                written.rewind(len(tokens))
        written.extend(tokens[len(written) :])
        caught_up(written)
        assert written._tokens == tokens
        assert bytes(written._said[: len(written._data)]) == bytes(written._data)
        assert written._ends == sorted(written._ends)
        assert len(written._ends) == len(written.ids)
        assert written.ids[: written.unchanged] == fed[: written.unchanged]
        fed, written.unchanged = list(written.ids), len(written.ids)
        assert all(own.target.bytes_of(token) is not None for token in written.drafted())
        if "lower case" not in (target, draft):
            plain = spelled(own.draft, written.ids)
            assert plain == bytes(
                byte for at, byte in enumerate(written._said) if at not in written._marks
            )


# --- sessions -------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@pytest.mark.parametrize("mode", [*EXACT, *SAMPLED])
def test_what_the_draft_model_says_is_drafted_in_the_targets_tokens(target, draft, mode):
    texts = Texts(VOCABULARIES[target], VOCABULARIES[draft])
    texts.begin("the small dra", window=12, mode=mode)
    assert SENTENCE[len("the small dra") :].startswith(texts.said())
    assert texts.session.tail_length == 12
    texts.check()


def test_drafts_carry_no_distribution_and_are_chains():
    texts = Texts(byte_level(), byte_level(340, OTHER))
    texts.begin("the small dra", num_candidates=4, mode=t.VerifyMode.STANDARD)
    drafts = texts.run()
    assert drafts
    for draft in drafts:
        assert draft.tree.proposal is t.Proposal.ONE_HOT
        assert draft.tree.q is None
        assert draft.tree.parents is None


def test_it_runs_ahead_and_goes_on_from_where_the_target_agrees():
    texts = Texts(byte_level(), byte_level(340, OTHER))
    texts.begin("the small dra", window=8)
    said = texts.said()
    fed = _fed(texts.engine)
    tail = texts.session.text[texts.session.prompt_length :]
    texts.say("s", 0, tail[:5])
    more = texts.said()
    assert SENTENCE[len("the small dra") :].startswith(texts.spell(tail[:5]) + more)
    assert len(texts.spell(tail[:5]) + more) > len(said)
    again = _fed(texts.engine) - fed
    assert again <= len(coder(byte_level(340, OTHER)).encode(more.encode()).ids) + 3
    texts.check()


def test_it_goes_elsewhere_with_the_target():
    story = SENTENCE + "a strawberry is a berry"
    texts = Texts(byte_level(), byte_level(340, OTHER), story)
    texts.begin("the small dra", window=8)
    texts.run()
    texts.say("s", 0, texts.encode("fter: a straw"))
    assert "berry is a berry".startswith(texts.said())
    assert texts.session.tail_length > 2
    texts.check()


@pytest.mark.parametrize(
    ("stops", "least", "said"), [(True, 0, "<|end|>"), (False, 0, ""), (True, 40, "")]
)
def test_the_draft_models_end_is_the_targets_where_it_may_come(stops, least, said):
    texts = Texts(byte_level(), sentence_piece(), story="the small drafter rides")
    (end,) = texts.target.ends
    last = (end,) if stops else ()
    texts.begin("the small dra", window=30, stop_token_ids=last, min_tokens=least)
    assert texts.said() == "fter rides" + said
    texts.check()


def test_only_tokens_of_the_target_are_drafted():
    texts = Texts(byte_level(), byte_level(340, OTHER))
    first = texts.encode(" drafter")[0]
    texts.begin("the small", window=6, vocab_size=first)
    assert all(token < first for token in texts.session.text[texts.session.prompt_length :])
    texts.check()


def test_a_text_longer_than_the_draft_models_context_is_not_drafted():
    texts = Texts(byte_level(), byte_level(340, OTHER), context=20)
    texts.begin(SENTENCE * 3)
    assert texts.said() == ""
    assert not texts.gone


def test_kv_grows_where_the_draft_has_more_tokens_and_drafting_rests_where_it_cannot():
    target, draft = byte_level(500, SENTENCE * 2), byte_level(258)
    for capacity in (400, 90):
        texts = Texts(target, draft, capacity=capacity)
        texts.begin(SENTENCE[:60], window=12, max_tokens=12)
        said = texts.said()
        assert SENTENCE[60:].startswith(said)
        assert not texts.gone
        assert texts.engine.budget.used <= capacity
        assert (len(said) > 5) == (capacity == 400)


def test_prompts_enter_in_chunks_beside_sessions_that_draft():
    texts = Texts(byte_level(), byte_level(340, OTHER), step_tokens=16)
    texts.begin(SENTENCE * 2 + "the small dra")
    assert SENTENCE[len("the small dra") :].startswith(texts.said())
    assert max(sum(sizes) for sizes in texts.engine.forwards) <= 16


@pytest.mark.parametrize("prompt", [*HOSTILE[1:], "▁ ▁▁"])
@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_any_prompt_is_drafted_for_or_left_alone(target, draft, prompt):
    texts = Texts(VOCABULARIES[target], VOCABULARIES[draft], capacity=10_000, context=4_000)
    texts.begin(prompt)
    texts.run()
    texts.check()


def test_a_prompt_of_marks_alone_has_a_beginning():
    texts = Texts(byte_level(), sentence_piece())
    start = texts.target.mark("<|start|>")
    texts.open("s", [start] * 3, vocab_size=texts.target.size)
    texts.run()
    texts.check()


@pytest.mark.parametrize("seed", range(12))
def test_the_text_is_the_targets_whatever_is_drafted(seed):
    """Random targets write lone bytes, gaps and marks; the draft model guesses at them."""
    random = Random(seed)
    names = sorted(VOCABULARIES)
    target, draft = (VOCABULARIES[random.choice(names)] for _ in range(2))
    texts = Texts(target, draft, capacity=5_000, context=2_000)
    plain = [
        random.choice(texts.encode(SENTENCE))
        if random.random() < 0.7
        else random.randrange(texts.target.size)
        for _ in range(60)
    ]
    texts.begin(SENTENCE[: random.randrange(1, 60)], window=random.randrange(1, 9))
    base = 0
    while base < len(plain):
        texts.steps(random.randrange(5))
        texts.check()
        tail = texts.session.text[texts.session.prompt_length + base :]
        right = 0
        while (
            right < len(tail) and base + right < len(plain) and tail[right] == plain[base + right]
        ):
            right += 1
        texts.say("s", base, plain[base : base + right + 1])
        base += right + 1
        texts.check()
    assert texts.session.text[texts.session.prompt_length :][: len(plain)] == plain


def test_a_draft_model_without_a_tokenizer_is_refused():
    engine = Teller(byte_level(), SENTENCE)
    engine.bundle = None
    with pytest.raises(StartError, match="no tokenizer"):
        TextDrafter(engine, byte_level())


def test_a_worker_is_bound_to_the_targets_tokenizer():
    texts = Texts(byte_level(), sentence_piece())
    described = texts.core.describe()
    assert described.tokenizer_fingerprint == byte_level().fingerprint
    assert described.model == "fake"
    assert described.capabilities == LATER_FORMATS


def _fed(engine: Teller) -> int:
    """Tokens that entered K/V so far."""
    return sum(sum(sizes) for sizes in engine.forwards)
