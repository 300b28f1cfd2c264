"""A saturated verifier serves every session equally often, whatever each of them sends."""

from collections import Counter
from itertools import count

from services.contract.types import Verdict, VerifyOpened
from tests.fake_engine import VOCAB, FakeEngine
from tests.services.verifier_bench import Table, block, opening, target_text

TOKENS = 400


class Sender:
    """A session that always has `ahead` chained blocks of `size` right tokens waiting."""

    def __init__(self, table, name, size=0, ahead=1, tree=False, own=None):
        self.name, self.size, self.ahead, self.tree = name, size, ahead, tree
        self._table, self._rounds, self._length = table, count(1), 0
        command = table.opened(session=name, max_tokens=TOKENS, window=40, **(own or {}))
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


def prioritised(table, names, **more):
    """A sender for each name, `tenant/priority/number`."""
    senders = []
    for name in names:
        tenant, priority, _ = name.split("/")
        own = {"cache_scope": tenant, "priority": int(priority)}
        senders.append(Sender(table, name, own=own, **more))
    for sender in senders:
        sender.begin()
    return senders


def test_a_saturated_verifier_serves_a_tenants_sooner_sessions_more_often_and_all_in_the_end():
    table = Table(max_step_tokens=4)
    names = [f"a/{priority}/{i}" for priority in (-100, 100) for i in range(6)]
    senders = prioritised(table, names)
    verdicts = served(table, senders, 90)
    sooner = [verdicts[name] for name in names[:6]]
    later = [verdicts[name] for name in names[6:]]
    assert max(sooner) - min(sooner) <= 1
    assert max(later) - min(later) <= 1
    assert min(sooner) > 5 * max(later)
    # Twenty steps of the engine, as two hundred of priority are worth, and a round of the others.
    assert min(later) >= 90 // 25


def test_a_tenant_has_as_many_turns_whatever_its_priorities():
    for priorities in ((0, 0), (-100, 100), (-100, -100)):
        table = Table(max_step_tokens=3)
        names = [f"a/{priorities[i % 2]}/{i}" for i in range(6)]
        names += [f"b/0/{i}" for i in range(3)]
        verdicts = served(table, prioritised(table, names), 60)
        of_each = {t: sum(n for name, n in verdicts.items() if name[0] == t) for t in "ab"}
        assert of_each == {"a": 120, "b": 60}
        assert {verdicts[name] for name in names[6:]} == {20}


def test_sessions_that_leave_nothing_behind_are_of_nobody_and_have_no_priority():
    table = Table(max_step_tokens=3)
    senders = prioritised(table, [f"/{priority}/{i}" for priority in (-100, 100) for i in range(3)])
    assert set(served(table, senders, 20).values()) == {10}


def test_a_sooner_prompt_is_read_before_those_of_its_tenant_that_came_before():
    now = 0.0
    table = Table(max_step_tokens=8, clock=lambda: now)
    order = {}
    for name, tenant, priority in (("first", "a", 0), ("other", "b", 0), ("sooner", "a", -8)):
        long = tuple((i + len(name)) % VOCAB for i in range(100))
        table.give(opening(session=name, cache_scope=tenant, priority=priority, prompt=long))
        now += 0.5
    while len(order) < 3:
        table.core.step()
        for event in table.taken():
            order[event.session] = len(order)
    assert list(order) == ["sooner", "other", "first"]


def test_of_a_tenants_sessions_the_latest_one_gives_its_memory_up_first():
    for priority, gives_way in ((0, "young"), (-100, "old")):
        table = Table(FakeEngine(300))
        for name, own in (("old", 0), ("young", priority)):
            table.opened(session=name, cache_scope="a", priority=own, max_tokens=250)
        lengths = dict.fromkeys(("old", "young"), 0)
        for number in range(1, 250):
            for name in lengths:
                table.give(block(number, lengths[name], session=name))
            table.core.step()
            preempted = [one.key[1] for one in table.core._sessions.values() if one.preempted]
            if preempted:
                break
            for event in table.taken():
                lengths[event.session] += len(event.token_ids)
        assert preempted == [gives_way]
