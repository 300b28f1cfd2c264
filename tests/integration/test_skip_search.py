"""With a search for a skip mask in the loop the text is the target's own, token for token."""

from functools import cache
from typing import Any

import pytest
import torch

from services.drafter.core import DrafterCore
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.mask_search import MaskSearch, SearchRules
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.engine.native import NativeEngine
from services.engine.skip_mask import SkipMask
from services.engine.spec import ModelSpec
from services.verifier.core import VerifierCore
from tests.integration.cluster import PATIENT, PROMPT, cluster, start_core
from tests.models import tiny_model, tiny_tokenizer

TOKENS = 120
LAYERS = 4
START = SkipMask.of(LAYERS, attention=[1, 2], mlp=[1, 2])


@cache
def target() -> Any:
    torch.set_num_threads(1)
    return tiny_model("llama", num_hidden_layers=LAYERS)


def engine() -> NativeEngine:
    return NativeEngine.from_model(target(), tiny_tokenizer(), ModelSpec("llama"))


def plain() -> list[int]:
    """What transformers' own greedy decoding says."""
    ids = torch.tensor([tiny_tokenizer().encode(PROMPT)])
    with torch.no_grad():
        out = target().generate(
            ids, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("pacing", ["eager", "fixed"])
async def test_greedy_and_coupled_texts_are_the_targets_while_the_mask_changes(pacing):
    search = MaskSearch(START, SearchRules(0.5, guided_every=5, patience=10_000, enough=1.0))
    drafter = SkipDrafter(engine(), START, Exit(0.0, adaptive=False), search=search)
    loaded = engine()
    verifier = await start_core(VerifierCore, loaded, "v1", loaded.bundle)
    searching = await start_core(DrafterCore, {"skip": drafter}, "d1")
    options = {"max_tokens": TOKENS, "ignore_eos": True}
    greedy = {**options, "temperature": 0.0}
    coupled = {**options, "temperature": 1.0, "seed": 7}
    runs: dict[str, list[Any]] = {"greedy": [], "coupled": []}
    async with cluster([verifier], [searching], PATIENT, pacing=pacing) as running:
        for _ in range(2):
            runs["greedy"].append(await running.client.generate(PROMPT, **greedy))
            runs["coupled"].append(await running.client.generate(PROMPT, **coupled))
        alone = await running.client.generate(PROMPT, disable_speculative_decoding=True, **coupled)
    assert [list(run.token_ids) for run in runs["greedy"]] == [plain()] * 2
    assert {run.token_ids for run in runs["coupled"]} == {alone.token_ids}
    assert all(run.speculation.num_draft_tokens > 0 for each in runs.values() for run in each)
    assert search.candidates > 0
    assert search.best != START
    assert drafter._mask == search.best
