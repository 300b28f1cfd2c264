"""A timeline as one HTML file that needs nothing else."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

from services.console.timeline.rounds import Round, Stretch, Timeline
from services.console.timeline.terminal import summary

TEMPLATE = Path(__file__).with_name("page.html")


def page(line: Timeline) -> str:
    """The whole file."""
    data = json.dumps(
        {"rounds": [_round(one) for one in line.rounds], "end": round(line.end, 3)},
        ensure_ascii=False,
        separators=(",", ":"),
    )
    # Inside a script element only its end tag, and what could hide it, has a meaning.
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    note = "The trace file is cut short: this is what it has." if line.trace.cut else ""
    filled = {
        "TITLE": escape(line.trace.session_id),
        "SUMMARY": escape(summary(line)),
        "NOTE": escape(note),
        "DATA": data,
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"%%([A-Z]+)%%", lambda place: filled[place[1]], template)


def _round(one: Round) -> dict[str, Any]:
    stats = one.record.stats
    return {
        "n": stats.index,
        "term": one.record.term,
        "epoch": stats.epoch,
        "at": _pair(one.whole),
        "queue": _pair(one.queue),
        "verify": _pair(one.verify),
        "draft": _pair(one.draft),
        "void": _pair(one.void),
        "drafted": stats.draft_tokens,
        "accepted": stats.accepted_tokens,
        "emitted": stats.emitted_tokens,
        "draftMs": round(stats.draft_ms, 3),
        "batch": stats.batch_size,
        "rule": stats.rejection_sample_method,
        "drafter": stats.drafter,
        "verifier": stats.verifier,
        "tokens": [[token.text, token.fate] for token in one.tokens],
    }


def _pair(stretch: Stretch | None) -> list[float] | None:
    return None if stretch is None else [round(stretch.start, 3), round(stretch.end, 3)]
