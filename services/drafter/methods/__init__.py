"""The drafting methods, in groups."""
