"""One session: from its first state to its last token."""
