"""The drafter service: rides ahead of the verifier and proposes tokens.

`protocol` is what a drafting method is, `hypotheses` the worker, `registry` the methods' names,
`combined` several of them for one session, `asking` how all are asked. Drafts of trunk and branches
are in `comb`; `local` drafts in the verifier's process. The methods are in groups:

methods/ngram       drafts from texts alone; `text_pool` and `archive` keep what sessions said
methods/model       drafts with a draft model: a step in `stepping`, its tokens in `candidates`
methods/graph       trees and graphs: `graph_state`, their size in `tree_growth`
methods/self_draft  drafts with the target: `skip` leaves sub-layers out, `lookahead` adds tokens
"""
