"""A saturated verifier serves every session equally often, whatever each of them sends."""

from collections import Counter
from itertools import count

from services.contract.types import Verdict, VerifyOpened
from tests.fake_engine import VOCAB
from tests.services.verifier_bench import Table, block, opening, target_text

TOKENS = 400


class Sender:
    """A session that always has `ahead` chained blocks of `size` right tokens waiting."""

    def __init__(self, table, name, size=0, ahead=1, tree=False):
        self.name, self.size, self.ahead, self.tree = name, size, ahead, tree
        self._table, self._rounds, self._length = table, count(1), 0
        command = table.opened(session=name, max_tokens=TOKENS, window=40)
        self._text = target_text(command, TOKENS)

    def begin(self):
        for _ in range(self.ahead):
            self.send()

    def send(self):
        start, number = self._length, next(self._rounds)
        tokens = self._text[start : start + self.size]
        chained = number - 1 if self.ahead > 1 else 0
        parents = None
        if self.tree:
            # The right path, and beside each of its tokens a wrong one.
            wrong = [(token + 1) % VOCAB for token in tokens]
            parents = [*range(-1, self.size - 1), *range(-1, self.size - 1)]
            tokens = [*tokens, *wrong]
        message = block(
            number, start, tokens, parents, self.name, extends_round=chained,
            want_bonus=not self.size,
        )  # fmt: skip
        self._length += self.size or 1
        self._table.give(message)


def served(table, senders, steps):
    """How many blocks of each session these many steps took; each is followed by another."""
    by_name = {sender.name: sender for sender in senders}
    verdicts = Counter(dict.fromkeys(by_name, 0))
    for _ in range(steps):
        assert table.core.step()
        for event in table.taken():
            if isinstance(event, Verdict):
                assert not event.discarded
                verdicts[event.session] += 1
                by_name[event.session].send()
    return verdicts


def test_long_drafts_trees_and_chained_blocks_get_no_more_and_no_fewer_turns_than_plain_rounds():
    table = Table(max_step_tokens=12)
    senders = [
        *(Sender(table, f"plain {i}") for i in range(6)),
        *(Sender(table, f"long {i}", size=9) for i in range(3)),
        *(Sender(table, f"chained {i}", size=4, ahead=3) for i in range(3)),
        Sender(table, "tree", size=6, tree=True),
    ]
    for sender in senders:
        sender.begin()
    for steps in (1, 7, 30, 61):
        verdicts = served(table, senders, steps)
        assert max(verdicts.values()) - min(verdicts.values()) <= 1, verdicts
    assert min(verdicts.values()) >= 10


def test_a_long_prompt_takes_no_turn_from_those_that_decode_and_gets_in_itself():
    table = Table(max_step_tokens=8, clock=lambda: 0.0)
    senders = [Sender(table, f"plain {i}") for i in range(12)]
    for sender in senders:
        sender.begin()
    table.give(opening(session="newcomer", prompt=tuple(i % VOCAB for i in range(100))))
    verdicts = served(table, senders, 3)
    assert set(verdicts.values()) == {2}
    opened = []
    for _ in range(20):
        table.core.step()
        events = table.taken()
        opened += [event for event in events if isinstance(event, VerifyOpened)]
        for event in events:
            if isinstance(event, Verdict):
                next(one for one in senders if one.name == event.session).send()
    assert [event.session for event in opened] == ["newcomer"]


def test_who_came_first_is_fed_however_many_shorter_prompts_come_after_it():
    table = Table(max_step_tokens=8, clock=lambda: 0.0)
    table.give(opening(session="long", prompt=tuple(i % VOCAB for i in range(100))))
    opened, steps = [], 0
    for number in range(100):
        table.give(opening(session=f"short {number}", prompt=(1, 2, 3, 4, 5, 6, 7)))
        steps += table.core.step()
        opened += [event.session for event in table.taken() if isinstance(event, VerifyOpened)]
        if "long" in opened:
            break
    assert steps <= 30
    assert "short 0" in opened[:2]
