"""In place of compiled response formats: the test says when they are there, and what they take."""

import threading

from services.contract.errors import Overloaded
from services.engine.structure import Compiled, TooCostly
from services.grammar.spending import OUTPUTS, Spending


class Anything:
    """In place of a `Matcher`: allows all."""

    def __init__(self, each=0.0, allowance=OUTPUTS, clock=None):
        """A mask, or a token of a text that is followed, takes `each` seconds of the `clock`.

        One that is prepared takes none: it is made beside whoever reads the clock.
        """
        self.length = 0
        self.prepared = threading.Event()
        self._each, self._clock = each, clock
        self.spending = Spending(allowance, self._now)

    def _now(self):
        return self._clock.now if self._clock is not None else 0.0

    def _work(self, beside=False):
        if self.spending.over:
            raise TooCostly("too much")
        self.spending.add(self._each)
        if self._clock is not None and not beside:
            self._clock.now += self._each

    def extend(self, tokens):
        self.prepared.clear()
        self.length += len(tokens)
        return True

    def advance(self, tokens, seconds):
        began = self._now()
        for _ in tokens:
            self._work()
            self.length += 1
            if self._now() - began >= seconds:
                break
        return True

    def prepare(self):
        self._work(beside=True)
        self.prepared.set()

    def mask(self, path):
        if path or not self.prepared.is_set():
            self._work()

    def must_end(self, path):
        return False


class Compiler:
    """In place of `Structures`: the test says when a format is compiled."""

    def __init__(self):
        self.asked = []
        self.full = False
        self.matcher = Anything

    def compiled(self, wanted, owner=""):
        if self.full:
            raise Overloaded("too many")
        self.asked.append((wanted, owner, Compiled()))
        return self.asked[-1][2]

    def follow(self, compiled, start=None, *, lenient=False):
        compiled.matcher.result()
        return self.matcher()

    def finish(self, number=-1, error=None):
        matcher = self.asked[number][2].matcher
        if error is None:
            matcher.set_result(None)
        else:
            matcher.set_exception(error)
