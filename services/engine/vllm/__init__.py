"""vLLM as an engine: it loads, keeps the K/V memory and computes; what runs when is ours.

    loading    from a model's name to vLLM's workers, and why one cannot be had
    extension  our step inside them: the only file that knows names which vLLM may change
    blocks     blocks of K/V memory, counted
    kv         a sequence in blocks
    passes     from segments, trees among them, to passes of the model
    engine     the port
    selfcheck  our steps against vLLM's own

vLLM's scheduler, sampler and cache manager never run. Its CPU worker changes torch for the whole
process, so this engine and the native one never share one.
"""
