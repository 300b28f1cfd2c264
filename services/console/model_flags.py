"""Flags of several commands that name models and drafting methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cluster.models import DEMO_MODEL

Dtype = Literal["float32", "bfloat16"]
Target = Annotated[
    str,
    typer.Option(
        envvar="PACELINE_TARGET",
        help="Target model: Hugging Face id, folder with safetensors, .gguf file, "
        f"or {DEMO_MODEL}.",
    ),
]
Lookahead = Annotated[
    str | None,
    typer.Option(
        envvar="PACELINE_LOOKAHEAD",
        help="Look-ahead embeddings, with which the target itself drafts: a file of "
        "train-lookahead, or smollm2-135m-instruct-lookahead.",
    ),
]
Ngrams = Annotated[
    str | None,
    typer.Option(
        envvar="PACELINE_NGRAMS",
        help="N-gram file of the target for the method ngram: a file of learn-ngrams; left out: "
        f"the one that comes with {DEMO_MODEL}; none: without.",
    ),
]
SkipMask = Annotated[
    Path | None,
    typer.Option(
        envvar="PACELINE_SKIP_MASK",
        help="File of tune-skip for the method skip; left out: a guess.",
    ),
]
Method = Annotated[
    str,
    typer.Option(
        envvar="PACELINE_METHOD",
        help="Drafting methods, joined by commas (ngram, model, skip, lookahead, graph).",
    ),
]
Pool = Annotated[
    bool | None,
    typer.Option(
        "--pool/--beside",
        envvar="PACELINE_POOL",
        help="Let drafters be processes of their own (skip and lookahead with a copy of the "
        "target), or draft in the verifiers' (all but a draft model). Left out: a draft model and "
        "several drafters apart, everything else beside the verifiers, n-grams in both places "
        "where there is a draft model.",
    ),
]
DraftDtype = Annotated[
    Literal["auto", "float32", "bfloat16", "int8"] | None,
    typer.Option(
        envvar="PACELINE_DRAFT_DTYPE",
        help="Number format of the draft model; left out: the fastest, on a CPU int8.",
    ),
]
