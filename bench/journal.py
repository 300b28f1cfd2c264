"""The trials of an unfinished run, in a file of JSON lines.

The first line holds the settings, every other one a trial as it ended, without its texts. A last
line that was cut off is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bench.runner import Trial
from services.contract.errors import StartError

_TRIALS = TypeAdapter(Trial)


class Journal:
    """A file that a run writes, and that another one of the same settings goes on with."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """`settings`: by flag, what must be the same; whatever JSON can hold."""
        self._path = path
        self._settings = json.loads(json.dumps(settings, default=str))

    @cached_property
    def trials(self) -> list[Trial]:
        """What was measured already.

        Raises StartError for a file of other settings, naming the first that differs, and
        for one that is no journal or cannot be written.
        """
        try:
            lines = self._path.read_text().splitlines(keepends=True)
            if not lines:
                return self._begin()
            whole = [line for line in lines if line.endswith("\n")]
            self._compare(json.loads(whole[0])["settings"])
            trials = [_TRIALS.validate_json(line) for line in whole[1:]]
            # What was cut off must not stand before what is added.
            if len(whole) < len(lines):
                self._path.write_text("".join(whole))
        except FileNotFoundError:
            return self._begin()
        except OSError as error:
            raise StartError(f"--resume: {self._path}: {error.strerror}") from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise StartError(f"--resume: {self._path} is not a journal of a bench") from None
        return trials

    def add(self, trial: Trial) -> None:
        """Note one. Raises StartError when it cannot be written."""
        self._append(_TRIALS.dump_json(_without_texts(trial)).decode())

    def _begin(self) -> list[Trial]:
        self._append(json.dumps({"settings": self._settings}))
        return []

    def _append(self, line: str) -> None:
        try:
            with self._path.open("a") as file:
                file.write(line + "\n")
        except OSError as error:
            raise StartError(f"--resume: {self._path}: {error.strerror}") from None

    def _compare(self, theirs: Mapping[str, Any]) -> None:
        for flag in sorted(self._settings.keys() | theirs.keys()):
            before, now = theirs.get(flag), self._settings.get(flag)
            if before != now:
                raise StartError(
                    f"--resume: {self._path} was made with {flag} {_words(before)}, "
                    f"this run has {_words(now)}"
                )


def _without_texts(trial: Trial) -> Trial:
    prompts = tuple(replace(one, text="", token_ids=()) for one in trial.prompts)
    results = tuple(replace(one, complete=replace(one.complete, text="")) for one in trial.results)
    return replace(trial, prompts=prompts, results=results)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "nothing"
    return "nothing" if value in (None, "") else str(value)
