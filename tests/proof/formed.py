"""Outputs of a form, enumerated: the law that must come out, and what the workers make of it.

A handful of tokens, forms whose words can be listed, laws of target and draft for every
context. What must come out is worked out by hand from the list of words. What comes out
goes through the workers' own code: llguidance's matcher, masks, cuts and laws of rows, and
in `formed_rounds` the verifier's sessions and rules. In float64 (`exact_laws`), so that the
two can be told apart to 1e-12.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from services.contract.types import (
    FormatKind,
    FormatMarker,
    ResolvedSampling,
    ResponseFormat,
    TokenizerBundle,
    VerifyMode,
)
from services.drafter.methods.model.forms import form_of
from services.engine.sampling import RowContext, by_batch, log_law
from services.engine.structure import Structures
from tests.rules.worlds import Drafter, Law, Text, World, sparse

PROMPT = (0, 0)


@contextmanager
def exact_laws() -> Iterator[None]:
    """The laws of rows in float64: a real one is rounded to float32 at its end, no sooner."""

    def log_law(scores, rows):
        return torch.log_softmax(by_batch._warped(scores, rows), dim=-1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_batch, "log_law", log_law)
        yield


# --- forms whose words can be listed ------------------------------------------------


@dataclass(frozen=True)
class Language:
    """A form and tokens to write it with, the last of which ends a text.

    `words`: those of the form that a text of `max_tokens` can be, or begin, behind its marker.
    """

    pieces: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    form: ResponseFormat
    words: frozenset[str]
    max_tokens: int = 4

    @property
    def end(self) -> int:
        return len(self.pieces) - 1

    @cached_property
    def structures(self) -> Structures:
        """As a worker makes them of its model's tokenizer."""
        ids = {piece: token for token, piece in enumerate(self.pieces)}
        tokenizer = Tokenizer(models.BPE(ids, list(self.merges)))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        bundle = TokenizerBundle("", tokenizer.to_str(), "", "{}", (self.end,), "", self.pieces[-1])
        return Structures(bundle, len(self.pieces))

    @cached_property
    def _initial_states(self) -> frozenset[str]:
        return frozenset(word[:size] for word in self.words for size in range(len(word) + 1))

    def said(self, text: Text) -> str:
        return "".join(self.pieces[token] for token in text)

    def begins(self, text: Text) -> int | None:
        """How many tokens come before the form; None where its marker is not there yet."""
        start = self.form.start
        if start is None:
            return 0
        sizes = range(1, len(text) + 1)
        if start.text:
            return next((n for n in sizes if start.text in self.said(text[:n])), None)
        ids = start.token_ids
        return next((n for n in sizes if text[:n][-len(ids) :] == ids), None)

    def allowed(self, text: Text) -> np.ndarray | None:
        """What may follow, bool [V].

        None, anything: in front of a marker, behind the end, and where the text has left the form.
        """
        begun = self.begins(text)
        if self.end in text or begun is None:
            return None
        said = self.said(text[begun:])
        if said not in self._initial_states:
            return None
        inside = [said + piece in self._initial_states for piece in self.pieces[:-1]]
        return np.array([*inside, said in self.words])


def _joined(parts: Sequence[str], most: int) -> frozenset[str]:
    return frozenset("".join(word) for n in range(1, most + 1) for word in product(parts, repeat=n))


SHORT = Language(
    pieces=("a", "b", "</s>"),
    merges=(),
    form=ResponseFormat(FormatKind.REGEX, ("(ab|ba|b)+",)),
    words=_joined(("ab", "ba", "b"), 4),
)
"""For where the laws of `tests.proof.laws` stand: three tokens."""

MARKED = replace(SHORT, form=replace(SHORT.form, start=FormatMarker(text="a")))
"""The same behind free text."""

