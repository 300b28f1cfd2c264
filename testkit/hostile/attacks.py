"""The worst requests that a tenant with a token can make, each new every time it is sent.

And what needs no token: calls to the health service.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from grpc_health.v1 import health_pb2
from paceline.v1 import inference_pb2 as pb

MIB = 1 << 20
LONGEST_PROMPT = 4 * MIB
LONG_ANSWER = 1024
FLOOD = 32
"""As many calls as a tenant of four sessions may have open."""


class Manner(Enum):
    """What the sender does with the answer, or instead of asking."""

    READ = "read to its end"
    LEAVE = "broken off after the first message"
    IGNORE = "not read for some seconds, then broken off"
    WITHHOLD = "never sent; broken off after some seconds"
    CROWD = "as many at once as fill a server, held for some seconds, then broken off"


@dataclass(frozen=True, slots=True)
class Attack:
    """One request: the method's name, its message, and what becomes of the answer."""

    method: str
    message: bytes
    manner: Manner = Manner.READ
    service: str = "paceline.v1.InferenceService"
    at_once: int = 1
    """Calls that leave together."""

    @property
    def path(self) -> str:
        """The method's full name."""
        return f"/{self.service}/{self.method}"


def _generate(number: int, manner: Manner = Manner.READ, **fields: Any) -> Attack:
    fields.setdefault("prompt", f"attack {number}")
    return Attack("Generate", pb.GenerateRequest(**fields).SerializeToString(), manner)


def _schema(number: int, schema: object) -> Attack:
    text = json.dumps(schema)
    return _generate(number, sampling=pb.SamplingParams(json_schema=text, max_tokens=64))


def many_patterns(number: int) -> Attack:
    """A schema of 400 patterns of keys, whose intersections no lexer can count."""
    keys = {f"^{number + i}_.{{1,9}}$": {"type": "string"} for i in range(400)}
    return _schema(number, {"type": "object", "patternProperties": keys})


def all_of(number: int) -> Attack:
    """A schema of 24 patterns that must all hold."""
    parts = [{"pattern": f"a.{{{i + number % 7}}}b"} for i in range(1, 25)]
    return _schema(number, {"type": "string", "allOf": parts, "title": f"{number}"})


def deep_schema(number: int) -> Attack:
    """A schema that is nested as deep as its length allows."""
    depth = 2_000
    text = '{"items":' * depth + f'{{"const":{number}}}' + "}" * depth
    return _generate(number, sampling=pb.SamplingParams(json_schema=text, max_tokens=64))


def _grammar(number: int, rest: str) -> Attack:
    """A long text of a grammar, which may not end sooner."""
    made = pb.SamplingParams(
        grammar=f'start: "{number}" {rest}\n', max_tokens=LONG_ANSWER, min_tokens=LONG_ANSWER
    )
    return _generate(number, sampling=made)


def ambiguous(number: int) -> Attack:
    """A grammar of some bytes that reads a text in a number of ways with its length's cube."""
    return _grammar(number, 'a\na: a a | "x"')


def overlapping(number: int) -> Attack:
    """350 terminals that match the same texts: a mask takes milliseconds, for ever."""
    names = " | ".join(f"t{i}" for i in range(350))
    rules = (f"t{i}: T{i}\nT{i}: /[a-z]{{1,{i % 40 + 1}}}[ .;]?/" for i in range(350))
    return _grammar(number, f"({names})+\n" + "\n".join(rules))


def regex(number: int) -> Attack:
    """A regular expression with a state for every way to count."""
    text = f"({number}|(a|b|ab)*a(a|b){{60,400}}c)+"
    return _generate(number, sampling=pb.SamplingParams(regex=text, max_tokens=64))


def choice(number: int) -> Attack:
    """As many options as there may be."""
    options = [f"{number}-{i}-abcdef" for i in range(1024)]
    made = pb.SamplingParams(choice=pb.Choice(options=options), max_tokens=64)
    return _generate(number, sampling=made)


def no_way_on(number: int) -> Attack:
    """A form all of whose tokens are biased away."""
    bias = dict.fromkeys(range(256), -100.0)
    made = pb.SamplingParams(regex=f"x{{{8 + number % 50}}}", logit_bias=bias, min_tokens=4)
    return _generate(number, sampling=made)


