"""JSON of clients, read so that other threads have turns.

Python's own reader and writer lock the interpreter until they are done, half a second for
megabytes of numbers. Long texts are read by its slower ones, which are written in Python.
"""

from __future__ import annotations

import json
import json.decoder
import json.scanner
from typing import Any, NoReturn

LONG = 64 * 1024
"""Characters of a text that takes long."""


def read_json(source: str) -> Any:
    """The value. Raises ValueError for what is no JSON, RecursionError where it is too deep."""
    if len(source) <= LONG:
        return json.loads(source, parse_constant=_no_constant)
    return _Patient(parse_constant=_no_constant).decode(source)


def check_json(value: Any) -> None:
    """Raise ValueError for a value with a text or number that JSON has no bytes for."""
    # By parts, unlike `json.dumps`.
    for part in json.JSONEncoder(ensure_ascii=False, allow_nan=False).iterencode(value):
        part.encode()


_decoder: Any = json.decoder
_scanner: Any = json.scanner


class _Patient(json.JSONDecoder):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.parse_object, self.parse_array = _decoder.JSONObject, _decoder.JSONArray
        self.scan_once = _scanner.py_make_scanner(self)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
