"""The programs in `examples/python`, run as they stand against real processes."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from paceline import Client

from tests.docs.pages import ROOT
from tests.models import tiny_model_folder
from tests.processes.conftest import PROMPT, Up, start_up

pytestmark = pytest.mark.processes

EXAMPLES = ROOT / "examples" / "python"
TOKENS = 150


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("examples")
    up = start_up(folder, "--target", str(tiny_model_folder(folder, max_position_embeddings=2048)))
    yield up
    up.stop()
    assert up.left() == []


def command(name: str, up: Up, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), "--address", up.address, *arguments]


def run(name: str, up: Up, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As it ended; what it printed to the byte, for a model may well say a carriage return."""
    ended = subprocess.run(
        command(name, up, *arguments), capture_output=True, timeout=250, check=False
    )
    told = (ended.stdout.decode(), ended.stderr.decode())
    return subprocess.CompletedProcess(ended.args, ended.returncode, *told)


def text(up: Up, **options: object) -> str:
    """What the client gets by itself."""

    async def ask() -> str:
        async with Client(up.address) as client:
            return (await client.generate(PROMPT, **options)).text

    return asyncio.run(ask())


def test_the_streaming_client_prints_the_text_and_what_speculation_did(served: Up):
    ended = run("stream.py", served, PROMPT, "--temperature", "0.8", "--seed", "7")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == text(served, max_tokens=64, temperature=0.8, seed=7) + "\n"
    assert re.search(r"\d+ tokens, then \w+; \d\.\d\d tokens a forward", ended.stderr)


def test_the_streaming_client_says_what_is_wrong_with_a_request(served: Up):
    ended = run("stream.py", served, PROMPT, "--temperature=-1")
    assert ended.returncode == 1
    assert "temperature" in ended.stderr


def test_a_program_that_was_killed_goes_on_after_the_tokens_it_has(served: Up, tmp_path: Path):
    state = tmp_path / "answer.json"
    flags = (PROMPT, "--state", str(state), "--max-tokens", str(TOKENS))
    first = subprocess.Popen(
        command("resume.py", served, *flags), stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert first.stdout is not None
    assert first.stdout.read(1)
    first.kill()
    first.wait()
    kept = json.loads(state.read_text())
    assert 0 < kept["tokens"] < TOKENS
    again = run("resume.py", served, *flags)
    assert again.returncode == 0, again.stderr
    assert f"going on after {kept['tokens']} tokens" in again.stderr
    assert again.stdout.startswith(kept["text"])

    async def stored() -> int:
        async with Client(served.address) as client:
            session = await client.get_session(kept["session"])
            whole = await client.resume(kept["session"])
        assert again.stdout == whole.text + "\n"
        return session.committed_tokens

    assert asyncio.run(stored()) > kept["tokens"]
    assert not state.exists()


def test_a_second_run_that_comes_before_any_token_asks_anew(served: Up, tmp_path: Path):
    state = tmp_path / "answer.json"
    state.write_text(json.dumps({"prompt": PROMPT, "session": "never-began"}))
    ended = run("resume.py", served, "another prompt", "--state", str(state), "--max-tokens", "8")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()


def test_every_text_becomes_a_record_or_is_known_to_be_cut_off(served: Up):
    ended = run("json_schema.py", served, "Oslo has 717710 inhabitants.", "Turku is no capital.")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == 2
    assert all(re.fullmatch(r"City\(name=.*, people=\d+, capital=\w+\)|cut off", x) for x in lines)
    assert any(line.startswith("City(") for line in lines)


def test_a_call_is_carried_out_and_its_result_is_in_the_next_turn(served: Up):
    ended = run("tools.py", served, "How warm?", "--most-calls", "1")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"temperature\(\{'city': '\w+'\}\) = \d+", ended.stderr)
    assert ended.stdout.strip()


ELSEWHERE = ("lm_eval_model.py",)
"""Run by `tests/integration/test_scores.py`, with stand-ins for lm-eval."""


def test_every_example_is_listed_and_run_by_a_test():
    page = (ROOT / "examples" / "README.md").read_text()
    own = Path(__file__).read_text()
    for example in EXAMPLES.glob("*.py"):
        assert f"(python/{example.name})" in page
        assert f'"{example.name}"' in own