LETTERS = {"pieces": ("a", "b", "ab", "</s>"), "merges": (("a", "b"),)}
OPTIONS = ("ab", "aba", "ba", "bab")
LANGUAGES = {
    "regex": Language(
        **LETTERS,
        form=ResponseFormat(FormatKind.REGEX, ("(ab|ba|b)+",)),
        words=_joined(("ab", "ba", "b"), 9),
    ),
    "choice": Language(
        **LETTERS, form=ResponseFormat(FormatKind.CHOICE, OPTIONS), words=frozenset(OPTIONS)
    ),
    "json_schema": Language(
        pieces=("[", "]", ",", "1", "2", "[1", "</s>"),
        merges=(("[", "1"),),
        form=ResponseFormat(
            FormatKind.JSON_SCHEMA,
            (
                '{"x-guidance": {"whitespace_pattern": ""}, "type": "array", "maxItems": 2,'
                ' "items": {"enum": [1, 2, 21]}}',
            ),
        ),
        words=frozenset(
            "[" + ",".join(items) + "]"
            for size in range(3)
            for items in product(("1", "2", "21"), repeat=size)
        ),
        max_tokens=5,
    ),
    "behind a text": Language(
        **LETTERS,
        form=ResponseFormat(FormatKind.CHOICE, OPTIONS, FormatMarker(text="ba")),
        words=frozenset(OPTIONS),
    ),
    "behind tokens": Language(
        **LETTERS,
        form=ResponseFormat(FormatKind.CHOICE, OPTIONS, FormatMarker(token_ids=(1, 2))),
        words=frozenset(OPTIONS),
    ),
}


class FormedWorld:
    """A `World` whose target keeps to a language: its laws by hand, and its raw logits."""

    def __init__(self, language: Language, seed: int = 3, **sampling: float) -> None:
        self.language = language
        self.vocab = len(language.pieces)
        self.raw = World(seed, self.vocab)
        ends = {"max_tokens": language.max_tokens, "stop_token_ids": (language.end,)}
        self.sampling = ResolvedSampling(response_format=language.form, **ends, **sampling)
        self.target = cache(lambda text: self.by_hand(self.raw.target(text), text))

    def logits(self, text: Text) -> torch.Tensor:
        """The target's, before anything is done to them."""
        return torch.from_numpy(self.raw.target(text)).log()

    def by_hand(self, law: Law, text: Text) -> Law:
        """A raw law as it is sampled: masked, no end too early, then temperature and top_k."""
        allowed = self.language.allowed(text)
        allowed = np.ones(self.vocab, dtype=bool) if allowed is None else allowed.copy()
        if len(text) < self.sampling.min_tokens and allowed[:-1].any():
            allowed[-1] = False
        law = np.where(allowed, law, 0.0) ** (1 / self.sampling.temperature)
        if self.sampling.top_k:
            law[np.argsort(-law)[self.sampling.top_k :]] = 0.0
        return law / law.sum()

    def whole_outputs(self) -> Counter[Text]:
        """Every text that plain constrained decoding may write, to its end, and its probability."""
        done: Counter[Text] = Counter()
        going: list[tuple[Text, float]] = [((), 1.0)]
        while going:
            text, weight = going.pop()
            if self.ended(text) == len(text) > 0:
                done[text] += weight
                continue
            masses = enumerate(self.target(text).tolist())
            going += [((*text, token), weight * mass) for token, mass in masses if mass > 0]
        return done

    def ended(self, text: Text) -> int:
        """Where a text is cut: behind its end, or at the most tokens; 0 = it goes on."""
        end, most = self.language.end, self.sampling.max_tokens
        if end in text[:most]:
            return text.index(end) + 1
        return most if len(text) >= most else 0


# --- rows, and the drafter ---------------------------------------------------------------------


class Laws:
    """What a model's rows say, `raw` before the form; it `knows` that by a drafter's own matcher.

    One matcher for all texts: it goes from each to the next, back and forth.
    """

    def __init__(self, world: FormedWorld, raw: Callable[[Text], Law], *, knows: bool) -> None:
        self._world, self._raw = world, raw
        wanted = world.sampling.response_format
        self._form = form_of(wanted, len(PROMPT), world.language.structures) if knows else None
        self._last: Text = ()
        self.law = cache(self._law)

    def _law(self, text: Text) -> Law:
        head, path = text[:-1], text[-1:]
        row = RowContext(
            VerifyMode.STANDARD, self._world.sampling, 0, len(text), None, path, self._at(head)
        )
        logits = torch.from_numpy(self._raw(text)).log()[None]
        law = log_law(logits, [row])[0].exp().numpy()
        return law / law.sum()

    def _at(self, head: Text):
        if self._form is None:
            return None
        pairs = enumerate(zip(self._last, head, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(self._last), len(head)))
        self._form.rewind(len(PROMPT) + same)
        self._last = head
        return self._form.of([*PROMPT, *head])


def drafter(world: FormedWorld, *, knows: bool, **changes) -> Drafter:
    """One that sends what it draws from."""
    laws = Laws(world, world.raw.draft, knows=knows)
    return replace(Drafter(laws.law, lambda text: sparse(laws.law(text))), **changes)
