"""The whole system on real processes: each promise of the README once, on one cluster.

Two verifiers, a drafter with n-grams and a head, two orchestrators behind tokens, a store and a
gateway. The head is random: most of its drafts are rejected.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
import torch
from paceline import Client, Generation, NotFound, Unauthenticated

from services.runtime.serving.bearer import token_entry
from testkit.chaos.health import left_behind, whole
from testkit.chaos.listener import Listener
from testkit.chaos.site import ALWAYS_DRAFT, DRAFTER, ORCHESTRATOR, VERIFIER, Cluster, Layout
from testkit.chaos.transcript import Case
from tests.engine.eagle import kit
from tests.gateway.openai_kit import gateway, smg
from tests.models import tiny_model, tiny_model_folder, tiny_tokenizer
from tests.processes.conftest import start_up

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

ACME, BETA = "token-of-acme-0123456789", "token-of-beta-0123456789"
TENANTS = {
    name: {"tokens": [token_entry(token)]} for name, token in (("acme", ACME), ("beta", BETA))
}
PROMPT = "the small drafter rides ahead and the large verifier checks"
METHODS = ("ngram", "eagle", "ngram,eagle")
GREEDY = {"temperature": 0.0, "max_tokens": 60, "ignore_eos": True}
SEEDED = {"temperature": 0.8, "seed": 7, "max_tokens": 60, "ignore_eos": True}
LONG = Case(PROMPT, {**SEEDED, "max_tokens": 400, "include_rounds": True})
SHAPE = {"num_hidden_layers": 4, "max_position_embeddings": 2048}
LETTERS = "[a-h ]{30}"
"""A random model says broken UTF-8, which everybody shows in a way of his own."""
WIRE_SECONDS = 0.005
"""So much longer a round takes: what happens in the middle of a text does so."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("target"), **SHAPE)


@pytest.fixture(scope="module")
def running(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    made = kit.make(1, shape={"hidden_size": 64, "num_attention_heads": 4})
    head = kit.save_speculators(made, folder / "head")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({"tenants": TENANTS}))
    layout = Layout(
        str(target),
        draft=str(head),
        drafters=1,
        wire_seconds=WIRE_SECONDS,
        drafter_flags=("--method", ",".join(METHODS[:2]), "--draft-base", str(target)),
        orchestrator_flags=(*ALWAYS_DRAFT, "--tokens-file", str(tokens), "--vllm-engine"),
        token=ACME,
    )
    with Cluster(layout) as cluster:
        asyncio.run(whole(cluster))
        yield cluster


@pytest.fixture
async def cluster(running: Cluster) -> AsyncIterator[Cluster]:
    """The cluster; whole again whatever the test did, and nothing of its sessions is left."""
    yield running
    for member in running.members:
        if not member.alive:
            member.start()
    await whole(running)
    assert await left_behind(running) == []


async def said(cluster: Cluster, **options: object) -> Generation:
    async with cluster.client() as client:
        return await client.generate(PROMPT, **options)


@pytest.fixture(scope="module")
def plain(running: Cluster) -> list[int]:
    """The long text without drafts."""
    return list(asyncio.run(said(running, **LONG.plain)).token_ids)


@pytest.mark.parametrize("method", METHODS)
async def test_drafts_over_grpc_change_no_token(cluster: Cluster, method: str):
    greedy = await said(cluster, **GREEDY, method=method)
    ids = torch.tensor([tiny_tokenizer().encode(PROMPT)])
    stock = tiny_model("llama", **SHAPE).generate(
        ids, max_new_tokens=60, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    assert list(greedy.token_ids) == stock[0, ids.shape[1] :].tolist()
    drawn = await said(cluster, **SEEDED, method=method)
    alone = await said(cluster, **SEEDED, disable_speculative_decoding=True)
    assert drawn.token_ids == alone.token_ids
    assert greedy.speculation.num_draft_tokens > 0 < drawn.speculation.num_draft_tokens
    assert alone.speculation.num_draft_tokens == 0


@pytest.mark.parametrize("role", [VERIFIER, DRAFTER, ORCHESTRATOR])
async def test_a_process_killed_in_the_middle_changes_no_token(
    cluster: Cluster, plain: list[int], role: str
):
    async with cluster.client() as client:
        listener = Listener(f"{role}-killed", LONG).ask(client)
        await listener.until(20)
        serving = listener.transcript.verifier if role == VERIFIER else f"{role}-1"
        assert listener.running
        cluster.named(serving).kill()
        await listener.end()
    assert listener.complete
    assert listener.transcript.token_ids == plain


async def test_an_orchestrator_that_drains_hands_its_sessions_to_the_other(
    cluster: Cluster, plain: list[int]
):
    async with cluster.client() as client:
        listener = Listener("drained", LONG).ask(client)
        await listener.until(20)
        assert listener.running
        assert cluster.of(ORCHESTRATOR)[0].end(60) == 0
        await listener.end()
    assert listener.transcript.token_ids == plain


async def test_a_session_belongs_to_its_tenant_at_every_orchestrator(cluster: Cluster):
    mine = await said(cluster, **GREEDY, request_id="mine")
    for address in cluster.addresses:
        for token, refusal in (
            (None, Unauthenticated),
            ("wrong", Unauthenticated),
            (BETA, NotFound),
        ):
            async with Client(address, token=token) as stranger:
                with pytest.raises(refusal):
                    await stranger.resume("mine")
        async with cluster.client(address) as owner:
            assert (await owner.resume("mine")).token_ids == mine.token_ids
    async with grpc.aio.insecure_channel(cluster.addresses[0]) as channel:
        bare = channel.unary_unary("/paceline.v1.InferenceService/GetServerInfo")
        with pytest.raises(grpc.aio.AioRpcError):
            await bare(b"")


def test_one_command_serves_the_openai_api_and_ctrl_c_leaves_no_process(
    target: Path, tmp_path: Path
):
    smg()
    up = start_up(tmp_path, "--target", str(target), "--method", "ngram", "--vllm-engine")
    asked = ("--regex", LETTERS, "--temperature", "0", "--max-tokens", "40")
    events = up.generate(*asked, prompt=PROMPT)
    with gateway(up.address, tmp_path / "smg.log") as front, front.client() as client:
        done = client.completions.create(
            model=front.model,
            prompt=PROMPT,
            temperature=0.0,
            max_tokens=40,
            extra_body={"regex": LETTERS},
        )
    assert done.choices[0].text == events[-1]["text"]
    assert re.fullmatch(LETTERS, done.choices[0].text)
    assert up.everything()
    assert (up.stop(), up.left()) == (0, [])
