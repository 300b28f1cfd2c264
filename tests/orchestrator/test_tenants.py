"""What drafters learn of a tenant."""

from __future__ import annotations

from itertools import combinations

import pytest
from pydantic import ValidationError

from orchestrator.session.tenants import phrase_scope
from orchestrator.settings import OrchestratorSettings


def test_a_scope_is_the_same_every_time_and_no_name_is_in_it() -> None:
    scope = phrase_scope("acme", "t1", b"key")
    assert scope == phrase_scope("acme", "t1", b"key")
    assert len(scope) == 32
    assert "acme" not in scope


def test_tenants_tokenizers_and_keys_have_scopes_of_their_own() -> None:
    ways = [("acme", "t", b""), ("acm", "et", b""), ("acme", "u", b""), ("acme", "t", b"k")]
    for one, other in combinations([phrase_scope(*way) for way in ways], 2):
        assert one != other


def test_the_key_is_not_shown() -> None:
    settings = OrchestratorSettings(tenant_key="very secret")
    assert "very secret" not in repr(settings)
    assert settings.tenant_key is not None
    assert settings.tenant_key.get_secret_value() == "very secret"


def test_a_default_of_several_methods_names_each_once() -> None:
    assert OrchestratorSettings(method="ngram, model").method == "ngram,model"
    for wrong in ("ngram,ngram", "ngram,", ","):
        with pytest.raises(ValidationError, match="each named once"):
            OrchestratorSettings(method=wrong)
