"""The Node.js client goes on by itself: what a server does at its worst, and what comes of it."""

import asyncio
import json
import subprocess
from pathlib import Path

import grpc
import pytest
from paceline import EMPTY_HASH, extend_hash
from paceline.v1 import inference_pb2 as pb

from tests.docs import npm
from tests.services.breaking_inference import (
    BREAKS,
    CUT,
    GONE,
    SEED,
    Break,
    BreakingService,
    Cluster,
    serving,
    status,
)
from tests.tools import tool

Code = grpc.StatusCode

LEAVES_EARLY = """
import { Client } from './paceline.js';
const client = new Client(process.argv[2]);
for await (const { chunk } of client.generate({ prompt: 'hi', requestId: 'left' })) {
  if (chunk) break;
}
client.close();
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = npm.client(tmp_path_factory.mktemp("node") / "checkout")
    (made / "leaves_early.mjs").write_text(LEAVES_EARLY)
    return made


async def run(
    folder: Path, cluster: Cluster, *flags: str
) -> tuple[subprocess.CompletedProcess[str], BreakingService]:
    """`generate.js` to its end, and the server that it asked."""
    service = BreakingService(cluster)
    node = tool("node", "apt install nodejs")
    async with serving(service) as (_, port):
        command = [node, "generate.js", "--address", f"127.0.0.1:{port}", *flags, "hi"]
        return await _ended(command, folder), service


async def _ended(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, command, cwd=folder, capture_output=True, text=True, timeout=250
    )


async def test_the_hash_of_a_text_is_that_of_the_python_client(folder):
    texts = [[], [0], [1, 2, 3], [7, 151_643, 0, 7], [2**32 - 1, *range(300)]]
    (folder / "hashes.mjs").write_text(
        "import { EMPTY_HASH, extendHash } from './paceline.js';\n"
        "for (const text of JSON.parse(process.argv[2]))\n"
        "  console.log(`${extendHash(EMPTY_HASH, text)}`);\n"
    )
    ended = await _ended(
        [tool("node", "apt install nodejs"), "hashes.mjs", json.dumps(texts)], folder
    )
    assert ended.stdout.split() == [str(extend_hash(EMPTY_HASH, text)) for text in texts]


async def test_whatever_breaks_the_text_is_whole_and_each_call_asks_for_the_rest(folder):
    cluster = Cluster(sizes=(2, 1, 3))
    cluster.plan += [Break(0, GONE), Break(2, CUT), Break(1, BREAKS["reset"])]
    cluster.plan += [Break(2, BREAKS["no verifier"]), Break(1, BREAKS["cancelled"])]
    ended, service = await run(folder, cluster)
    assert (ended.returncode, ended.stdout) == (0, cluster.text), ended.stderr
    first, again, *resumed = service.requests
    assert first == again
    assert resumed == [
        pb.ResumeRequest(
            session_id=first.request_id,
            offset=offset,
            prefix_hash=extend_hash(EMPTY_HASH, range(offset)),
        )
        for offset in (2, 2, 3, 3)
    ]
    assert cluster.aborted == []
    calls = [one["paceline-call"].partition("/") for one in service.metadata]
    assert len({reader for reader, _, _ in calls}) == 1
    assert [int(number) for _, _, number in calls] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "how",
    [
        status(Code.ABORTED, "FENCED"),
        status(Code.DATA_LOSS, "DATA_LOSS"),
        status(Code.INTERNAL, "PACELINE_ERROR"),
    ],
    ids=lambda how: how.code,
)
async def test_an_answer_is_no_break(folder, how):
    cluster = Cluster()
    cluster.plan += [Break(2, GONE), Break(1, how)]
    ended, service = await run(folder, cluster)
    name = next(code.name for code in Code if code.value[0] == how.code)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, f"{name}: said so")
    assert len(service.requests) == 2


async def test_without_resume_the_first_break_is_the_end(folder):
    cluster = Cluster()
    cluster.plan.append(Break(2, GONE))
    ended, service = await run(folder, cluster, "--no-resume")
    assert (ended.returncode, ended.stdout) == (1, "ab")
    assert len(service.requests) == 1


async def test_a_session_lost_before_its_first_token_is_made_again_with_its_seed(folder):
    cluster = Cluster()
    cluster.plan.append(Break(1, GONE, lost=True))
    ended, service = await run(folder, cluster)
    assert (ended.returncode, ended.stdout) == (0, cluster.text), ended.stderr
    first, _, again = service.requests
    assert again.request_id == first.request_id
    assert (first.sampling.HasField("seed"), again.sampling.seed) == (False, SEED)


async def test_a_session_lost_after_a_token_is_not_found(folder):
    cluster = Cluster()
    cluster.plan.append(Break(2, GONE, lost=True))
    ended, _ = await run(folder, cluster)
    assert (ended.returncode, ended.stdout) == (1, "ab")
    assert "NOT_FOUND: " in ended.stderr


async def test_a_full_server_refuses_a_first_call_and_keeps_a_later_one_waiting(folder):
    full = status(Code.RESOURCE_EXHAUSTED, "OVERLOADED", retry_after=0.25)
    refused = Cluster()
    refused.plan.append(Break(0, full))
    ended, _ = await run(folder, refused)
    assert ended.stderr == "RESOURCE_EXHAUSTED: said so\n  try again in 250 ms\n"
    later = Cluster()
    later.plan += [Break(2, GONE), Break(0, full)]
    ended, service = await run(folder, later)
    assert (ended.returncode, ended.stdout) == (0, later.text), ended.stderr
    assert len(service.requests) == 3


async def test_a_server_that_leaves_tokens_out_is_at_fault(folder, monkeypatch):
    def with_a_gap(self, offset):
        yield pb.Chunk(offset=0, token_ids=[0, 1], text="ab")
        yield pb.Chunk(offset=3, token_ids=[3], text="d")

    monkeypatch.setattr(BreakingService, "chunks", with_a_gap)
    ended, service = await run(folder, Cluster())
    assert (ended.returncode, ended.stdout) == (1, "ab")
    assert "the server is at fault: token 3 came, not 2" in ended.stderr
    assert len(service.requests) == 1


async def test_who_leaves_the_loop_ends_the_session(folder):
    cluster = Cluster()
    async with serving(BreakingService(cluster)) as (_, port):
        node = tool("node", "apt install nodejs")
        ended = await _ended([node, "leaves_early.mjs", f"127.0.0.1:{port}"], folder)
    assert ended.returncode == 0, ended.stderr
    assert cluster.aborted == ["left"]
