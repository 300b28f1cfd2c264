"""In how many threads a model runs, and that no bit depends on how many."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from services.contract.errors import StartError
from services.engine import threads
from services.engine.native import NativeEngine, engine, packing
from services.engine.number_formats import cpu
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from services.verifier.main import load_engine
from services.verifier.settings import VerifierSettings
from tests.models import tiny_model, tiny_model_folder


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    known = torch.get_num_threads()
    yield
    torch.set_num_threads(known)


class Machine:
    """A step takes so many ms, by the number of threads, and twice that in every other turn."""

    def __init__(self, **ms: float) -> None:
        self._ms = {int(name.removeprefix("with_")): took for name, took in ms.items()}
        self.now, self.steps = 0.0, 0

    def step(self) -> None:
        self.steps += 1
        busy = 1 + self.steps // (2 * len(self._ms)) % 2
        self.now += self._ms[torch.get_num_threads()] * busy / 1e3

    def clock(self) -> float:
        return self.now


def test_there_is_a_core_for_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(4)
    monkeypatch.setattr(threads, "available_cores", lambda: (0, 3))
    assert threads.available() == 2
    torch.set_num_threads(1)
    assert threads.available() == 1


@pytest.mark.parametrize(
    ("ms", "chosen"),
    [
        ({"with_1": 20, "with_2": 30}, 1),
        ({"with_1": 30, "with_2": 20}, 2),
        # Prompts gain from each thread.
        ({"with_1": 20, "with_2": 21}, 2),
        ({"with_6": 30, "with_3": 18, "with_1": 40}, 3),
        ({"with_1": 20}, 1),
    ],
)
def test_there_are_the_threads_that_a_step_is_fast_with(ms: dict[str, float], chosen: int) -> None:
    machine = Machine(**ms)
    torch.set_num_threads(max(int(name.removeprefix("with_")) for name in ms))
    assert threads.choose(machine.step, machine.clock) == chosen == torch.get_num_threads()


def test_of_slow_steps_few_are_measured() -> None:
    machine = Machine(with_1=9000, with_2=5000)
    torch.set_num_threads(2)
    assert threads.choose(machine.step, machine.clock) == 2
    assert machine.steps == 4


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen3"])
def test_no_bit_depends_on_how_many_threads_there_are(arch: str, dtype: str) -> None:
    model = tiny_model(arch, intermediate_size=1536)
    spec = ModelSpec(arch, dtype, kv_capacity_tokens=2048, batch_invariant=None)
    torch.set_num_threads(1)
    made = NativeEngine.from_model(model, spec=spec)
    assert made.batch_invariant
    expected = rows_of(made)
    for count in (2, 3):
        torch.set_num_threads(count)
        assert torch.equal(rows_of(made), expected), count
        assert torch.equal(rows_of(NativeEngine.from_model(model, spec=spec)), expected), count


def rows_of(made: NativeEngine) -> torch.Tensor:
    """The rows of a prompt and of what is read behind it in small pieces."""
    drawn = torch.Generator().manual_seed(3)
    text = torch.randint(300, (400,), generator=drawn).tolist()
    cache = made.new_cache(len(text))
    cuts = [0, 330, 331, 332, 334, 339, 347, 400]
    pieces = [Segment(cache, text[a:b]) for a, b in pairwise(cuts)]
    rows = torch.cat([made.forward([piece])[0] for piece in pieces])
    cache.free()
    return rows


@pytest.fixture
def fewer_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(step: object) -> int:
        assert callable(step)
        step()
        torch.set_num_threads(1)
        return 1

    monkeypatch.setattr(threads, "choose", choose)
    monkeypatch.setattr(threads, "available_cores", lambda: (0, 1))
    torch.set_num_threads(3)


@pytest.mark.usefixtures("fewer_are_faster")
@pytest.mark.parametrize(("asked", "there"), [({}, 1), ({"threads": 2}, 2), ({"threads": 3}, 3)])
def test_a_verifier_chooses_where_no_number_is_given(tmp_path, asked, there) -> None:
    load_engine(VerifierSettings(target=str(tiny_model_folder(tmp_path)), **asked))
    assert torch.get_num_threads() == there


@pytest.mark.usefixtures("fewer_are_faster")
@pytest.mark.parametrize("invariant", [None, True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_threads_are_not_fewer_where_bits_would_be_others(
    tmp_path, monkeypatch, caplog, invariant, fails
) -> None:
    def check(*_: object) -> str:
        if fails and torch.get_num_threads() == 1:
            raise StartError("its logits depend on the rows beside a row")
        return f"bits with {torch.get_num_threads()}"

    monkeypatch.setattr(engine, "check", check)
    folder = str(tiny_model_folder(tmp_path))
    spec = ModelSpec(folder, fewer_threads=True, batch_invariant=invariant)
    made = NativeEngine.load(spec)
    assert made.batch_invariant == (invariant is not False)
    assert torch.get_num_threads() == (2 if made.batch_invariant else 1)
    assert ("2 threads, as fewer give other bits" in caplog.text) == made.batch_invariant


def test_many_rows_of_fp16_are_shared_out_and_the_same() -> None:
    if not cpu().half:
        pytest.skip("this CPU has no FBGEMM")
    packed = packing.HalfLinear(torch.nn.Linear(576, 192))
    rows = torch.randn(3, 97, 576)
    torch.set_num_threads(1)
    alone = packed(rows)
    torch.set_num_threads(3)
    with torch.inference_mode():
        assert torch.equal(packed(rows), alone)
    assert torch.get_num_threads() == 3
    assert (
        packing.shared_out(lambda part: torch.full_like(part, torch.get_num_threads()), rows)
        .eq(1)
        .all()
    )
