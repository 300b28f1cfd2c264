"""Every example of the documentation runs as it stands, or says what it needs."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from paceline import Client

from services.runtime.embedded_redis import EmbeddedRedis
from tests.docs.checkout import check_out
from tests.docs.pages import PAGES, ROOT, Block, blocks_in, blocks_of
from tests.docs.reader import READY_MADE, Reader, Site
from tests.models import tiny_model_folder
from tests.processes.conftest import start_up

pytestmark = pytest.mark.processes

README = ROOT / "README.md"
PROGRAMS = ROOT / "examples" / "python"
NOWHERE = Site("127.0.0.1:1", "no-model", "redis://127.0.0.1:1")
SESSION = "SESSION"
"""The session that examples look at, by its id."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One cluster for all pages, as `READY_MADE` starts it, with a session that has ended."""
    folder = tmp_path_factory.mktemp("site")
    target = tiny_model_folder(folder, max_position_embeddings=2048)
    up = start_up(folder, "--target", str(target))
    try:
        asyncio.run(_speak(up.address))
        with EmbeddedRedis() as redis:
            yield Site(up.address, str(target), redis.url)
    finally:
        up.stop()
    assert up.left() == []


async def _speak(address: str) -> None:
    async with Client(address) as client:
        await client.generate("Once upon a time", max_tokens=24, request_id=SESSION)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run_as_they_stand(page: Path, site: Site, tmp_path: Path):
    with Reader(site, check_out(tmp_path / "checkout")) as reader:
        for block in blocks_of(page):
            if block.needs is None:
                reader.run(block)


def test_the_python_of_the_readme_runs_as_it_stands(site: Site, tmp_path: Path):
    typed = [block for block in blocks_of(README) if block.info == "python"]
    assert typed
    with Reader(site, check_out(tmp_path / "checkout")) as reader:
        for block in typed:
            reader.run(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_says_what_it_is(page: Path):
    assert [block.place for block in blocks_of(page) if not block.known] == []


@pytest.mark.parametrize(
    ("info", "known"),
    [
        ("python", True),
        ("sh serves", True),
        ("sh needs kubernetes", True),
        ("", False),
        ("bash", False),
        ("sh needs luck", False),
        ("text needs hours", False),
    ],
)
def test_a_block_that_does_not_say_how_it_is_run_is_seen(info: str, known: bool):
    [block] = blocks_in([f"```{info}", "exit 1", "```"], README)
    assert block.known is known


def test_the_cluster_of_all_pages_is_one_that_a_page_starts():
    assert any(block.text.strip() == READY_MADE for page in PAGES for block in blocks_of(page))


def test_a_block_that_does_not_end_is_seen():
    with pytest.raises(ValueError, match="does not end"):
        blocks_in(["```sh", "true", "```", "", "```sh", "true"], README)


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ("sh", "true\nfalse\ntrue\n"),
        ("sh", "false | true\n"),
        ("sh serves", "true\n"),
        ("python", "assert not await __import__('asyncio').sleep(0, True)\n"),
        ("python", "for one in []:\n    print(one)\n"),
        ("json", "{'a': 1}\n"),
    ],
)
def test_an_example_that_is_wrong_is_seen(info: str, text: str, tmp_path: Path):
    wrong = Block(README, 1, info, text)
    with (
        pytest.raises((AssertionError, ValueError)),
        Reader(NOWHERE, check_out(tmp_path / "checkout")) as reader,
    ):
        reader.run(wrong)


# --- the programs in `examples/python` ------------------------------------------------


def resume(site: Site, state: Path) -> list[str]:
    flags = ("--address", site.address, "--state", str(state), "--max-tokens", "150")
    return [sys.executable, str(PROGRAMS / "resume.py"), "Who rides ahead?", *flags]


def test_a_program_that_was_killed_goes_on_after_the_tokens_it_has(site: Site, tmp_path: Path):
    command = resume(site, tmp_path / "answer.json")
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert first.stdout is not None
    assert first.stdout.read(1)
    first.kill()
    first.wait()
    kept = json.loads((tmp_path / "answer.json").read_text())
    assert 0 < kept["tokens"] < 150
    # To the byte, for a model may well say a carriage return.
    again = subprocess.run(command, capture_output=True, timeout=250, check=True)
    assert f"going on after {kept['tokens']} tokens" in again.stderr.decode()

    async def stored() -> str:
        async with Client(site.address) as client:
            return (await client.resume(kept["session"])).text

    whole = asyncio.run(stored())
    assert whole.startswith(kept["text"])
    assert again.stdout.decode() == whole + "\n"
    assert not (tmp_path / "answer.json").exists()


ELSEWHERE = ("lm_eval_model.py",)
"""Run by `tests/integration/test_scores.py`, with stand-ins for lm-eval."""


def test_every_program_is_listed_and_run():
    page = PROGRAMS.parent / "README.md"
    typed = "".join(block.text for block in blocks_of(page) if block.needs is None)
    for program in PROGRAMS.glob("*.py"):
        assert f"(python/{program.name})" in page.read_text("utf-8")
        assert f"examples/python/{program.name} " in typed or program.name in ELSEWHERE
