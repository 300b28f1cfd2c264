"""Text to the tokens of one vocabulary and back, in bytes.

Every token of a byte-level BPE, or of a SentencePiece model with bytes as its last resort,
stands for some bytes, so a text and any part of it have bytes, too, and those of two
vocabularies can be compared. Special tokens are marks: they stand for no bytes, and no bytes
are ever encoded as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tokenizers

from services.contract.errors import StartError
from services.contract.token_bytes import ALPHABET, decoder_kinds, from_alphabet, from_byte_token
from services.contract.types import TokenizerBundle

_LAST_PIECE = re.compile(rb"(?:\s?[\w\x80-\xff]+|\s?[^\s\w\x80-\xff]+|\s+)\Z")
_LONGEST_PIECE = 64
_ANCHORS = ("\n", ".", "x")
"""Written before a text where the tokenizer would put a space in front of it."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Tokens of a piece of text, and where in its bytes each of them ends.

    Where the tokens do not spell the text, as of a tokenizer that rewrites it, all end at its end.
    """

    ids: list[int]
    ends: list[int]


class Coder:
    """One vocabulary. Raises StartError for one whose tokens have no bytes."""

    def __init__(self, bundle: TokenizerBundle, model: str) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(bundle.tokenizer_json)
        except Exception as error:  # the library raises bare Exceptions
            raise StartError(f"text: the tokenizer of {model} cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # What looks like a special token in a text is text.
        self._tokenizer.encode_special_tokens = True
        decoder = self._tokenizer.decoder
        kinds = decoder_kinds(decoder.__getstate__()) if decoder is not None else []
        self._byte_level = "ByteLevel" in kinds
        if not self._byte_level and "ByteFallback" not in kinds:
            raise StartError(f"text: the tokens of {model} do not stand for bytes")
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token: own.content for token, own in added.items()}
        self._marks = {own.content: token for token, own in added.items() if own.special}
        self._known: dict[int, bytes | None] = {}
        self.size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.ends = tuple(bundle.eos_token_ids)
        """Tokens that end a text."""
        self.prefix = self._written_first()
        """What stands before every text."""
        written = {byte: char for char, byte in ALPHABET.items()}
        self._singles = [self._single(byte, written[byte]) for byte in range(256)]
        self._prepends = self._spelled(self._tokenized("a")) != b"a"
        self._first = self._tokenizer.token_to_id(bundle.bos_token) if bundle.bos_token else None

    @property
    def start(self) -> int:
        """A token to begin with where a text has none."""
        candidates = (*self.prefix, self._first, *self.ends, 0)
        return next(token for token in candidates if token is not None)

    def mark(self, written: str) -> int | None:
        """The special token that is written so, if there is one."""
        return self._marks.get(written)

    def written(self, token: int) -> str:
        """How a token is written in the vocabulary; empty for an unknown one."""
        return self._tokenizer.id_to_token(token) or ""

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes of a token; None for a mark and for an unknown id."""
        if token not in self._known:
            self._known[token] = self._look_up(token)
        return self._known[token]

    def encode(self, data: bytes) -> Encoded:
        """Tokens of these bytes, be they UTF-8 or not; what no token stands for is left out."""
        ids: list[int] = []
        ends: list[int] = []
        start = 0
        for part, valid in _runs(data):
            found = self._encoded(part.decode()) if valid else self._by_bytes(part)
            sizes = [len(self.bytes_of(token) or b"") for token in found]
            if self._spelled(found) == part:
                at = start
                for size in sizes:
                    at += size
                    ends.append(at)
            else:
                ends += [start + len(part)] * len(found)
            ids += found
            start += len(part)
        return Encoded(ids, ends)

    def _encoded(self, text: str) -> list[int]:
        """Tokens of a text in the middle of another; never a mark."""
        found = self._anchored(text) if self._prepends else self._tokenized(text)
        return [token for token in found if self.bytes_of(token) is not None]

    def _anchored(self, text: str) -> list[int]:
        """The same behind a character, so that no space is put before it."""
        for anchor in _ANCHORS:
            before, both = self._tokenized(anchor), self._tokenized(anchor + text)
            if both[: len(before)] == before:
                return both[len(before) :]
        return self._tokenized(text)

    def _by_bytes(self, data: bytes) -> list[int]:
        found = (self._singles[byte] for byte in data)
        return [token for token in found if token is not None]

    def _tokenized(self, text: str) -> list[int]:
        # `encode` keeps the interpreter locked all the while, and where each token stood.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def _spelled(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.bytes_of(token) or b"" for token in ids)

    def _written_first(self) -> tuple[int, ...]:
        """The special tokens that the tokenizer puts before a text."""
        [encoding] = self._tokenizer.encode_batch_fast(["a"], add_special_tokens=True)
        plain = self._tokenized("a")
        own: list[int] = encoding.ids
        for start in range(len(own)):
            if own[start : start + len(plain)] == plain:
                return tuple(own[:start])
        return ()

    def _single(self, byte: int, char: str) -> int | None:
        """The token of one byte; `char` is how byte-level vocabularies write it."""
        written = char if self._byte_level else f"<0x{byte:02X}>"
        token: int | None = self._tokenizer.token_to_id(written)
        return token

    def _look_up(self, token: int) -> bytes | None:
        written = self._tokenizer.id_to_token(token) if 0 <= token < 1 << 31 else None
        if written is None or written in self._marks:
            return None
        if token in self._added:
            return self._added[token].encode()
        if self._byte_level:
            return from_alphabet(written)
        single = from_byte_token(written)
        return written.replace("\u2581", " ").encode() if single is None else single


def settled(data: bytes) -> int:
    """Where the last word, gap or run of signs begins, which may go on."""
    tail = data[-_LONGEST_PIECE:]
    match = _LAST_PIECE.search(tail)
    return len(data) - len(tail) + (match.start() if match else 0)


def whole(data: bytes) -> int:
    """The length without a last character that is not complete."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            size = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return len(data) - back if size > back and byte < 0xF8 else len(data)
        if byte < 0x80:
            break
    return len(data)


def _runs(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """The parts of some bytes in order, and whether each is UTF-8."""
    start = 0
    while start < len(data):
        try:
            data[start:].decode()
        except UnicodeDecodeError as error:
            if error.start:
                yield data[start : start + error.start], True
            yield data[start + error.start : start + error.end], False
            start += error.end
        else:
            yield data[start:], True
            return
