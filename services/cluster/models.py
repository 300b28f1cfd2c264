"""Names of the models that come with Paceline."""

from __future__ import annotations

from services.engine.ngram_file import NO_FILE

DEMO_MODEL = "smollm2-135m-instruct"
DEMO_NGRAMS = "smollm2-135m-instruct-ngrams"
DEMO_HEAD = "smollm2-135m-instruct-eagle"


def ngrams_for(target: str, asked: str | None) -> str | None:
    """The n-gram file for a target: what was asked for, or the one that comes with Paceline."""
    if asked == NO_FILE:
        return None
    return asked or (DEMO_NGRAMS if target.lower() == DEMO_MODEL else None)


def drafter_for(target: str, asked: str | None) -> str | None:
    """The draft model for a target: what was asked for, "" none; else the head that comes along."""
    if asked is None and target.lower() == DEMO_MODEL:
        return DEMO_HEAD
    return asked or None
