"""`paceline bench --synthetic`: the real services with workers that sleep for given times.

It measures everything but the models, at speeds, acceptance rates and network delays that
this hardware does not have. All its output is labelled synthetic.

    scenario    what is replayed: given times and agreement, or a published trace; its worlds
    traces      the published traces
    network     a delay between orchestrators and workers, by a relay before each worker
    relay       such a relay, a process of its own
    serving     the cluster: one orchestrator for each way to decode, and the least loop
    crowds      the table: a row for each number of sessions and way
    main        what `bench.main` measures instead of models
"""
