"""An EAGLE-3 head (Li et al., 2503.01840) behind the engine's port.

    layout     what a head's folder says of it, in either public layout
    tensors    what lies beside that
    head       what it computes
    attention  how rows of a step see those before them
    cache      a session's K/V, and the features of its next rows
    step       which row takes which feature
    engine     the engine
    loading    from names to an engine

Nothing is imported here: whether a folder holds a head is asked where there is no torch, too.

    engine = load_head(ModelSpec("head-folder", dtype="int8", base="target"))
    target.watch(engine.layers)
    cache = engine.new_cache(512)
    cache.anchor(0, states)             # [tokens, engine.state_width] of the target's forward
    [logits] = engine.forward([Segment(cache, text)])

Row j of a text, the token at position j, takes the embedding of that token and the feature of
position j - 1: the target's states there, fused, if they are known; else what the head put out
for the row before it. Rows without either are void: they take a place in the text and nothing
else. A text's first row always is.
"""
