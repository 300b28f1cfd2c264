"""Text to token ids and back, over the `tokenizers` library alone."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import chain

import tokenizers
from jinja2 import TemplateError

from orchestrator.text.cuts import Cuts, cuts_of
from orchestrator.text.lengths import reach_of, swallows
from orchestrator.text.reasoning import Reasoning, reasoning_of
from orchestrator.text.template import ChatTemplate, Conversation, TooLong, refused
from orchestrator.text.vocabulary import Vocabulary
from services.contract.errors import StartError
from services.contract.types import TokenizerBundle

_FIRST_LOOK, _NEXT_LOOK = 4, 4
"""Characters for each token that is allowed, to begin with; and how many times as many then."""
_SHORTEST_PART, _USUAL_PART, LONGEST_PART = 4 * 1024, 64 * 1024, 128 * 1024
"""Characters that are tokenized at a time: the library takes some hundred bytes for each."""
_AT_MOST = f"at most {LONGEST_PART}"
_SURELY, _TORN = 2, 1024
"""Times as many tokens as are allowed, and some: no text that begins with them has few enough.

Where a beginning is cut, a word is torn, and may have more tokens than it has in the text.
"""

_DEFAULT, _WITH_TOOLS = "default", "tool_use"
"""The names of chat templates, where a model has several."""

Frame = tuple[tuple[int, ...], tuple[int, ...]]


class Tokenizer:
    """A model's tokenizer and chat template; the same ids as transformers gives.

    Raises StartError when the tokenizer file cannot be read. Safe to use from
    several threads.
    """

    def __init__(self, bundle: TokenizerBundle) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(bundle.tokenizer_json)
        except Exception as error:  # the library raises bare Exceptions
            raise StartError(f"the model's tokenizer cannot be read: {error}") from error
        # A file may carry the settings of whoever saved it.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.bundle = bundle
        self.fingerprint = bundle.fingerprint
        self.eos_token_ids = bundle.eos_token_ids
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._special = {
            token: added.content
            for token, added in self._tokenizer.get_added_tokens_decoder().items()
            if added.special
        }
        self.special_ids = frozenset(self._special)
        self.special_names = frozenset(self._special.values())
        self.vocabulary = Vocabulary(self._tokenizer)
        written = json.loads(self._tokenizer.to_str())
        self._reach, self._cuts = reach_of(written), cuts_of(written)
        self._grows = not swallows(written["added_tokens"], "lstrip")
        """Whether a text has about as many tokens as its beginning, or more."""

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        most: int | None = None,
        kept: int | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a text, of which the last `kept`; special tokens written in it become ids.

        Raises TooLong for more than `most` of them, without looking at all of a long text, and
        where the last ones can only be told from a whole that is too long. Other threads go on
        meanwhile.
        """
        wanted = kept if most is None else most
        part = min(max(_SHORTEST_PART, _FIRST_LOOK * (wanted or 0)), _USUAL_PART)
        if wanted is None or len(text) <= part:
            return self._whole(text, add_special_tokens, most)[-(kept or 0) :]
        if self._cuts is not None and self._frame is not None:
            frame = self._frame if add_special_tokens else ((), ())
            return self._by_parts(self._cuts, frame, text, part, most, kept)
        if most is None and len(text) > LONGEST_PART:
            raise TooLong(f"{len(text)} characters", f"{_AT_MOST}: its tokenizer has no safe cut")
        return self._whole(text, add_special_tokens, most)[-(kept or 0) :]

    def _whole(self, text: str, special: bool, most: int | None) -> tuple[int, ...]:
        if most is not None:
            self._look(text, most)
        encoding = self._encoding(text, special)
        if most is not None and len(encoding) > most:
            raise TooLong(f"{len(encoding)} tokens")
        return tuple(encoding.ids)

    def _by_parts(
        self, cuts: Cuts, frame: Frame, text: str, size: int, most: int | None, kept: int | None
    ) -> tuple[int, ...]:
        """The same, from the end on, some `size` characters at a time; `frame` stands around."""
        if most is not None:
            self._count(text, most)
        before, behind = frame
        parts, count, end = [behind], len(behind), len(text)
        while end and (kept is None or count < kept):
            start = cuts.before(text, end - size, max(0, end - LONGEST_PART)) or 0
            if not start and end > LONGEST_PART and most is None:
                raise TooLong(
                    f"{end} characters",
                    f"{_AT_MOST} without a place to cut, as between a word and a space",
                )
            part = text[start + 1 if start and cuts.mute else start : end]
            if most is not None:
                self._look(part, most)
            parts.append(tuple(self._encoding(part, False).ids))
            count, end = count + len(parts[-1]), start
            if most is not None and count > most:
                raise TooLong(f"more than {most} tokens")
        if not end:
            parts.append(before)
        ids = tuple(chain.from_iterable(reversed(parts)))
        if most is not None and len(ids) > most:
            raise TooLong(f"{len(ids)} tokens")
        return ids[-(kept or 0) :]

    @cached_property
    def _frame(self) -> Frame | None:
        """What the tokenizer puts around every text; None: that is not what it does."""
        bare, whole = (tuple(self._encoding("a", special).ids) for special in (False, True))
        for place in range(len(whole) - len(bare) + 1):
            if whole[place : place + len(bare)] == bare:
                return whole[:place], whole[place + len(bare) :]
        return None

    def _look(self, text: str, most: int) -> None:
        """Raise TooLong for a text that surely has more than `most` tokens, at little cost."""
        seen = max(1, _FIRST_LOOK * most)
        if len(text) <= seen:
            return
        self._count(text, most)
        while self._grows and seen < len(text):
            if len(self._encoding(text[:seen], False)) > _SURELY * most + _TORN:
                raise TooLong(f"more than {most} tokens")
            seen *= _NEXT_LOOK

    def _count(self, text: str, most: int) -> None:
        """Raise TooLong for a text whose bytes alone tell that it has more than `most` tokens."""
        if self._reach is not None and (least := self._reach.least_tokens(text)) > most:
            raise TooLong(f"{least} tokens or more")

    def _encoding(self, text: str, add_special_tokens: bool) -> tokenizers.Encoding:
        # `encode` keeps the interpreter locked all the while, and where each token stood.
        [encoding] = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        return encoding

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; broken UTF-8 becomes U+FFFD, unknown ids nothing."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def special_named(self, names: Collection[str]) -> dict[int, str]:
        """Special tokens with one of these names, by id."""
        if self.special_names.isdisjoint(names):
            return {}
        return {token: name for token, name in self._special.items() if name in names}

    @property
    def has_chat_template(self) -> bool:
        """Whether the model takes conversations."""
        return bool(self._sources)

    @property
    def takes_tools(self) -> bool:
        """Whether a chat template has a place for tools."""
        return any(one.takes_tools for one in self._readable)

    @property
    def template_kwargs(self) -> tuple[str, ...]:
        """The names that chat templates read beyond what every template is given."""
        return tuple(sorted({name for one in self._readable for name in one.kwargs}))

    def render(self, conversation: Conversation, most: int | None = None) -> str:
        """The prompt text of a conversation. Raises InvalidRequest when it is refused.

        TooLong for one of more than `most` characters.
        """
        name = _WITH_TOOLS if conversation.tools and _WITH_TOOLS in self._sources else _DEFAULT
        template = self._chat_templates.get(name)
        if template is None:
            others = ", ".join(self._sources)
            raise refused(conversation.messages, f"there is none named {name}, but {others}")
        if isinstance(template, TemplateError):
            raise refused(conversation.messages, f"it is broken ({template})") from template
        return template.render(conversation, most)

    def broken_templates(self) -> tuple[str, ...]:
        """What is wrong with each chat template that cannot be used; compiles them all."""
        return tuple(
            f"the chat template {name} is broken: {one}"
            for name, one in self._chat_templates.items()
            if isinstance(one, TemplateError)
        )

    def encode_conversation(
        self,
        conversation: Conversation,
        most: int | None = None,
        most_text: int | None = None,
        kept: int | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a conversation; the template writes the special tokens itself.

        As `encode`; raises TooLong, too, for a text of more than `most_text` characters, which a
        template may make of few words.
        """
        return self.encode(self.render(conversation, most_text), False, most, kept)

    @cached_property
    def reasoning(self) -> Reasoning | None:
        """How the model marks its thoughts; None: it tells of no mark that is known."""
        added = {
            one.content: token for token, one in self._tokenizer.get_added_tokens_decoder().items()
        }
        return reasoning_of(added.get, "\n".join(self._sources.values()))

    @cached_property
    def anchor(self) -> tuple[int, ...]:
        """A token of plain text, or none when the vocabulary has no such token."""
        token = self.vocabulary.anchor()
        return () if token is None else (token,)

    @cached_property
    def _sources(self) -> dict[str, str]:
        """Of all chat templates, by their names."""
        bundle = self.bundle
        named = {one.name: one.text for one in bundle.chat_templates if one.text}
        return {_DEFAULT: bundle.chat_template, **named} if bundle.chat_template else named

    @cached_property
    def _chat_templates(self) -> dict[str, ChatTemplate | TemplateError]:
        bundle = self.bundle
        tokens = {one.name: one.text for one in bundle.special_tokens}
        tokens |= {"bos_token": bundle.bos_token, "eos_token": bundle.eos_token}
        given = {name: token for name, token in tokens.items() if token}
        return {name: _compiled(source, given) for name, source in self._sources.items()}

    @property
    def _readable(self) -> list[ChatTemplate]:
        """The chat templates that are not broken."""
        return [one for one in self._chat_templates.values() if isinstance(one, ChatTemplate)]


def _compiled(source: str, tokens: Mapping[str, str]) -> ChatTemplate | TemplateError:
    try:
        return ChatTemplate(source, tokens)
    except TemplateError as error:
        return error
