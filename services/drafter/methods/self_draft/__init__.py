"""Drafting with the target itself."""
