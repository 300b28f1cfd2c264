"""Says what an environment lacks of what distributions ask for: `make image-vllm`.

    python k8s/unmet.py 'paceline[vllm]' redis ...

Each named distribution must be there, and what it asks for with the extras that are named, in
versions that fit. What those ask for in turn is not looked at: it is other people's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def unmet(text: str) -> Iterator[str]:
    """One line for each thing that is not there, or in a version that does not fit."""
    named = Requirement(text)
    if problem := _problem(named):
        yield f"{text}: {problem}"
        return
    known = metadata(named.name).get_all("Provides-Extra") or ()
    yield from (f"{text}: it has no {extra}" for extra in named.extras.difference(known))
    # An extra may name others of the same distribution.
    extras, seen = ["", *named.extras], set[Requirement]()
    for extra in extras:
        for one in _asked(named.name, extra):
            if one in seen:
                continue
            seen.add(one)
            if canonicalize_name(one.name) == canonicalize_name(named.name):
                extras += one.extras - set(extras)
            elif problem := _problem(one):
                yield f"{text}: {one}: {problem}"


def _asked(name: str, extra: str) -> Iterator[Requirement]:
    for line in requires(name) or ():
        one = Requirement(line)
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            yield one


def _problem(wanted: Requirement) -> str:
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return "not installed"
    return "" if wanted.specifier.contains(found, prereleases=True) else f"{found} is installed"


def main(arguments: Sequence[str]) -> int:
    """Print what is unmet; 1 where anything is."""
    lines = dict.fromkeys(line for text in arguments for line in unmet(text))
    for line in lines:
        print(f"unmet: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
