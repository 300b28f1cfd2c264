"""Text in and out: tokenizing, chat templates, and text that grows token by token."""

from orchestrator.text.stream import TextStream
from orchestrator.text.template import Conversation, TooLong
from orchestrator.text.tokenizer import Tokenizer

__all__ = ["Conversation", "TextStream", "Tokenizer", "TooLong"]
