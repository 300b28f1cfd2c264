"""Hypothesis strategies for every record that travels on a link."""

from hypothesis import strategies as st

from services.contract import types as t
from services.contract.sampling import NUMBERS

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
f32 = st.floats(width=32, allow_nan=False)
floats = st.lists(f32, max_size=8).map(tuple)
durations = st.floats(0, 1e8, width=32)
names = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=20)
texts = st.text(max_size=20)
ids = st.lists(u32, max_size=8).map(tuple)


@st.composite
def rows(draw):
    tokens = draw(ids)
    return t.SparseRow(tokens, tuple(draw(f32) for _ in tokens))


@st.composite
def trees(draw):
    tokens = draw(ids)
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(len(tokens)))
    return t.DraftTree(
        token_ids=tokens,
        parents=draw(st.sampled_from([None, parents or None])),
        q=draw(st.none() | st.lists(rows(), min_size=1, max_size=3).map(tuple)),
        proposal=draw(st.sampled_from(t.Proposal)),
        without_replacement=draw(st.booleans()),
    )


formats = st.builds(
    t.ResponseFormat,
    st.sampled_from([t.FormatKind.JSON_SCHEMA, t.FormatKind.REGEX]),
    st.tuples(texts),
) | st.builds(
    t.ResponseFormat,
    st.just(t.FormatKind.CHOICE),
    st.lists(texts, min_size=1, max_size=3).map(tuple),
)
sampling = st.builds(
    t.ResolvedSampling,
    **{name: u32 if one.kind is int else f32 for name, one in NUMBERS.items()},
    max_tokens=u32,
    min_tokens=u32,
    stop_token_ids=ids,
    logit_bias=st.dictionaries(u32, f32, max_size=4).map(lambda d: tuple(sorted(d.items()))),
    logprobs=st.none() | u32,
    response_format=st.none() | formats,
)
descriptions = st.builds(
    t.WorkerDescription,
    worker_id=names,
    role=st.sampled_from(t.Role),
    model=texts,
    model_fingerprint=texts,
    tokenizer_fingerprint=texts,
    vocab_size=u32,
    max_context_length=u32,
    methods=st.lists(texts, max_size=3).map(tuple),
    kv_capacity_tokens=u64,
    protocol_min=st.integers(0, 5),
    protocol_max=st.integers(5, 9),
    version=texts,
    capabilities=st.lists(texts, max_size=3).map(tuple),
    dtype=texts,
)
bundles = st.builds(
    t.TokenizerBundle,
    fingerprint=names,
    tokenizer_json=names,
    chat_template=texts,
    generation_config_json=texts,
    eos_token_ids=ids,
    bos_token=texts,
    eos_token=texts,
)
hellos = st.builds(t.LinkHello, orchestrator_id=names, protocol=u32)

progress = st.builds(
    t.Progress,
    steps=u64,
    sessions=u32,
    queued_tokens=u32,
    kv_tokens_used=u64,
    kv_tokens_capacity=u64,
    kv_tokens_spare=u64,
    recalled_tokens=u64,
    step_ms=durations,
    oldest_command_ms=durations,
    turn_ms=durations,
)
draining = st.builds(t.Draining, u32)
failed = st.builds(
    t.SessionFailed,
    session=names,
    reason=st.sampled_from(t.FailureReason),
    message=texts,
    epoch=u32,
)

_opening = {
    "session": names,
    "epoch": u32,
    "prompt": ids,
    "committed": ids,
    "mode": st.sampled_from(t.VerifyMode),
    "sampling": sampling,
    "seed": u64,
    "window": u32,
    "traceparent": texts,
}
drafter_commands = st.one_of(
    st.builds(
        t.OpenDraft,
        **_opening,
        num_candidates=u32,
        drafter_index=u32,
        method=texts,
        options=st.binary(max_size=9),
        vocab_size=u32,
        phrase_scope=texts,
        synchronous=st.booleans(),
        top_rows=u32,
    ),
    st.builds(
        t.CommitDraft,
        session=names,
        epoch=u32,
        base_len=u32,
        token_ids=ids,
        top_rows=st.binary(max_size=9),
    ),
    st.builds(t.CloseDraft, names),
    st.builds(t.Credit, names, u32),
)
drafter_events = st.one_of(
    st.builds(t.DraftOpened, names, u32),
    st.builds(
        t.Draft,
        session=names,
        epoch=u32,
        base_committed_len=u32,
        first_position=u32,
        prefix_hash=u64,
        tree=trees(),
        final=st.booleans(),
        draft_ms=durations,
        reach=floats,
        sources=st.binary(max_size=8),
    ),
    progress,
    draining,
    failed,
)
verifier_commands = st.one_of(
    st.builds(t.OpenVerify, **_opening, term=u32, cache_scope=texts, top_rows=u32),
    st.builds(
        t.Verify,
        session=names,
        epoch=u32,
        round=u32,
        base_len=u32,
        tree=trees(),
        extends_round=u32,
        want_bonus=st.booleans(),
        traceparent=texts,
        allowance=st.none() | st.builds(t.Allowance, floats, floats),
    ),
    st.builds(t.CloseVerify, names),
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
    return t.Verdict(
        session=draw(names),
        epoch=draw(u32),
        round=draw(u32),
        base_len=draw(u32),
        token_ids=tokens,
        accepted=accepted,
        all_accepted=draw(st.booleans()),
        discarded=draw(st.booleans()),
        accepted_nodes=draw(st.sampled_from([(), nodes])),
        logprobs=draw(st.sampled_from([(), logprobs])),
        queue_ms=draw(durations),
        verify_ms=draw(durations),
        batch_size=draw(u32),
        batch_rows=draw(u32),
        mode=draw(st.sampled_from(t.VerifyMode)),
        bad_q_rows=draw(u32),
        draft_tokens=draw(u32),
        top_rows=draw(st.binary(max_size=9)),
        taken=draw(
            st.none() | st.builds(t.TakenDraft, trees(), floats, st.binary(max_size=8), durations)
        ),
    )


verifier_events = st.one_of(
    st.builds(t.VerifyOpened, names, u32, u32, durations), verdicts(), progress, draining, failed
)
