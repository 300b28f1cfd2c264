"""Drafting by a model with another tokenizer: drafts pass as text."""
