"""A drafter process: its settings, the methods it builds, and one that really serves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from paceline.v1 import drafter_pb2, drafter_pb2_grpc
from pydantic import ValidationError

from services.common.errors import StartError
from services.common.serving import open_channel
from services.common.types import (
    Draft,
    DraftOpened,
    LinkHello,
    OpenDraft,
    Progress,
    ResolvedSampling,
    VerifyMode,
    WorkerDescription,
)
from services.common.wire import DRAFTER_LINK, decode_description
from services.drafter.registry import METHODS, build
from services.drafter.settings import DrafterSettings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PACELINE_")]:
        monkeypatch.delenv(name)


def test_without_a_model_the_method_is_ngram_and_with_one_it_is_model() -> None:
    assert DrafterSettings().method_names == ("ngram",)
    assert DrafterSettings(draft="m").method_names == ("model",)
    assert DrafterSettings(draft="m", method="ngram, model").method_names == ("ngram", "model")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"method": "model"}, "draft"),
        ({"method": "ngram", "draft": "m"}, "draft"),
        ({"draft_base": "m"}, "draft_base"),
        ({"ngram_min": 5, "ngram_max": 4}, "ngram_min"),
        ({"port": 70000}, "port"),
        ({"dtype": "int4"}, "dtype"),
        ({"max_window": 0}, "max_window"),
        ({"q_top": 0}, "q_top"),
        ({"q_top": 1025}, "q_top"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        DrafterSettings(**values)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CPUS", "0,1")
    monkeypatch.setenv("PACELINE_MAX_WINDOW", "9")
    assert DrafterSettings().cpus == (0, 1)
    assert DrafterSettings().max_window == 9


def test_two_drafters_left_unnamed_have_different_names() -> None:
    assert DrafterSettings().worker_id != DrafterSettings().worker_id


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(StartError, match="'oracle' is unknown; there is model, ngram"):
        build(DrafterSettings(method="oracle"))


def test_every_method_has_a_name_that_can_be_asked_for() -> None:
    assert set(METHODS) == {"model", "ngram"}


def test_a_model_is_loaded_from_a_folder(tmp_path: Path) -> None:
    import torch

    from services.drafter.model import ModelDrafter
    from tests.models import VOCAB_SIZE, tiny_model_folder

    torch.set_num_threads(1)
    folder = tiny_model_folder(tmp_path)
    settings = DrafterSettings(draft=str(folder), cache_dir=tmp_path, threads=1, q_top=3)
    (drafter,) = build(settings).values()
    assert isinstance(drafter, ModelDrafter)
    assert drafter._q_top == 3
    worker = drafter.describe(WorkerDescription("d", None))  # type: ignore[arg-type]
    assert worker.vocab_size == VOCAB_SIZE
    assert worker.model_fingerprint
    assert worker.tokenizer_fingerprint


def test_a_model_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no such file"):
        build(DrafterSettings(draft=str(tmp_path / "nothing")))


def test_a_distilled_drafter_is_loaded_from_its_folder_and_its_moved_base(tmp_path: Path) -> None:
    from services.drafter.model import ModelDrafter
    from tests.models import VOCAB_SIZE
    from tests.services.student_kit import distilled_folder

    base, draft = distilled_folder(tmp_path)
    base = base.rename(tmp_path / "elsewhere")
    with pytest.raises(StartError, match="its base"):
        build(DrafterSettings(draft=str(draft), cache_dir=tmp_path, threads=1))
    settings = DrafterSettings(
        draft=str(draft), draft_base=str(base), cache_dir=tmp_path, threads=1
    )
    (drafter,) = build(settings).values()
    assert isinstance(drafter, ModelDrafter)
    worker = drafter.describe(WorkerDescription("d", None))  # type: ignore[arg-type]
    assert worker.vocab_size == VOCAB_SIZE
    assert worker.tokenizer_fingerprint


# --- a real process, with torch and numpy out of reach ------------------------------

SCRIPT = """
import sys
for name in ("torch", "numpy", "transformers"):
    sys.modules[name] = None
from pathlib import Path
from services.drafter.main import run
from services.drafter.settings import DrafterSettings
sys.exit(run(DrafterSettings(method="ngram", worker_id="n1", ready_file=Path(sys.argv[1]))))
"""


def first_line(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


@asynccontextmanager
async def ngram_process(ready: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "protos")))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, str(ready), env={**os.environ, "PYTHONPATH": path}, cwd=ROOT
    )
    try:
        async with asyncio.timeout(60):
            while not (address := first_line(ready)):
                assert process.returncode is None
                await asyncio.sleep(0.02)
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.processes
async def test_an_ngram_drafter_serves_without_torch_and_ends_on_sigterm(tmp_path: Path) -> None:
    async with ngram_process(tmp_path / "ready") as (process, address):
        async with open_channel(address) as channel:
            stub: Any = drafter_pb2_grpc.DrafterServiceStub(channel)
            answer = await stub.Describe(drafter_pb2.DrafterServiceDescribeRequest())
            worker = decode_description(answer.worker)
            assert (worker.worker_id, worker.methods) == ("n1", ("ngram",))
            draft = await _first_draft(stub)
            assert draft.tree.token_ids == (3, 4, 1)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0


async def _first_draft(stub: Any) -> Draft:
    """Open a session that repeats itself; what is drafted for it."""
    opening = OpenDraft(
        session="s",
        epoch=1,
        prompt=(1, 2, 3, 4, 1, 2),
        committed=(),
        mode=VerifyMode.GREEDY,
        sampling=ResolvedSampling(),
        seed=1,
        window=3,
    )
    call = stub.Link()
    await call.write(DRAFTER_LINK.encode_request([opening], LinkHello("test")))
    async with asyncio.timeout(30):
        async for message in call:
            for event in DRAFTER_LINK.decode_response(message):
                if isinstance(event, Draft):
                    await call.done_writing()
                    return event
                assert isinstance(event, (DraftOpened, Progress))
    raise AssertionError("the link ended without a draft")
