"""What is refused before any work: one clear line, and nothing is left behind."""

from __future__ import annotations

import json
import re
import sys

import pytest

from services.training import checks
from services.training.head.train import check_head, train_head
from tests.models import tiny_model_folder
from tests.training.kit import Quiet, refused, small


def refusal(options):
    return refused(train_head, options)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"head_tokens": 321}, "--head-tokens: 321 is not allowed; .* allows 2..320"),
        ({"head_tokens": 1}, "--head-tokens: 1 is not allowed"),
        ({"write": 511}, "--write: 511 distributions may be too few .* allowed is 512 or more"),
        ({"train": 0}, "--train: 0 is not allowed"),
        ({"temperatures": ()}, "--temperatures: "),
        ({"temperatures": (0.5, -0.1)}, "--temperatures: "),
        ({"prompt_tokens": 600, "write": 10_000}, "--prompt-tokens: 600 leave no room"),
        ({"device": "cuda"}, "--device: there is no CUDA device"),
    ],
)
def test_an_option_out_of_its_range_is_named(target, tmp_path, monkeypatch, changed, told):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert re.match(told, refusal(small(target, tmp_path / "out", **changed)))


@pytest.mark.parametrize("arch", ["bloom", "mamba", "gpt_oss"])
def test_an_architecture_that_is_not_supported_is_refused(tmp_path, tmp_path_factory, arch):
    target = tiny_model_folder(tmp_path_factory.mktemp(arch), arch)
    line = refusal(small(target, tmp_path / "out"))
    assert "not supported" in line or "does not take its attention" in line


def test_a_target_that_is_not_there_is_named(tmp_path):
    assert "no such file or folder" in refusal(small("./nowhere", tmp_path / "out"))


def test_an_output_folder_that_exists_is_left_alone(target, tmp_path):
    (tmp_path / "out").mkdir()
    assert refusal(small(target, tmp_path / "out")) == f"--out: {tmp_path / 'out'} exists already"


@pytest.mark.parametrize("option", ["prompts", "openings", "exclude"])
def test_a_file_that_is_not_there_is_named(target, tmp_path, option):
    path = tmp_path / "nowhere.txt"
    given = (path,) if option == "exclude" else path
    line = refusal(small(target, tmp_path / "out", **{option: given}))
    assert line == f"--{option}: {path}: No such file or directory"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("p.txt", "", "has no prompts"),
        ("p.txt", "\n  \n\n", "has no prompts"),
        ("p.jsonl", '{"prompt": "a"}\nno json\n', "line 2 is not a JSON object with"),
        ("p.jsonl", '{"prompt": "a"}\n{"words": "b"}\n', "line 2 is not a JSON object with"),
        ("p.jsonl", '["a"]\n', "line 1 is not a JSON object with"),
        ("p.jsonl", '{"turns": []}\n', "line 1 has no words"),
        ("p.jsonl", '{"text": " "}\n', "line 1 has no words"),
        ("p.jsonl", '{"text": 7}\n', "line 1 has no words"),
        ("p.txt", "one\ntwo\n", "has 2 prompts; at least 8 are needed"),
    ],
)
def test_a_prompt_file_without_good_prompts_is_refused(target, tmp_path, name, content, told):
    path = tmp_path / name
    path.write_text(content)
    line = refusal(small(target, tmp_path / "out", prompts=path))
    assert line.startswith(f"--prompts: {path} ")
    assert told in line


def test_a_prompt_file_that_is_no_text_is_refused(target, tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes(b"\xff\xfe\x00")
    assert "is no text in UTF-8" in refusal(small(target, tmp_path / "out", prompts=path))


def test_a_prompt_of_an_excluded_set_is_refused_with_its_line(target, tmp_path):
    prompts, exclude = tmp_path / "p.txt", tmp_path / "set.jsonl"
    prompts.write_text("\n".join(["Why?", "How so?", "", "Where  IS\tit?", *"abcdefg"]))
    entry = {"turns": ["What is it?", "where is it? "]}
    exclude.write_text(json.dumps(entry) + "\n")
    options = small(target, tmp_path / "out", prompts=prompts, exclude=(exclude,))
    assert refusal(options) == f"--prompts: {prompts} line 4 is a prompt of --exclude"


def test_openings_beside_whole_prompts_are_refused(target, tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("one\ntwo\n")
    assert "--openings: " in refusal(small(target, tmp_path / "out", prompts=path, openings=path))


def test_an_opening_that_fills_the_context_is_refused(target, tmp_path):
    path = tmp_path / "openings.txt"
    path.write_text("word " * 300 + "\n")
    line = refusal(small(target, tmp_path / "out", openings=path))
    assert line.startswith("--prompt-tokens: 24 leave no room")


def test_too_little_memory_is_told_with_both_figures(target, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "free_memory", lambda: 3 << 20)
    line = refusal(small(target, tmp_path / "out", batch_positions=100_000))
    assert line == "too little memory: about 0.9 GiB are needed, 0.0 GiB are free"


def test_more_side_by_side_needs_more_memory(target, tmp_path):
    job = check_head(small(target, tmp_path / "out"), Quiet())
    one, two = (small(target, tmp_path / "out", batch=batch) for batch in (10_000, 20_000))
    needed = [checks.memory_needed(each, job.target, 1000) for each in (one, two)]
    # Two layers, K and V, two heads of 16, 64 tokens, 4 bytes.
    assert needed[1] - needed[0] == 10_000 * 2 * 2 * 2 * 16 * 64 * 4


def test_too_little_disk_is_told_with_both_figures(target, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "free_bytes", lambda device: 1 << 50)
    line = refusal(small(target, tmp_path / "out", write=1 << 40))
    assert line.startswith("too little disk: about 1")
    assert line.endswith("GiB are free")


def test_a_folder_that_is_no_work_folder_is_not_used(target, tmp_path):
    work = tmp_path / "precious"
    work.mkdir()
    (work / "letter.txt").write_text("dear")
    line = refusal(small(target, tmp_path / "out", work=work))
    assert line == f"--work: {work} is there, but is no work folder"


def test_without_matplotlib_it_says_so_at_once(target, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "matplotlib is needed" in refusal(small(target, tmp_path / "out"))
