"""Studies: what was measured once, and can be measured again."""
