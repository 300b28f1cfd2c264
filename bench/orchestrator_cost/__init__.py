"""What one orchestrator process costs: the real one, between workers that compute nothing.

    watched       the orchestrator's process, which also notes how long frames stay in it
    measure       one case after another, in turns where two checkouts are compared

The workers are `testkit.load_workers`: a verifier, a drafter and a collector for spans, in a
process of their own.

`python -m bench.orchestrator_cost --help`
"""
