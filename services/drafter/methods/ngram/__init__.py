"""Drafting from texts alone."""
