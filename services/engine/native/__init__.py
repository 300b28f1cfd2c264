"""One causal language model for many sessions.

    engine = NativeEngine.load(ModelSpec("smollm2-135m-instruct", dtype="bfloat16"))
    cache = engine.new_cache(reserve=512)
    [logits] = engine.forward([Segment(cache, prompt_ids, logits_from=len(prompt_ids) - 1)])

New tokens of all sessions are packed into one row; every session attends to its
own K/V. A segment may be a chain, a token tree, or further nodes of a tree that the
cache holds; a cache may be rolled back, forked, or reduced to one path of a tree or
the branch below it.
"""

from services.engine.native.engine import NativeEngine
from services.engine.native.kv import PagedCache

__all__ = ["NativeEngine", "PagedCache"]
