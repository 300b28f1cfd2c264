"""Hypothesis strategies for what is said of workers and sessions on a link."""

from enum import Enum
from typing import get_type_hints

from hypothesis import strategies as st

from services.contract import types as t

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
f32 = st.floats(width=32, allow_nan=False)
floats = st.lists(f32, max_size=8).map(tuple)
durations = st.floats(0, 1e8, width=32)
names = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=20)
texts = st.text(max_size=20)
ids = st.lists(u32, max_size=8).map(tuple)

BY_TYPE = {
    int: u32,
    float: f32,
    bool: st.booleans(),
    str: texts,
    bytes: st.binary(max_size=9),
    tuple[int, ...]: ids,
    tuple[float, ...]: floats,
    tuple[str, ...]: st.lists(texts, max_size=3).map(tuple),
}
BY_NAME = {
    **dict.fromkeys(("session", "worker_id", "orchestrator_id"), names),
    **dict.fromkeys(("fingerprint", "tokenizer_json"), names),
    **dict.fromkeys(("seed", "steps", "recalled_tokens"), u64),
    **dict.fromkeys(("kv_tokens_used", "kv_tokens_capacity", "kv_tokens_spare"), u64),
    **dict.fromkeys(("kv_capacity_tokens",), u64),
}


def record(kind, **own):
    """A record with every field drawn: as given here, by its name, or by its type."""

    def drawn(name, hint):
        if name in own or name in BY_NAME:
            return own.get(name, BY_NAME.get(name))
        if isinstance(hint, type) and issubclass(hint, Enum):
            return st.sampled_from(hint)
        return durations if hint is float and name.endswith("_ms") else BY_TYPE[hint]

    return st.builds(
        kind, **{name: drawn(name, hint) for name, hint in get_type_hints(kind).items()}
    )


some = st.text(min_size=1, max_size=8)
starts = st.none() | st.builds(t.FormatMarker, text=some)
starts |= st.builds(t.FormatMarker, token_ids=st.lists(u32, min_size=1, max_size=4).map(tuple))
formats = st.builds(
    t.ResponseFormat,
    st.sampled_from([kind for kind in t.FormatKind if kind is not t.FormatKind.CHOICE]),
    st.tuples(texts),
    starts,
) | st.builds(
    t.ResponseFormat,
    st.just(t.FormatKind.CHOICE),
    st.lists(texts, min_size=1, max_size=3).map(tuple),
    starts,
)
BY_TYPE[t.ResolvedSampling] = record(
    t.ResolvedSampling,
    logit_bias=st.dictionaries(u32, f32, max_size=4).map(lambda d: tuple(sorted(d.items()))),
    logprobs=st.none() | u32,
    response_format=st.none() | formats,
    bad_words=st.lists(ids, max_size=3).map(tuple),
    prompt_logprobs=st.none() | u32,
)
descriptions = record(
    t.WorkerDescription, protocol_min=st.integers(0, 5), protocol_max=st.integers(5, 9)
)
BY_TYPE[tuple[t.NamedText, ...]] = st.lists(record(t.NamedText), max_size=3).map(tuple)
bundles = record(t.TokenizerBundle)
hellos = record(t.LinkHello)


@st.composite
def logprob_rows(draw):
    tokens = draw(ids)
    return t.LogprobRow(draw(f32), tokens, tuple(draw(f32) for _ in tokens))
