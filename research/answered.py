"""The target's greedy answers in token ids, for `python -m bench.simulation --recorded`.

python -m research.answered --out FILE
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.prompts import SPEC_BENCH, BenchPrompt, load_set
from bench.simulation.recorded import RecordedText, write_texts
from bench.tokens import with_token_ids
from research.accepted_lengths import answers
from research.command import measuring_parser, run
from services.contract.types import VerifyMode
from services.engine.native import NativeEngine
from services.engine.spec import ModelSpec
from services.engine.threads import pin


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Answer the prompts and write the file."""
    pin(arguments.threads)
    engine = NativeEngine.load(ModelSpec(arguments.model, arguments.dtype))
    prompts = with_token_ids(arguments.model, load_set(SPEC_BENCH, arguments.set))
    texts = answered(engine, prompts, arguments.tokens)
    write_texts(arguments.out, texts)
    tokens = sum(len(text.answer) for text in texts)
    return {"file": str(arguments.out), "texts": len(texts), "tokens": tokens}


def answered(
    engine: NativeEngine, prompts: Sequence[BenchPrompt], tokens: int
) -> list[RecordedText]:
    """What the target answers greedily to each prompt: `tokens` tokens, or up to EOS."""
    texts = answers(engine, [list(one.token_ids) for one in prompts], tokens, VerifyMode.GREEDY)
    return [
        RecordedText(one.category, one.token_ids, tuple(text.token_ids[0, text.start :].tolist()))
        for one, text in zip(prompts, texts, strict=True)
    ]


def show(report: dict[str, Any]) -> str:
    """The report in a line."""
    return "{texts} answers of {tokens} tokens in all are in {file}".format(**report)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__, dtype="float32", tokens=64)
    made.add_argument("--out", type=Path, required=True, help="where the texts go, as JSON lines")
    made.add_argument("--set", default="stratified", help="all, stratified or a number of prompts")
    return made


if __name__ == "__main__":
    run(parser(), measure, show)
