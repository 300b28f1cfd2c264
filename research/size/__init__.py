"""The control plane at sizes that no machine at hand reaches: the real one, on virtual time.

    virtual_loop  an event loop whose time jumps, and which knows whose every callback is
    redis_shards  a Redis that runs the real scripts, and how busy its shards would be
    workers       verifiers and drafters whose forwards are times, and the links to them
    orchestrator  a real front door, pool, store and registry reader
    clients       callers that come in bursts, and go on elsewhere when something breaks
    world         all of it: what happened in each second
    report        its table

What decides is the served code: `Inference`, `Admission`, `WorkerPool` with placement and
prefix affinity, `SessionDriver` with the round machine, `RedisSessionStore` with its leases, the
registry, and the scripts in a real Redis. gRPC is left out, and so is every forward.

`python -m research.size --help`
"""
