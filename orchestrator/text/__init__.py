"""Text in and out: tokenizing, chat templates, and text that grows token by token."""

from orchestrator.text.stream import TextStream
from orchestrator.text.tokenizer import Tokenizer, TooLong

__all__ = ["TextStream", "Tokenizer", "TooLong"]
