"""llama.cpp as a peer, against a server that speaks as llama-server documents it."""

import asyncio
import json
import subprocess
import sys

import pytest

from bench.peers.lines import Request
from bench.peers.llama_child import body
from services.contract.errors import StartError
from services.engine.checkpoint.files import locate
from tests.bench.peers.kit import ask, child
from tests.docs.pages import ROOT

# Answers n tokens counting on from the last of the prompt; the first health check fails.
SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
checks = []

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        checks.append(self.path)
        self.send_response(200 if len(checks) > 1 else 503)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/completion" and asked["stream"] and asked["return_tokens"]
        self.send_response(200)
        self.end_headers()
        last = asked["prompt"][-1]
        for number in range(1, asked["n_predict"] + 1):
            self.event({{"content": "x", "tokens": [last + number], "stop": False}})
        stop = "limit" if last < 1000 else "eos"
        self.event({{"content": "", "tokens": [], "stop": True, "stop_type": stop,
                     "timings": {{"cache_n": last if asked["cache_prompt"] else 0}},
                     "threads": given["--threads"]}})

    def event(self, content):
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\\n\\n")

    def log_message(self, *_):
        pass

with open({log!r}, "w") as file:
    json.dump(given, file)
ThreadingHTTPServer((given["--host"], int(given["--port"])), Handler).serve_forever()
"""

COUNTING = [2705, 28, 827, 28, 1296, 28, 1876, 28, 582, 28, 827, 28, 1296, 28]
"""Of the demo model: "One, two, three, four, one, two, three,"."""


def settings(command: str) -> dict[str, object]:
    common = {"threads": 1, "cpus": [0], "dtype": "float32", "model": "m.gguf"}
    engine = {"max_context": 100, "concurrency": 3, "prefix_caching": False, "ngram": False}
    return {**common, **engine, "command": command}


async def test_tokens_come_over_http_as_they_are_written(tmp_path):
    command, log = tmp_path / "llama-server", tmp_path / "given.json"
    command.write_text(SERVER.format(python=sys.executable, log=str(log)))
    command.chmod(0o755)
    async with child("bench.peers.llama_child", tmp_path, **settings(str(command))) as peer:
        asked = [ask(peer, "llama.cpp", [5, start], max_tokens=3) for start in (10, 1000)]
        first, second = await asyncio.gather(*asked)
    assert first.token_ids == (11, 12, 13)
    assert len(first.arrivals) == 3
    assert first.complete.finish_reason == "length"
    assert (second.token_ids, second.complete.finish_reason) == ((1001, 1002, 1003), "stop")
    given = json.loads(log.read_text())
    assert given["--ctx-size"] == "300"
    assert (given["--parallel"], given["--threads"], given["--model"]) == ("3", "1", "m.gguf")


async def test_the_prompt_tokens_that_it_kept_are_told(tmp_path):
    command = tmp_path / "llama-server"
    command.write_text(SERVER.format(python=sys.executable, log=str(tmp_path / "given.json")))
    command.chmod(0o755)
    given = settings(str(command)) | {"prefix_caching": True}
    async with child("bench.peers.llama_child", tmp_path, **given) as peer:
        answer = await ask(peer, "llama.cpp", [5, 10], max_tokens=3)
    assert answer.complete.usage.cached_tokens == 10


async def test_a_server_that_ends_at_once_is_one_line(tmp_path):
    with pytest.raises(StartError, match=r"peer did not start: RuntimeError: .*false ended"):
        async with child("bench.peers.llama_child", tmp_path, **settings("false")):
            pass


def test_a_request_is_greedy_and_keeps_no_prompt():
    asked = body(Request(1, "llama.cpp", (1, 2), 8, 0.0, 1.0, 3))
    assert (asked["prompt"], asked["n_predict"], asked["temperature"]) == ([1, 2], 8, 0.0)
    assert asked["cache_prompt"] is False
    seen = body(Request(1, "llama.cpp", (1, 2), 8, 0.0, 1.0, 3), prefix_caching=True)
    assert seen["cache_prompt"] is True


@pytest.fixture
def wheel(tmp_path):
    """The server that `make setup-llama` makes."""
    asked = ("make", "setup-llama", f"LLAMA={tmp_path}", f"PYTHON={sys.executable}")
    made = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return tmp_path / "bin" / "llama-server"


@pytest.mark.processes
@pytest.mark.demo_model
async def test_the_server_of_the_wheel_answers_with_and_without_n_grams(wheel, tmp_path):
    model = locate("smollm2-135m-instruct")
    common = settings(str(wheel)) | {"model": str(model)}
    texts = []
    for ngram in (False, True):
        async with child("bench.peers.llama_child", tmp_path, **common | {"ngram": ngram}) as peer:
            texts.append((await ask(peer, "llama.cpp", COUNTING, max_tokens=24)).token_ids)
    assert [len(text) for text in texts] == [24, 24]
    assert texts[0][0] == texts[1][0]
