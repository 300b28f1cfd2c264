"""The numbers that bound a request, in one place."""

from __future__ import annotations

from services.contract.sampling import Range
from services.contract.types import FormatKind
from services.grammar.formats import MOST_CHARACTERS, MOST_OPTIONS
from services.scheduling.turns import MOST

MAX_PROMPT_BYTES = 4 * 1024 * 1024
MAX_REQUEST_BYTES = 2 * MAX_PROMPT_BYTES
"""Of a whole message: what is longer is refused before it is read, which locks the interpreter."""
MAX_CUT_TOKENS = MAX_PROMPT_BYTES // 4
"""Of a list of token ids of which the last ones are kept."""
MAX_RENDERED_CHARACTERS = 2 * MAX_PROMPT_BYTES
"""Of the text that a chat template makes of a conversation."""
MAX_MESSAGES = 1024
MAX_TOOLS = 128
MAX_TOOL_CALLS = 1024
"""Of all messages together."""
MAX_JSON_BYTES = 64 * 1024
"""Of one tool, of a call's arguments, of the variables for a chat template."""
MAX_JSON_DEPTH = 32
MAX_NAME_LENGTH = 256
"""Characters of the names and ids in a conversation."""
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_STOP_TOKEN_IDS = 64
MAX_CONTINUATIONS = 128
MAX_SCORED_NUMBERS = 1 << 16
"""Log-probabilities in the answer to one call: about a megabyte."""
MAX_SPECULATIVE_TOKENS = 64
MAX_CANDIDATES = 8
MAX_BIASES = 1024
MAX_SESSION_ID = 128
MAX_METHOD_LENGTH = 256
DEFAULT_MAX_TOKENS = 256
MAX_ROLE_LENGTH = 64


ALLOWED_FORMATS = {
    kind: f"{what} of at most {MOST_CHARACTERS[kind]} characters"
    for kind, what in {
        FormatKind.JSON_SCHEMA: "a JSON schema that can be compiled,",
        FormatKind.REGEX: "a regular expression that can be compiled,",
        FormatKind.GRAMMAR: "a Lark or GBNF grammar that can be compiled,",
        FormatKind.STRUCTURAL_TAG: "a structural tag that can be compiled,",
        FormatKind.CHOICE: f"1 to {MOST_OPTIONS} options, none empty, together",
    }.items()
}

BIAS = Range(-100.0, 100.0)
PRIORITY = Range(-MOST, MOST)
