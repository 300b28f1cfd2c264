"""The drafter service: rides ahead of the verifier and proposes tokens.

`protocol` is what a drafting method is, `session` the bookkeeping all methods
share, `core` the worker, `ngram` and `model` the methods, `registry` their names.
"""
