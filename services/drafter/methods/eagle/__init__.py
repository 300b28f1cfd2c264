"""Drafting by a head on the target's own hidden states: EAGLE-3."""
