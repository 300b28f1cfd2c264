"""`paceline generate` with a format or with tools: what the client is asked for."""

from __future__ import annotations

import pytest

from services.console import generate as generation
from tests.console import typed

FORMS = ("json_schema", "regex", "choice", "grammar", "structural_tag", "response_format_start")
SCHEMA = '{"type": "integer"}'


@pytest.fixture
def asked(monkeypatch):
    """What the client would be asked for, call by call."""
    seen = []

    async def follow(client, asked, on_event):
        seen.append(asked)

    monkeypatch.setattr(generation, "follow", follow)
    return seen


def paceline(*arguments, raw=("--raw",)):
    return typed.paceline("generate", "hi", "--address", "localhost:1", *raw, "--json", *arguments)


@pytest.mark.parametrize(
    ("flags", "form"),
    [
        ([], {}),
        (["--json-schema", SCHEMA], {"json_schema": SCHEMA}),
        (["--regex", "[0-9]+"], {"regex": "[0-9]+"}),
        (["--regex", ""], {"regex": ""}),
        (["--choice", "yes"], {"choice": ["yes"]}),
        (["--choice", "yes", "--choice", "no, or later"], {"choice": ["yes", "no, or later"]}),
        (["--grammar", 'start: "a"'], {"grammar": 'start: "a"'}),
        (["--structural-tag", "{}"], {"structural_tag": "{}"}),
        (
            ["--regex", "a", "--format-start", "</think>"],
            {"regex": "a", "response_format_start": "</think>"},
        ),
        (
            ["--regex", "a", "--format-start", "auto"],
            {"regex": "a", "response_format_start": True},
        ),
    ],
)
def test_a_form_reaches_the_client_as_it_was_typed(asked, flags, form):
    ended = paceline(*flags)
    assert ended.exit_code == 0, ended.output
    [request] = asked
    assert {name: request[name] for name in FORMS if name in request} == form


@pytest.mark.parametrize("name", ["json_schema", "grammar", "structural_tag"])
def test_what_is_long_may_be_in_a_file(asked, tmp_path, name):
    file = tmp_path / "form"
    file.write_text('{"const": "Zürich"}', encoding="utf-8")
    assert paceline(f"--{name.replace('_', '-')}", f"@{file}").exit_code == 0
    assert asked[0][name] == '{"const": "Zürich"}'


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--regex", "a", "--choice", "b"], "--regex and --choice: a text has one form"),
        (["--json-schema", SCHEMA, "--regex", "a"], "--json-schema and --regex: a text has one"),
        (
            ["--choice", "b", "--json-schema", SCHEMA, "--regex", "a"],
            "--json-schema and --regex and --choice: a text has one form",
        ),
        (
            ["--json-schema", "@/absent.json"],
            "--json-schema: cannot read /absent.json: No such file or directory",
        ),
        (["--grammar", "@/absent"], "--grammar: cannot read /absent: No such file or directory"),
        (["--format-start", "auto"], "--format-start: there is no form to begin; give one"),
        (["--json-schema", "@/"], "--json-schema: cannot read /: Is a directory"),
        (["--tools", "[]"], "--tools: only without --raw"),
    ],
)
def test_a_form_that_cannot_be_asked_for_ends_with_one_line(asked, flags, named, capsys):
    ended = paceline(*flags)
    error = ended.stderr + capsys.readouterr().err
    assert ended.exit_code == 2
    assert error.startswith("paceline generate: ")
    assert named in error
    assert error.count("\n") == 1
    assert asked == []


def test_a_schema_file_that_is_no_text_ends_with_one_line(asked, tmp_path, capsys):
    file = tmp_path / "schema.json"
    file.write_bytes(b'{"const": "\xff"}')
    ended = paceline("--json-schema", f"@{file}")
    assert ended.exit_code == 2
    assert "schema.json is not text in UTF-8" in ended.stderr + capsys.readouterr().err
    assert asked == []


def test_tools_and_variables_make_a_conversation(asked, tmp_path):
    file = tmp_path / "tools.json"
    file.write_text('[{"type": "function"}]')
    flags = ("--tools", f"@{file}", "--chat-template-kwargs", '{"enable_thinking": false}')
    ended = paceline(*flags, "--system", "be brief", raw=())
    assert ended.exit_code == 0, ended.output
    [request] = asked
    assert request["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert request["tools"] == [{"type": "function"}]
    assert request["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--tools", "{}"], "--tools: not a list as JSON"),
        (["--tools", "tell"], "--tools: not JSON: Expecting value"),
        (["--chat-template-kwargs", "[]"], "--chat-template-kwargs: not an object as JSON"),
        (["--chat-template-kwargs", "@/absent"], "--chat-template-kwargs: cannot read /absent"),
    ],
)
def test_tools_that_are_none_end_with_one_line(asked, flags, named, capsys):
    ended = paceline(*flags, raw=())
    error = ended.stderr + capsys.readouterr().err
    assert ended.exit_code == 2
    assert error.startswith(f"paceline generate: {named}")
    assert error.count("\n") == 1
    assert asked == []
