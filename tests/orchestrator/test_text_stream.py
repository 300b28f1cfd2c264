"""Text that grows token by token: the same text as decoding all at once, in any chunks."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.text import TextStream, Tokenizer
from tests.orchestrator.text_kit import BACKENDS, tokenizer

BYTE_TOKENS = range(3, 259)


def token_lists(name: str) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, tokenizer(name).vocab_size + 2), max_size=24)


def whole_characters(name: str) -> st.SearchStrategy[list[int]]:
    """Tokens whose runs of bytes are valid UTF-8, as a model writes them."""
    other = [i for i in range(tokenizer(name).vocab_size) if i not in BYTE_TOKENS]
    piece = st.one_of(
        st.sampled_from(other).map(lambda token: [token]),
        st.characters(codec="utf-8").map(lambda c: [3 + byte for byte in c.encode()]),
    )
    return st.lists(piece, max_size=12).map(lambda pieces: [*chain(*pieces)])


def spell(tok: Tokenizer, text: str) -> list[int]:
    return list(tok.encode(text, add_special_tokens=False))


def spell_bytes(tok: Tokenizer, text: str) -> list[int]:
    """One byte-level token for each byte."""
    ids = {tok.vocabulary.token_bytes(i): i for i in reversed(range(tok.vocab_size))}
    return [ids[bytes([byte])] for byte in text.encode()]


def streamed(tok: Tokenizer, tokens: list[int], skip: bool = True) -> TextStream:
    stream = TextStream(tok, skip_special_tokens=skip)
    stream.append(tokens)
    return stream


@given(tokens=token_lists("byte_level"), skip=st.booleans())
def test_any_byte_level_tokens_stream_to_the_decoded_text(tokens: list[int], skip: bool) -> None:
    tok = tokenizer("byte_level")
    stream = streamed(tok, tokens, skip)
    held = stream.state.decode.pending.decode(errors="replace")
    assert stream.text + held == tok.decode(tokens, skip)
    assert set(held) <= {"\ufffd"}
    assert len(stream.state.decode.pending) < 4  # a character may still come of it


@pytest.mark.parametrize("name", ["llama", "gemma"])
@given(data=st.data(), skip=st.booleans())
def test_byte_fallback_tokens_stream_to_the_decoded_text(name, data, skip) -> None:
    tok = tokenizer(name)
    tokens = data.draw(whole_characters(name))
    assert streamed(tok, tokens, skip).text == tok.decode(tokens, skip)


@pytest.mark.parametrize("name", ["metaspace", "suffix", "wordpiece"])
@given(data=st.data())
def test_other_decoders_stream_to_the_decoded_text(name: str, data: st.DataObject) -> None:
    tok = tokenizer(name)
    tokens = [t for t in data.draw(token_lists(name)) if tok.decode([t]) != "\ufffd"]
    assert streamed(tok, tokens, skip=False).text == tok.decode(tokens, False)


def test_a_space_that_starts_the_output_is_dropped_where_the_decoder_drops_it() -> None:
    space, letter = 3 + 0x20, 3 + 0x41
    assert streamed(tokenizer("llama"), [space, space, letter]).text == " A"
    assert streamed(tokenizer("llama"), [letter, space, letter]).text == "A A"
    assert streamed(tokenizer("gemma"), [space, letter]).text == " A"


@given(tokens=token_lists("gemma"))
def test_broken_runs_of_bytes_are_read_as_utf8_with_replacement(tokens: list[int]) -> None:
    tok = tokenizer("gemma")
    stream = streamed(tok, tokens, skip=False)
    expected, run = "", b""
    for token in tokens:
        data = tok.vocabulary.token_bytes(token)
        if data is None:
            expected += run.decode(errors="replace") + tok.decode([token], False)
            run = b""
        else:
            run += data
    held = stream.state.decode.pending.decode(errors="replace")
    assert stream.text + held == expected + run.decode(errors="replace")


@given(
    data=st.data(),
    stops=st.lists(st.text(alphabet="ab the", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
    name=st.sampled_from(["byte_level", "llama", "metaspace"]),
)
def test_chunks_leave_no_trace_in_the_text(data, stops, include, name) -> None:
    tok = tokenizer(name)
    tokens = data.draw(token_lists(name))
    whole = TextStream(tok, stops, include)
    whole.append(tokens)
    chunked, at = TextStream(tok, stops, include), 0
    while at < len(tokens):
        size = data.draw(st.integers(1, 5))
        before = chunked.text
        pieces = chunked.append(tokens[at : at + size])
        at += size
        assert before + "".join(pieces) == chunked.text
        assert len(pieces) == len(tokens[at - size : at])
    assert chunked.pieces() == whole.pieces()


@given(data=st.data())
def test_a_resumed_stream_starts_at_the_text_of_its_offset(data: st.DataObject) -> None:
    tok = tokenizer()
    tokens = data.draw(token_lists("byte_level"))
    offset = data.draw(st.integers(0, len(tokens)))
    stream = TextStream(tok, ("the", " law"))
    stream.append(tokens)
    resumed = TextStream(tok, ("the", " law"))
    resumed.append(tokens[:offset])
    assert resumed.pieces() == stream.pieces()[:offset]
    assert resumed.append(tokens[offset:]) == stream.pieces(offset)
    assert len(stream) == len(tokens)


@given(
    words=st.lists(st.sampled_from(["a", "b", "ab", "ba", " "]), max_size=20),
    stops=st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), min_size=1, max_size=4),
    include=st.booleans(),
)
def test_the_text_is_cut_at_the_stop_string_that_is_completed_first(words, stops, include) -> None:
    tok = tokenizer()
    tokens = spell_bytes(tok, "".join(words))
    text = "".join(words)
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    stream = TextStream(tok, stops, include)
    match = stream.find_stop(tokens)
    stream.append(tokens, finished=True)
    if not ends:
        assert match is None
        assert stream.text == text
        return
    end, _, stop = min(ends)
    assert match is not None
    assert match.text == stop
    assert match.keep == end
    assert stream.text == text[: end if include else end - len(stop)]


def test_scanning_changes_nothing() -> None:
    tok = tokenizer()
    stream = TextStream(tok, ("law",))
    stream.append(spell(tok, "the l"))
    state = stream.state
    match = stream.find_stop(spell_bytes(tok, "aw and more"))
    assert match is not None
    assert (match.keep, match.text) == (2, "law")
    assert stream.state is state
    assert stream.text == "the "


def test_what_may_become_a_stop_string_is_held_until_it_is_clear() -> None:
    tok = tokenizer()
    stream = TextStream(tok, ("END",))
    assert stream.append(spell_bytes(tok, "xEN")) == ["x", "", ""]
    assert stream.append(spell_bytes(tok, "E")) == ["EN"]
    assert stream.append(spell_bytes(tok, "."), finished=True) == ["E."]


def test_a_broken_character_never_comes_out() -> None:
    tok = tokenizer()
    first, *rest = spell_bytes(tok, "🙂")
    stream = TextStream(tok)
    assert stream.append([first]) == [""]
    assert stream.append(rest) == ["", "", "🙂"]
    assert stream.append([first], finished=True) == [""]
    assert stream.text == "🙂"


def test_text_after_a_stop_string_in_the_same_token_is_cut() -> None:
    tok = tokenizer()
    (token,) = [i for i in range(tok.vocab_size) if tok.decode([i]) == "plain ünïcode added"]
    stream = TextStream(tok, ("ünï",), include_stop_str=True)
    assert stream.append([token, token]) == ["plain ünï", ""]
    assert TextStream(tok, ("ünï",)).append([token]) == ["plain "]


def test_a_stop_string_within_min_tokens_does_not_stop() -> None:
    tok = tokenizer()
    tokens = spell_bytes(tok, "ab.ab.")
    stream = TextStream(tok, ("ab",), min_tokens=2)
    match = stream.find_stop(tokens)
    assert match is not None
    assert match.keep == 5
    stream.append(tokens)
    assert stream.text == "ab."


def test_a_stop_token_has_no_text_unless_stop_text_is_wanted() -> None:
    tok = tokenizer()
    dot = spell_bytes(tok, ".")[0]
    tokens = [*spell_bytes(tok, "ab"), dot]
    assert TextStream(tok, stop_token_ids=(dot,)).append(tokens) == ["a", "b", ""]
    kept = TextStream(tok, include_stop_str=True, stop_token_ids=(dot,))
    assert kept.append(tokens) == ["a", "b", "."]


def test_a_stop_string_that_is_a_special_token_ends_the_text_though_it_is_not_shown() -> None:
    tok = tokenizer()
    [tool] = tok.special_named(["<tool>"])
    tokens = [*spell_bytes(tok, "ab<t"), tool, *spell_bytes(tok, "c")]
    stream = TextStream(tok, ("<tool>",))
    match = stream.find_stop(tokens)
    assert match is not None
    assert (match.keep, match.text) == (5, "<tool>")
    assert stream.append(tokens, finished=True) == ["a", "b", "", "", "<t", ""]
    assert TextStream(tok, ("<tool>",), include_stop_str=True).append(tokens)[4] == "<t<tool>"
    assert TextStream(tok, ("<tool",)).find_stop(tokens) is None


def test_a_special_token_that_is_shown_stops_as_its_name_does() -> None:
    tok = tokenizer()
    [tool] = tok.special_named(["<tool>"])
    tokens = [*spell_bytes(tok, "ab"), tool, *spell_bytes(tok, "c")]
    stream = TextStream(tok, ("<tool>",), skip_special_tokens=False)
    assert stream.append(tokens, finished=True) == ["a", "b", "", ""]
    assert stream.state.stop == "<tool>"


def test_a_special_token_within_min_tokens_does_not_stop() -> None:
    tok = tokenizer()
    [tool] = tok.special_named(["<tool>"])
    match = TextStream(tok, ("<tool>",), min_tokens=1).find_stop([tool, tool])
    assert match is not None
    assert match.keep == 2


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_the_state_stays_small_however_long_the_output(name: str) -> None:
    tok = tokenizer(name)
    tokens = [i % tok.vocab_size for i in range(7, 5000, 7)] + [5] * 2000
    stream = TextStream(tok, ("never to be seen",))
    stream.append(tokens)
    assert len(stream.state.decode.window) <= 40
    assert len(stream.state.decode.pending) <= 3
    assert len(stream.state.held) < len("never to be seen")
