"""Other ways to decode, answered in child processes beside our own servers.

A child is started once, is told what to load by the first line of its standard input, and
answers requests until that input ends. Every line either way is one JSON object:

    settings  {"tether": PID, "model": ..., "dtype": ..., "threads": n, "cpus": [...], ...}
    child     {"ready": "what it is"}                     or {"error": "one line"}
    request   {"id": n, "way": ..., "token_ids": [...], "max_tokens": n, "temperature": t, ...}
    child     {"id": n, "token_ids": [...], "drafted": k}     as often as there are new tokens
    child     {"id": n, "end": "stop" or "length", "cached": k}  or {"id": n, "error": "one line"}

`drafted` is null where a child cannot tell how many draft tokens the target judged; `cached`
counts the prompt's tokens that came from a cache.
`lines`, `vllm_child` and `tether` (services.runtime) import the standard library alone at
the top: they run in environments that hold nothing of ours.
"""
