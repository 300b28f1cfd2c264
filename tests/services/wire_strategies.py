"""Hypothesis strategies for every record that travels on a link."""

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
    **dict.fromkeys(("seed", "prefix_hash", "steps", "recalled_tokens"), u64),
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


@st.composite
def rows(draw):
    tokens = draw(ids)
    return t.SparseRow(tokens, tuple(draw(f32) for _ in tokens))


@st.composite
def trees(draw):
    tokens = draw(ids)
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(len(tokens)))
    either = st.sampled_from([None, parents or None])
    q = st.none() | st.lists(rows(), min_size=1, max_size=3).map(tuple)
    return draw(record(t.DraftTree, token_ids=st.just(tokens), parents=either, q=q))


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
BY_TYPE[t.DraftTree] = trees()
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
bundles = record(t.TokenizerBundle)
hellos = record(t.LinkHello)
of_both = record(t.Progress) | record(t.Draining) | record(t.SessionFailed)
drafter_commands = st.one_of(
    *map(record, (t.OpenDraft, t.CommitDraft, t.CloseDraft, t.Credit, t.DraftStates)),
)
drafter_events = record(t.DraftOpened) | record(t.Draft) | of_both
verifier_commands = st.one_of(
    record(t.OpenVerify, priority=st.integers(-(2**31), 2**31 - 1)),
    record(t.Verify, allowance=st.none() | record(t.Allowance)),
    record(t.CloseVerify),
)


@st.composite
def logprob_rows(draw):
    tokens = draw(ids)
    return t.LogprobRow(draw(f32), tokens, tuple(draw(f32) for _ in tokens))


@st.composite
def verdicts(draw):
    tokens = draw(ids)
    accepted = max(0, len(tokens) - draw(st.integers(0, 1)))
    nodes = tuple(draw(u32) for _ in range(accepted))
    logprobs = tuple(draw(logprob_rows()) for _ in tokens)
    verdict = record(
        t.Verdict,
        token_ids=st.just(tokens),
        accepted=st.just(accepted),
        accepted_nodes=st.sampled_from([(), nodes]),
        logprobs=st.sampled_from([(), logprobs]),
        taken=st.none() | record(t.TakenDraft),
        near_ties=st.integers(0, len(tokens)),
    )
    return draw(verdict)


scores = record(t.PromptScores, rows=st.lists(logprob_rows(), max_size=4).map(tuple))
verifier_events = record(t.VerifyOpened) | verdicts() | record(t.States) | scores | of_both
