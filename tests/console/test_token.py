"""`paceline token` draws a token that its own entry lets in."""

from __future__ import annotations

import json

from orchestrator.frontdoor.authentication import TokensFile
from tests.console.typed import paceline


def drawn() -> tuple[str, str]:
    done = paceline("token")
    assert done.exit_code == 0
    (first, token), (second, entry) = (line.split() for line in done.output.splitlines())
    assert (first, second) == ("token", "entry")
    return token, entry


def test_a_drawn_token_is_let_in_by_its_entry(tmp_path):
    token, entry = drawn()
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"tenants": {"acme": {"tokens": [entry]}}}))
    assert TokensFile(file)(token).name == "acme"
    assert token not in entry


def test_no_token_is_drawn_twice():
    assert len({drawn()[0] for _ in range(20)}) == 20
