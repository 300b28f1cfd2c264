"""`paceline token`: a new token for a client, and what stands for it in the tokens file."""

from __future__ import annotations

import secrets

from services.runtime.options import options
from services.runtime.serving.bearer import token_entry

# 256 bits: the digest of so random a token can be stored without a salt.
TOKEN_BYTES = 32


@options
class TokenOptions:
    """There are none."""


def run_token(_: TokenOptions) -> int:
    """Draw a client token; print it, and its entry."""
    drawn = secrets.token_urlsafe(TOKEN_BYTES)
    print(f"token  {drawn}")
    print(f"entry  {token_entry(drawn)}")
    return 0
