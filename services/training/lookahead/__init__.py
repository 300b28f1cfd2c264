"""Training look-ahead embeddings (PaSS) for a frozen target.

train      the whole run
insertion  rows at many places of a text, in two passes
learner    what they learn there
"""
