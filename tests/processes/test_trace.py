"""One request's trace, joined over all processes, and `paceline trace` on real sessions."""

import json
import subprocess
from importlib.metadata import version

import pytest

from services.runtime.telemetry import names
from tests.processes.conftest import COMMAND, PROMPT, run, start_up

pytestmark = pytest.mark.processes


def test_a_request_is_one_trace_through_orchestrator_drafter_and_verifier(
    models, tmp_path, receiver
):
    up = start_up(
        tmp_path,
        "--target",
        str(models / "llama-0"),
        "--draft",
        str(models / "llama-3"),
    )
    events = up.generate("--max-tokens", "250", "--temperature", "0", "--ignore-eos")
    assert up.stop() == 0

    [generate] = receiver.named(names.GENERATE.name)
    trace = [span for span in receiver.spans if span.trace_id == generate.trace_id]
    services = {span.resource[names.SERVICE_NAME] for span in trace}
    assert services == {"paceline-orchestrator", "paceline-drafter", "paceline-verifier"}

    rounds = [span for span in receiver.children(generate) if span.name == names.SPEC_ROUND.name]
    emitted = sum(span.attributes.get(names.EMITTED_TOKENS, 0) for span in rounds)
    assert emitted == sum(len(e["token_ids"]) for e in events if e["event"] == "chunk")
    drafted = sum(span.attributes[names.DRAFT_TOKENS] for span in rounds)
    assert drafted == events[-1]["speculation"]["num_draft_tokens"]

    drafting = [span for span in trace if span.name == names.DRAFT.name]
    verifying = [span for span in trace if span.name == names.VERIFY.name]
    assert any(
        draft.start < verify.end and verify.start < draft.end
        for draft in drafting
        for verify in verifying
    )

    places = {span.place for span in rounds}
    verifies = {s.place: s for s in trace if s.name == names.SPEC_VERIFY.name}
    assert {(s.trace_id, s.parent_id) for s in verifies.values()} <= places
    at_work = [s for s in receiver.named(names.VERIFY.name) if s.trace_id == generate.trace_id]
    assert at_work
    assert {(s.trace_id, s.parent_id) for s in at_work} <= set(verifies)
    text = "".join(event["text"] for event in events if event["event"] == "chunk")
    assert not [span for span in trace if text in str(span.attributes)]


def test_paceline_trace_shows_a_session_on_the_screen_as_a_page_and_in_a_file(up, tmp_path):
    events = up.generate(*("--max-tokens", "60", "--temperature", "0", "--ignore-eos"))
    session = events[0]["session_id"]
    page, file = tmp_path / "s.html", tmp_path / "s.jsonl"
    files = ("--html", str(page), "--save", str(file))
    shown = run("trace", session, "--address", up.address, "--last", "0", *files)
    assert (shown.returncode, shown.stderr) == (0, "")

    [head, *records] = [json.loads(line) for line in file.read_text().splitlines()]
    assert (head["session"], head["status"]) == (session, "finished")
    speculation = events[-1]["speculation"]
    stats = [record["stats"] for record in records]
    assert len(records) == speculation["num_target_steps"]
    assert sum(one["emitted_tokens"] for one in stats) == 60
    assert sum(one["draft_tokens"] for one in stats) == speculation["num_draft_tokens"]
    assert sum(one["accepted_tokens"] for one in stats) == speculation["num_accepted_draft_tokens"]
    assert "".join("".join(record["pieces"]) for record in records) == events[-1]["text"]
    rejected = sum(len(record["rejected"]) for record in records)
    assert rejected == sum(one["draft_tokens"] - one["accepted_tokens"] for one in stats) > 0
    starts = [record["started_unix_ms"] for record in records]
    assert starts == sorted(starts)

    assert f"session {session} (finished) · {len(records)} rounds" in " ".join(shown.stdout.split())
    assert shown.stdout.count("verifier") >= 1
    assert f'"n":{stats[-1]["index"]}' in page.read_text()
    again = run("trace", "--file", str(file), "--last", "0")
    assert (again.returncode, again.stdout) == (0, shown.stdout)


def test_paceline_trace_follows_a_session_to_its_end(up):
    asked = ["generate", "--address", up.address, "--raw", "--json", "--temperature", "0"]
    with subprocess.Popen(
        [*COMMAND, *asked, "--ignore-eos", "--max-tokens", "400", PROMPT],
        stdout=subprocess.PIPE,
        text=True,
    ) as generating:
        session = json.loads(generating.stdout.readline())["session_id"]
        followed = run("trace", session, "--address", up.address, "--follow", "--last", "3")
        rest = [json.loads(line) for line in generating.stdout]
    assert followed.returncode == 0, followed.stderr
    assert "(finished)" in followed.stdout
    assert (rest[-1]["event"], rest[-1]["usage"]["completion_tokens"]) == ("complete", 400)


def test_paceline_trace_says_in_one_line_what_is_wrong(up, tmp_path):
    unknown = run("trace", "nobody", "--address", up.address)
    assert unknown.returncode == 1
    assert unknown.stderr == (
        "paceline trace: no session 'nobody' here that may be seen with this token\n"
    )
    for arguments, named in (
        ((), "give the session's id, or --file"),
        (("s",), "--address: needed"),
        (("--file", str(tmp_path / "none")), "--file: cannot read"),
    ):
        wrong = run("trace", *arguments)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
        assert named in wrong.stderr


def test_paceline_top_shows_every_process_and_what_was_done_meanwhile(up):
    up.generate("--max-tokens", "20")
    shown = run("top", "--address", up.address, "--once", "--every", "0.3")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = [line.split() for line in shown.stdout.splitlines() if line.strip()]
    assert lines[1][:4] == [up.address, version("paceline"), "0", "0.0"]
    assert {(line[1], line[2]) for line in lines[3:]} == {
        ("drafter", "serves"),
        ("verifier", "serves"),
    }
    nobody = run("top", "--address", "127.0.0.1:1", "--once")
    assert (nobody.returncode, nobody.stderr.count("\n")) == (1, 1)
    assert nobody.stderr.startswith("paceline top: ")
