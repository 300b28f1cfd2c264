"""Text to token ids and back, over the `tokenizers` library alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import tokenizers
from jinja2 import TemplateError

from orchestrator.text.template import ChatTemplate, Message, refused
from orchestrator.text.vocabulary import Vocabulary
from services.common.errors import StartError
from services.common.types import TokenizerBundle


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
        self.special_ids = frozenset(
            token
            for token, added in self._tokenizer.get_added_tokens_decoder().items()
            if added.special
        )
        self.vocabulary = Vocabulary(self._tokenizer)

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text; special tokens written in it become their ids."""
        encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return tuple(encoding.ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; broken UTF-8 becomes U+FFFD, unknown ids nothing."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    @property
    def has_chat_template(self) -> bool:
        """Whether the model takes conversations."""
        return bool(self.bundle.chat_template)

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt text of a conversation. Raises InvalidRequest when it is refused."""
        try:
            template = self._chat_template
        except TemplateError as error:
            raise refused(messages, f"it is broken ({error})") from error
        return template.render(messages)

    def encode_conversation(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a conversation; the template writes the special tokens itself."""
        return self.encode(self.render(messages), add_special_tokens=False)

    @cached_property
    def anchor(self) -> tuple[int, ...]:
        """A token of plain text, or none when the vocabulary has no such token."""
        token = self.vocabulary.anchor()
        return () if token is None else (token,)

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        bundle = self.bundle
        tokens = {"bos_token": bundle.bos_token, "eos_token": bundle.eos_token}
        given = {name: token for name, token in tokens.items() if token}
        return ChatTemplate(bundle.chat_template, given)
