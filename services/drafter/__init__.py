"""The drafter service: rides ahead of the verifier and proposes tokens.

`protocol` is what a drafting method is, `session` the bookkeeping all methods
share, `core` the worker, `ngram` and `model` the methods, `registry` their names.
A model's session is in `model_state`, the shape of its drafts in `comb`, the
choice of their tokens in `candidates`.
"""
