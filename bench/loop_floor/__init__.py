"""The least loop there can be: what gRPC, a store and a stream cost with nothing else around.

It stands in the table of `paceline bench --synthetic` beside the real services: real processes,
real gRPC, every token in the store before a client sees it. A step's tokens of all sessions are
one message in columns, and so is a level of drafts. Left out is all that a service needs: text,
records, acknowledgements, takeover, TLS, traces, policy.

    frames          a message: rows of all sessions that it is about
    draws           the token at a place, and a drafter's, as a function of world and place
    verifier        steps all sessions, each with what draft it has by then
    drafter         a level for all sessions, as far ahead as is worth it
    worker          what both share: a thread that steps, a link that carries frames
    orchestrator    forwards frames as they are, commits, then streams
    serving         what the bench starts, and how it asks it

`python -m bench.loop_floor --help`
"""
