"""One causal language model for many sessions.

    engine = Engine.load(ModelSpec("smollm2-135m-instruct", dtype="bfloat16"))
    cache = engine.new_cache(reserve=512)
    [logits] = engine.forward([Segment(cache, prompt_ids, logits_from=len(prompt_ids) - 1)])

New tokens of all sessions are packed into one row; every session attends to its
own K/V. A segment may be a chain or a token tree; a cache may be rolled back,
forked, or reduced to one path of a tree.
"""

from services.common.engine.engine import Engine
from services.common.engine.kv import KVCache
from services.common.engine.layout import Segment
from services.common.engine.spec import ModelSpec
from services.common.engine.threads import pin

__all__ = ["Engine", "KVCache", "ModelSpec", "Segment", "pin"]
