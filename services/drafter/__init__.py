"""The drafter service: rides ahead of the verifier and proposes tokens.

`protocol` is what a drafting method is, `session` the bookkeeping all methods
share, `core` the worker, `ngram`, `model`, `skip` and `graph` the methods, `registry`
their names, `combined` several of them for one session. What `ngram` learns of other
sessions is in `phrases`, and `archive` keeps it. What a step of a draft model asks of a
session is in `stepping`; its chains and combs are in `model_state` and `comb`, trees and
graphs in `graph_state` and `draft_graph`, their size in `tree_growth` and `tree_shape`,
the choice of tokens in `candidates`. `skip` is the model drafter with a target that
leaves out sub-layers: its session is in `skip_state`, when its drafts end in `exits`;
`mask_search` and `mask_trials` look for a better set of them meanwhile.
"""
