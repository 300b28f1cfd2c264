"""Tokens lead to tenants; what is wrong with their file is named, and no token ever is."""

from __future__ import annotations

import json
import logging
import os

import pytest

from orchestrator.frontdoor.authentication import TokensFile
from orchestrator.session.tenants import Tenant, TenantLimits
from services.contract.errors import StartError, Unauthenticated
from services.runtime.serving.bearer import token_entry

TOKEN = "the-token-of-acme-that-nobody-may-read-anywhere"
OTHER = "another-token-that-nobody-may-read-anywhere-else"


def entry(*tokens: str, **limits: object) -> dict[str, object]:
    return {"tokens": [token_entry(token) for token in tokens], **limits}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens.json"


def write(path, tenants: object) -> None:
    """As an operator would: a new file in the place of the old one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(tenants if isinstance(tenants, str) else json.dumps({"tenants": tenants}))
    os.replace(fresh, path)


def test_a_token_leads_to_its_tenant_with_its_limits(path):
    limits = {"max_sessions": 8, "max_tokens_in_flight": 40000, "max_tokens": 2048}
    write(path, {"acme": entry(TOKEN, "second", **limits), "beta": entry(OTHER)})
    identify = TokensFile(path)
    assert identify(TOKEN) == Tenant("acme", TenantLimits(8, 40000, 2048))
    assert identify("second").name == "acme"
    assert identify(OTHER) == Tenant("beta")


@pytest.mark.parametrize("shown", ["", f"{TOKEN}x", f"{TOKEN} x", token_entry(TOKEN), "\u00e9"])
def test_anything_else_is_refused_in_the_same_words(path, shown):
    write(path, {"acme": entry(TOKEN)})
    with pytest.raises(Unauthenticated) as refused:
        TokensFile(path)(shown)
    assert str(refused.value) == "a valid token is needed: authorization: Bearer TOKEN"


GOOD = token_entry(TOKEN)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "not JSON"),
        ("[]", "the whole file: Input should be"),
        ("{}", "tenants: Field required"),
        ({"acme": {}}, "tenants.acme.tokens: Field required"),
        ({"acme": {"tokens": [TOKEN]}}, "tenants.acme.tokens[0]: String should match"),
        ({"acme": {"tokens": [GOOD, GOOD.upper()]}}, "tenants.acme.tokens[1]: String should"),
        ({"acme": {"tokens": GOOD}}, "tenants.acme.tokens: Input should be a valid list"),
        ({"acme": {"tokens": [GOOD], "rate": 1}}, "tenants.acme.rate: Extra inputs"),
        ({"acme": {"tokens": [GOOD], TOKEN: 1}}, "tenants.acme.(a name): Extra inputs"),
        ({"acme": entry(max_sessions=-1)}, "tenants.acme.max_sessions: Input should be greater"),
        ({"acme": entry(max_tokens=0)}, "tenants.acme.max_tokens: Input should be greater"),
        ({"acme": entry(max_tokens="9")}, "tenants.acme.max_tokens: Input should be a valid int"),
        ({"acme": entry(max_tokens=1.5)}, "tenants.acme.max_tokens: Input should be a valid int"),
        ({"acme": entry(max_tokens=True)}, "tenants.acme.max_tokens: Input should be a valid int"),
        (
            {"acme": entry(TOKEN), "beta": entry(OTHER, TOKEN)},
            "tenants.beta.tokens[1]: the same token as tenants.acme.tokens[0]",
        ),
        ({"a/b": entry(TOKEN)}, "tenants: a tenant's name is not"),
        ({TOKEN: entry(OTHER)}, "tenants: a tenant's name is not"),
        ('{"tenants": {}, "tenants": {}}', "tenants: named twice"),
        ('{"tenants": {"acme": {"tokens": []}} x', "not JSON: Expecting ',' delimiter in line 1"),
        ("[" * 100_000, "not JSON"),
        ('"' + "x" * (1 << 20) + '"', "larger than 1048576 bytes"),
    ],
)
def test_a_file_that_is_wrong_ends_with_one_line_that_names_the_place(path, content, named):
    write(path, content)
    with pytest.raises(StartError) as caught:
        TokensFile(path)
    message = str(caught.value)
    assert message.startswith(f"tokens_file: {path}: {named}")
    assert "\n" not in message
    assert TOKEN not in message
    assert GOOD.removeprefix("sha256:") not in message


def test_a_file_that_is_not_there_is_named(path):
    with pytest.raises(StartError, match=r"cannot read .*: No such file"):
        TokensFile(path)


def test_a_new_version_is_read_while_calls_come_in(path):
    write(path, {"acme": entry(TOKEN)})
    identify = TokensFile(path)
    write(path, {"acme": entry(OTHER, max_sessions=3)})
    assert identify(OTHER).limits.max_sessions == 3
    with pytest.raises(Unauthenticated):
        identify(TOKEN)


def test_a_broken_new_version_keeps_the_old_one_and_warns_once(path, caplog):
    write(path, {"acme": entry(TOKEN)})
    identify = TokensFile(path)
    write(path, {"acme": {"tokens": [OTHER]}})
    with caplog.at_level(logging.DEBUG):
        for _ in range(5):
            assert identify(TOKEN).name == "acme"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "tenants.acme.tokens[0]" in caplog.text
    assert OTHER not in caplog.text
    path.unlink()
    assert identify(TOKEN).name == "acme"
    write(path, {"beta": entry(OTHER)})
    assert identify(OTHER).name == "beta"


def test_every_entry_is_compared_whichever_fits(path, monkeypatch):
    import orchestrator.frontdoor.authentication as module

    write(path, {"acme": entry(TOKEN, *map(str, range(20)))})
    identify, compared = TokensFile(path), []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr(module.hmac, "compare_digest", compare)
    assert identify(TOKEN).name == "acme"
    with pytest.raises(Unauthenticated):
        identify("wrong")
    assert len(compared) == 2 * 21
