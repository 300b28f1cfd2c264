"""A template that loops or grows for ever is refused, soon and in little memory."""

from __future__ import annotations

import resource
import threading
import time

import pytest
from jinja2 import TemplateError

from orchestrator.text import Conversation, TooLong
from orchestrator.text import sandbox as sandbox_module
from orchestrator.text.template import ChatTemplate
from services.contract.errors import InvalidRequest

TALK = Conversation([{"role": "user", "content": "hi"}])
MOST_MEGABYTES = 400
SECONDS = 0.2


def render(source: str) -> str:
    return ChatTemplate(source, {}).render(TALK, 8 << 20)


def grown(start: str, step: str, shown: str = "{{ ns.s }}") -> str:
    """`step` a hundred times over, from `start` on."""
    loop = "{% for i in range(100) %}" + step + "{% endfor %}"
    return "{% set ns = namespace(s=" + start + ") %}" + loop + shown


def doubled(value: str) -> str:
    return grown("'ab'", "{% set ns.s = " + value + " %}")


LOOP = "{% for i in range(100000) %}"
ENDLESS = {
    "loops": LOOP * 3 + "{% endfor %}" * 3,
    "loops that pass over": LOOP + "{% for j in range(100000) if j < 0 %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}"
    "{% endif %}{% endmacro %}{{ m(60) }}",
    "filters": "{% for i in range(100000) %}{% set x = range(100000) | map('abs') | list %}"
    "{% endfor %}",
}
GROWING = {
    "a product": "{{ 'a' * 10 ** 10 }}",
    "a list's product": "{{ [0] * 10 ** 10 }}",
    "~": doubled("ns.s ~ ns.s"),
    "+": doubled("ns.s + ns.s"),
    "lists": grown("[1]", "{% set ns.s = [ns.s, ns.s] %}"),
    "mappings": grown("[1]", "{% set ns.s = dict(a=ns.s, b=ns.s) %}"),
    "literals": grown("[1]", "{% set ns.s = {'a': ns.s, 'b': ns.s} %}"),
    "namespaces": grown("1", "{% set ns.s = namespace(a=ns.s, b=ns.s) %}"),
    "blocks": grown("'ab'", "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
    "replace": doubled("ns.s.replace('a', ns.s)"),
    "|replace": doubled("ns.s | replace('a', ns.s)"),
    "join": doubled("ns.s.join([ns.s, ns.s, ns.s])"),
    "|join": doubled("[ns.s, ns.s] | join(ns.s)"),
    "a joined map": doubled("range(2) | map('replace', '', ns.s) | join"),
    "%": doubled("'%s%s' % (ns.s, ns.s)"),
    "|format": doubled("'%s%s' | format(ns.s, ns.s)"),
    "format": doubled("'{}{}'.format(ns.s, ns.s)"),
    "a width in %": "{{ '%999999999d' % 1 }}",
    "a long width in %": "{{ '%9999999999d' % 1 }}",
    "a width given to %": "{{ '%*d' % (999999999, 1) }}",
    "a width in format": "{{ '{:999999999}'.format(1) }}",
    "a width given to format": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "center": "{{ 'a'.center(10 ** 9) }}",
    "|center": "{{ 'a' | center(10 ** 9) }}",
    "|indent": "{{ ('a\n' * 4000000) | indent(1000) }}",
    "tabs": "{{ ('\t' * 1000000).expandtabs(9999) }}",
    "|tojson": "{{ messages | tojson(indent=10 ** 9) }}",
    "|batch": "{{ range(9) | batch(10 ** 9, 'x') | list }}",
    "a number": "{{ (10 ** 1000) ** 1000 }}",
    "bytes": "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "lipsum": "{{ lipsum(n=10 ** 9) }}",
    "many large ones": LOOP + "{% set ns.s = ns.s + ['x' * 8000000 ~ i] %}{% endfor %}",
    "what a loop writes": "{% set x %}"
    + LOOP * 2
    + "abcd" * 999
    + "{% endfor %}" * 2
    + "{% endset %}",
    "a sum": "{{ [range(100000) | list] * 50 | sum(start=[]) | length }}",
}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "MOST_SECONDS", SECONDS)


@pytest.mark.parametrize("name", ENDLESS)
def test_what_has_no_end_is_ended(name: str, soon: None) -> None:
    before = time.thread_time()
    with pytest.raises(InvalidRequest, match="it takes more than"):
        render(ENDLESS[name])
    assert time.thread_time() - before < 10 * SECONDS


@pytest.mark.parametrize("name", GROWING)
def test_what_grows_is_refused_before_it_has_grown(name: str) -> None:
    before = peak()
    with pytest.raises((InvalidRequest, TooLong)):
        render(GROWING[name])
    assert peak() - before < MOST_MEGABYTES


def peak() -> float:
    """The most memory that this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize(
    "source",
    [
        "{{" + "[" * 200 + "]" * 200 + "}}",
        "{{" + "(" * 3000 + "1" + ")" * 3000 + "}}",
        "{% for a in messages %}" * 50 + "{% endfor %}" * 50,
    ],
)
def test_what_python_cannot_compile_is_a_broken_template(source: str) -> None:
    with pytest.raises(TemplateError, match="nested too deeply"):
        ChatTemplate(source, {})


def test_a_text_is_refused_as_soon_as_it_is_too_long() -> None:
    endless = LOOP * 2 + "{{ 'ab' * 1000 }}" + "{% endfor %}" * 2
    with pytest.raises(TooLong, match="more than 100000 characters"):
        ChatTemplate(endless, {}).render(TALK, 100_000)


def test_every_text_has_a_share_of_its_own_in_threads_of_their_own(soon: None) -> None:
    template = ChatTemplate("{% for i in range(20000) %}{% endfor %}{{ messages[0].content }}", {})
    said: list[str] = []

    def work() -> None:
        said.extend(template.render(TALK) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == ["hi"] * 60


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'Today 20261126: %s' % 'x' * 3 }}", "Today 20261126: x" * 3),
        ("{{ '{:>5}|{}'.format(7, 123456789) }}", "    7|123456789"),
        ("{{ '%05.1f' | format(2.25) }}", "002.2"),
        ("{{ [1, [2, 3]] + [4] }}", "[1, [2, 3], 4]"),
        ("{{ ([[1], [2]] | sum(start=[])) ~ none }}", "[1, 2]None"),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=2) | indent(1) | length }}", "37"),
        ("{{ 'a b c'.split() | batch(2) | list }}", "[['a', 'b'], ['c']]"),
        ("{{ 'x-y'.replace('-', '+') | replace('x', 'zz') }}", "zz+y"),
        ("{{ ['a', 1, none] | join('-') }}{{ '-'.join(['a', 'b']) }}", "a-1-Nonea-b"),
        ("{{ 2 ** 10 % 7 * 3 }}", "6"),
        ("{{ dict.fromkeys('ab', 0) }}", "{'a': 0, 'b': 0}"),
        ("{% set ns = namespace(n=123456) %}{{ ns.n }}{{ range(3) | list }}", "123456[0, 1, 2]"),
        ("{% for k, v in {'a': 1}.items() if v %}{{ k, v }}{% else %}none{% endfor %}", "('a', 1)"),
    ],
)
def test_what_stays_small_is_as_ever(source: str, text: str) -> None:
    assert render(source) == text
