"""Drafting with a draft model."""
