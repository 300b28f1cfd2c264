"""Every example of the documentation runs as it stands, or says what it needs."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from paceline import Client

from orchestrator.store import EmbeddedRedis
from tests.docs.checkout import check_out
from tests.docs.pages import PAGES, ROOT, Block, blocks_in, blocks_of
from tests.docs.reader import Reader, Site
from tests.models import tiny_model_folder
from tests.processes.conftest import start_up

pytestmark = pytest.mark.processes

README = ROOT / "README.md"
SESSION = "SESSION"
"""The session that examples look at, by its id."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One cluster for all pages, with a session that has ended."""
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
def test_an_example_that_is_wrong_is_seen(info: str, text: str, site: Site, tmp_path: Path):
    wrong = Block(README, 1, info, text)
    with (
        pytest.raises((AssertionError, ValueError)),
        Reader(site, check_out(tmp_path / "checkout")) as reader,
    ):
        reader.run(wrong)
