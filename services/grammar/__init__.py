"""Response formats: what may be one, its grammar, and how untrusted ones are compiled."""
