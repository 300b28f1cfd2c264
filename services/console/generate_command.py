"""The flags of `paceline generate`."""

from __future__ import annotations

from typing import Annotated

import typer

from services.console.connection import (
    Addresses,
    Authority,
    Certificate,
    Connection,
    Insecure,
    NoResume,
    PrivateKey,
    ServerName,
    Token,
)
from services.console.generate_form import Choices, Form, JsonSchema, Regex

GENERATE_SECTIONS = {
    "Sampling": (
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "seed",
        "stop",
        "ignore_eos",
    ),
    "Structured output": ("json_schema", "regex", "choice"),
    "Speculation": (
        "method",
        "rejection_sample_method",
        "num_speculative_tokens",
        "num_candidates",
        "no_speculation",
    ),
    "Input and output": ("system", "raw", "as_json"),
    "Connection": (
        "address",
        "token",
        "ca",
        "cert",
        "key",
        "server_name",
        "insecure",
        "no_resume",
    ),
}


def generate(
    prompt: Annotated[str, typer.Argument(help="What to say to the model.")],
    address: Addresses,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 = greedy; left out: the model's default.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens, up to this.")] = (
        None
    ),
    top_k: Annotated[int | None, typer.Option(help="Keep this many likeliest tokens.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Keep tokens at least this likely, against the likeliest.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divides the scores of tokens seen before.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Lowers a token by each time it was generated.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Lowers a token once it was generated.")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Do not stop before this many.")] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the end-of-text token.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; repeatable.")] = (
        None
    ),
    json_schema: JsonSchema = None,
    regex: Regex = None,
    choice: Choices = None,
    method: Annotated[
        str | None, typer.Option(help="Drafting method, or several joined by commas.")
    ] = None,
    rejection_sample_method: Annotated[
        str | None, typer.Option(help="Verification rule: auto, coupled, standard or block.")
    ] = None,
    num_speculative_tokens: Annotated[
        int | None, typer.Option(help="Most tokens drafted ahead.")
    ] = None,
    num_candidates: Annotated[
        int | None, typer.Option(help="Draft this many candidates per position.")
    ] = None,
    no_speculation: Annotated[
        bool, typer.Option("--no-speculation", help="Plain decoding.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Send the prompt as it is, not as a message.")
    ] = False,
    system: Annotated[str, typer.Option(help="System message of the conversation.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event.")] = False,
    token: Token = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: PrivateKey = None,
    server_name: ServerName = None,
    insecure: Insecure = False,
    no_resume: NoResume = False,
) -> None:
    """Generate text: streamed as it is committed, with a summary at the end."""
    from services.console.generate import GenerateOptions, run_generate

    given = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "min_tokens": min_tokens,
        "ignore_eos": ignore_eos or None,
        "seed": seed,
        "stop": stop,
        "method": method,
        "rejection_sample_method": rejection_sample_method,
        "num_speculative_tokens": num_speculative_tokens,
        "num_candidates": num_candidates,
        "disable_speculative_decoding": no_speculation or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    connection = Connection(address, token, ca, cert, key, server_name, insecure, not no_resume)
    form = Form(json_schema, regex, choice)
    asked = GenerateOptions(connection, prompt, raw, system, as_json, form, options)
    raise typer.Exit(run_generate(asked))
