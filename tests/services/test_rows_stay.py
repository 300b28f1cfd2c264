"""On a device, no row of the vocabulary comes to the host: not to verify, and not to draft.

A CPU's tensors stand for the device's: they take the path of devices, and whatever goes from a
tensor to Python or to a CPU is looked at.
"""

from importlib import import_module

import pytest
import torch
from torch.overrides import TorchFunctionMode

from services.contract import types as t
from services.drafter.methods.model.candidates import Place, candidates_at
from services.engine.sampling import RowContext, by_batch, laws, paths
from tests.fake_engine import FakeEngine, law
from tests.services.running_bench import Running, draft, limit, start

VOCAB = 5_000
EXACT = [t.VerifyMode.GREEDY, t.VerifyMode.COUPLED]
MODES = [*EXACT, t.VerifyMode.STANDARD, t.VerifyMode.BLOCK]
DRAFT, PARENTS = (7, 8, 9), {"chain": None, "tree": (-1, -1, 0)}
LAW = t.SparseRow((7, 8, 9), (0.5, 0.25, 0.25))
ASKED = {"logprobs": 3, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1}


class OnDevice(TorchFunctionMode):
    """Refuses to let a whole row leave; counts what leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0

    def __torch_function__(self, function, _types, arguments=(), named=None):
        name, tensor = getattr(function, "__name__", ""), next(iter(arguments), None)
        leaves = name in {"tolist", "item", "cpu", "numpy", "__array__", "__iter__"}
        leaves |= name == "to" and "cpu" in map(str, (*arguments[1:], *(named or {}).values()))
        if leaves and isinstance(tensor, torch.Tensor):
            assert tensor.numel() < VOCAB, f"{name} of {tuple(tensor.shape)}"
            self.left += 1
        return function(*arguments, **(named or {}))


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """What holds for devices holds for this CPU."""
    monkeypatch.setattr(paths, "path_for", lambda _: by_batch)
    for name in ("running.deciding", "rules.judge"):
        module = import_module(f"services.verifier.{name}")
        monkeypatch.setattr(module, "draw", laws.draw_in_parallel)


@pytest.mark.parametrize("shape", PARENTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_step_with_all_that_can_be_asked_reads_no_row(mode, shape):
    table = Running(FakeEngine(vocab_size=VOCAB))
    table.run(start(mode=mode, top_rows=8, limit=0, **ASKED))
    proposal, q = t.Proposal.ONE_HOT, None
    if mode not in EXACT:
        proposal, q = t.Proposal.SAMPLED, (LAW,) * (3 if shape == "chain" else 2)
    tree = t.DraftTree(DRAFT, PARENTS[shape], q, proposal, without_replacement=shape == "tree")
    with OnDevice() as seen:
        [row] = table.step(draft((), tree=tree), limit(1))
    assert row.tokens
    assert row.logprobs
    assert len(row.judged) == len(DRAFT)
    assert bool(row.top_rows) == mode.exact_match
    assert seen.left > 0


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_candidates_of_every_mode_are_chosen_without_reading_a_row(mode, count, weighed):
    row = RowContext(mode, t.ResolvedSampling(temperature=0.7, top_p=0.95), 5, 0)
    place = Place(row, count, VOCAB, weighed=weighed and mode.exact_match)
    with OnDevice() as seen:
        [level] = candidates_at(law([1, 2], VOCAB)[None], [place], q_top=64)
    assert len(level.token_ids) == count
    assert seen.left > 0