def huge_prompt(number: int) -> Attack:
    """A prompt of as many bytes as are read at all."""
    words = f"{number} na\u00efve words 12,345 and more "
    return _generate(number, prompt=(words * (LONGEST_PROMPT // len(words.encode())))[:-1])


def end_of_huge_prompt(number: int) -> Attack:
    """The same, of which the end alone is wanted."""
    words = f'{number} {{"a": 1.5}}, '
    text = words * (LONGEST_PROMPT // len(words))
    return _generate(number, prompt=text, truncate_prompt_tokens=64)


def end_of_huge_conversation(number: int) -> Attack:
    """A few messages that are as long together, of which the end alone is wanted."""
    text = f"{number} law, " * (LONGEST_PROMPT // 48)
    talk = pb.Conversation(messages=[pb.Message(role="user", content=text[: MIB - 16])] * 4)
    made = pb.GenerateRequest(conversation=talk, truncate_prompt_tokens=64)
    return Attack("Generate", made.SerializeToString())


def end_of_one_word(number: int) -> Attack:
    """One word without an end, of which the end alone is wanted."""
    text = f"{number}" + "a" * (LONGEST_PROMPT - 16)
    return _generate(number, prompt=text, truncate_prompt_tokens=64)


def unknown_fields(number: int) -> Attack:
    """Several completions of a short prompt, and megabytes that nobody knows."""
    made = pb.SamplingParams(max_tokens=1)
    asked = pb.GenerateRequest(prompt=f"attack {number}", sampling=made, n=4)
    # Field 1023, of bytes; their length in a varint.
    size = 7 * MIB
    length = bytes(
        (size >> shift & 127) | (128 if size >> shift + 7 else 0) for shift in (0, 7, 14, 21)
    )
    return Attack("Generate", asked.SerializeToString() + b"\xfa\x3f" + length + b"x" * size)


def large_records(number: int) -> Attack:
    """Several completions that are resolved to as much as can be."""
    words = [f"{number} {i} ".ljust(128, "z") for i in range(128)]
    made = pb.SamplingParams(
        max_tokens=LONG_ANSWER,
        bad_words=words,
        stop=[word.ljust(256, "y") for word in words[:16]],
        logit_bias=dict.fromkeys(range(250), 0.5),
        allowed_token_ids=range(250),
    )
    return _generate(number, Manner.LEAVE, sampling=made, n=4)


def one_word(number: int) -> Attack:
    """One word without an end: what merges of pairs like least."""
    return _generate(number, prompt=f"{number}" + "a" * (LONGEST_PROMPT - 16))


def huge_conversation(number: int) -> Attack:
    """As many messages as there may be, long ones."""
    text = f"{number} {{{{ x }}}} <|im_start|> " * 120
    message = pb.Message(role="user", content=text[: LONGEST_PROMPT // 1024 - 8])
    talk = pb.Conversation(messages=[message] * 1024)
    return Attack("Generate", pb.GenerateRequest(conversation=talk).SerializeToString())


def many_tokens(number: int) -> Attack:
    """A million token ids."""
    ids = pb.TokenIds(ids=[number % 100] * 1_000_000)
    return Attack("Generate", pb.GenerateRequest(tokens=ids).SerializeToString())


def whole_answer(number: int) -> Attack:
    """A session with everything on: alternatives, biases, stops, penalties, rounds."""
    made = pb.SamplingParams(
        temperature=1.0,
        max_tokens=LONG_ANSWER,
        ignore_eos=True,
        logprobs=20,
        logit_bias=dict.fromkeys(range(250), 0.5),
        stop=[f"{number} {i} ".ljust(256, "z") for i in range(16)],
        frequency_penalty=0.5,
        repetition_penalty=1.1,
    )
    return _generate(number, sampling=made, include_rounds=True)


def names_of_tokens(number: int) -> Attack:
    """A format of 64 KB in which each special token's name is looked for."""
    grammar = f'start: "{number:08d}' + "<|im_star" * 7_000 + '"'
    return _generate(number, sampling=pb.SamplingParams(grammar=grammar))


def long_prefill(number: int) -> Attack:
    """A prompt that fills the context, for one token."""
    ids = pb.TokenIds(ids=[(number + i) % 250 for i in range(1900)])
    made = pb.SamplingParams(max_tokens=1)
    return Attack("Generate", pb.GenerateRequest(tokens=ids, sampling=made).SerializeToString())


def scores(number: int) -> Attack:
    """As many scores as there may be, behind a context that leaves room for few at a time."""
    ids = pb.TokenIds(ids=[(number + i) % 250 for i in range(1900)])
    each = [pb.Continuation(tokens=pb.TokenIds(ids=[i, i])) for i in range(128)]
    asked = pb.ScoreRequest(tokens=ids, continuations=each, ephemeral=True)
    return Attack("Score", asked.SerializeToString())


def unread(number: int) -> Attack:
    """A long answer that nobody reads."""
    made = pb.SamplingParams(max_tokens=LONG_ANSWER, ignore_eos=True, logprobs=20)
    return _generate(number, Manner.IGNORE, sampling=made, include_rounds=True)


def begun_and_left(number: int) -> Attack:
    """A session that is left as soon as it has begun."""
    made = pb.SamplingParams(max_tokens=LONG_ANSWER, ignore_eos=True)
    return _generate(number, Manner.LEAVE, sampling=made)


def never_sent(number: int) -> Attack:
    """A call whose request does not come."""
    return _generate(number, Manner.WITHHOLD)


def told_again(number: int) -> Attack:
    """The same finished session from its beginning, again and again."""
    made = pb.SamplingParams(max_tokens=LONG_ANSWER, ignore_eos=True, seed=1)
    return _generate(number, request_id=f"again-{number % 2}", prompt="again", sampling=made)


def rounds_of(number: int) -> Attack:
    """Every round of a finished session."""
    asked = pb.GetSessionRequest(session_id=f"again-{number % 2}", include_rounds=True)
    return Attack("GetSession", asked.SerializeToString())


def stuffed(number: int) -> Attack:
    """A session whose request carries megabytes in a field that nobody knows."""
    asked = pb.GenerateRequest(
        request_id=f"stuffed-{number % 2}",
        prompt="stuffed",
        sampling=pb.SamplingParams(max_tokens=LONG_ANSWER, ignore_eos=True, seed=1),
    )
    unknown = b"\xc2\x3e\x80\x80\xc0\x03" + b"\x00" * (7 * MIB)  # Field 1000: 7 MiB.
    return Attack("Generate", asked.SerializeToString() + unknown)


def asked_for(number: int) -> Attack:
    """What is known of such a session, as often at once as may be."""
    asked = pb.GetSessionRequest(session_id=f"stuffed-{number % 2}")
    return Attack("GetSession", asked.SerializeToString(), at_once=FLOOD)


def resumed(number: int) -> Attack:
    """The same to go on with, and left at once."""
    asked = pb.ResumeRequest(session_id=f"stuffed-{number % 2}")
    return Attack("Resume", asked.SerializeToString(), Manner.LEAVE, at_once=FLOOD)


def health_watched(_number: int) -> Attack:
    """Crowds who watch the process's health."""
    asked = health_pb2.HealthCheckRequest(service="readiness").SerializeToString()
    return Attack("Watch", asked, Manner.CROWD, "grpc.health.v1.Health")


def nonsense(number: int) -> Attack:
    """Bytes that are no message."""
    return Attack("Generate", bytes((number + i) % 256 for i in range(65_536)))


ATTACKS: dict[str, Callable[[int], Attack]] = {
    made.__name__: made
    for made in (
        many_patterns,
        all_of,
        deep_schema,
        ambiguous,
        overlapping,
        regex,
        choice,
        no_way_on,
        huge_prompt,
        end_of_huge_prompt,
        end_of_huge_conversation,
        end_of_one_word,
        unknown_fields,
        large_records,
        one_word,
        huge_conversation,
        many_tokens,
        whole_answer,
        names_of_tokens,
        long_prefill,
        scores,
        unread,
        begun_and_left,
        never_sent,
        told_again,
        rounds_of,
        stuffed,
        asked_for,
        resumed,
        health_watched,
        nonsense,
    )
}
