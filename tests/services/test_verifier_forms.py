"""Sessions whose response format is being compiled: they hold nobody up, and leave nothing."""

import json
import threading
from concurrent.futures import Future

import pytest
from services.verifier.core import VerifierCore

from services.contract import types as t
from services.contract.errors import Overloaded
from services.drafter.methods.model.forms import form_of
from services.engine.checkpoint.bundle import make_bundle
from services.engine.structure import Compiled, StructureError, Structures
from services.grammar.spending import LIGHT, OUTPUTS, Allowance
from services.grammar.vetting import Bounds, Vetting
from services.runtime.host import WorkerHost
from services.verifier.forms import SHARE
from services.verifier.options import VerifierOptions
from tests.fake_engine import FakeEngine
from tests.models import EOS_ID, VOCAB_SIZE, tiny_model, tiny_tokenizer
from tests.services.fakes import Sink
from tests.services.forms_kit import Anything, Compiler
from tests.services.verifier_bench import PROMPT, Table, Timed, block, opening
from tests.waiting import until

FORM = t.ResponseFormat(t.FormatKind.REGEX, ("a+",))
ENDLESS = t.ResponseFormat(
    t.FormatKind.JSON_SCHEMA,
    (json.dumps({"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(24)]}),),
)


@pytest.fixture
def compiler():
    return Compiler()


@pytest.fixture
def table(compiler):
    return Table(structures=compiler)


def waiting(session="f", **more):
    return opening(session, response_format=FORM, **more)


def test_a_session_that_waits_for_its_form_holds_nobody_up(table, compiler):
    assert table.run(waiting()) == []
    assert table.engine.forwards == [[len(PROMPT) - 1]], "its prompt is fed meanwhile"
    # Nor does its block, which waits with it.
    assert table.run(block(1, 0, session="f")) == []
    assert table.core.patience() == 0
    assert table.core.progress().queued_tokens == 0, "it waits for no step of the engine"
    table.opened(opening("s", prompt=(7, 7, 7)))
    assert table.verdict(block(1, 0)).base_len == 0
    compiler.finish()
    opened, verdict = table.run()
    assert isinstance(opened, t.VerifyOpened)
    assert isinstance(verdict, t.Verdict)
    assert {opened.session, verdict.session} == {"f"}


def test_a_form_that_is_none_is_told_once_and_its_kv_is_freed(table, compiler):
    table.run(waiting())
    assert table.engine.kv_tokens_used > 0
    compiler.finish(error=StructureError("it cannot be compiled"))
    [failed] = table.run()
    assert failed.reason is t.FailureReason.FORMAT
    assert "sampling.response_format" in failed.message
    assert table.core.progress().sessions == 0
    assert table.engine.kv_tokens_used == 0
    assert table.run() == []


def test_a_form_that_could_not_be_told_is_no_fault_of_the_session(table, compiler):
    table.run(waiting())
    compiler.finish(error=Overloaded("the machine was too busy"))
    assert table.failure().reason is t.FailureReason.CAPACITY
    compiler.full = True
    assert table.failure(waiting()).reason is t.FailureReason.CAPACITY
    assert table.engine.kv_tokens_used == 0


@pytest.mark.parametrize("how", ["close", "drop", "open anew"])
def test_what_is_compiled_for_a_session_that_is_gone_opens_nothing(table, compiler, how):
    table.run(waiting())
    if how == "close":
        table.give(t.CloseVerify("f"))
    elif how == "drop":
        table.core.drop_link(1)
    else:
        table.run(waiting(epoch=3))
    compiler.finish(0)
    assert table.run() == []
    if how == "open anew":
        compiler.finish(1)
        [opened] = table.run()
        assert opened.epoch == 3
        table.give(t.CloseVerify("f"))
    assert table.core.progress().sessions == 0


def test_the_same_open_again_does_not_open_before_the_form_is_there(table, compiler):
    table.run(waiting())
    assert table.run(waiting()) == []
    compiler.finish()
    assert len(table.run()) == 1


def test_a_session_that_gave_its_kv_up_meanwhile_still_opens(compiler):
    # Room for one whole session, and for two as they begin.
    given_up = []
    engine = FakeEngine(capacity=320)
    table = Table(engine, structures=compiler, on_preempt=lambda: given_up.append(1))
    table.opened(opening("s", max_tokens=300))
    assert table.run(waiting(prompt=(6, 6, 6), max_tokens=300)) == []
    events, length = [], 0
    for round_ in range(1, 200):
        for event in table.run(block(round_, length)):
            events.append(event)
            length += len(event.token_ids)
    assert given_up
    compiler.finish()
    table.give(t.CloseVerify("s"))
    assert [event.session for event in table.run()] == ["f"]
    assert table.verdict(block(1, 0, session="f")).token_ids


# --- really compiled ---------------------------------------------------------------


@pytest.fixture
def vetting():
    made = Vetting(Bounds(seconds=1.0, memory=256 << 20, patience=250), processes=1)
    yield made
    made.close()


def structures_with(vetting):
    return Structures(make_bundle(tiny_tokenizer(), tiny_model("llama")), VOCAB_SIZE, vetting)


def done(compiled):
    compiled.matcher.exception(timeout=60)
    return compiled


def test_a_format_without_end_is_refused_by_a_worker_within_its_bound(vetting):
    structures, woken = structures_with(vetting), threading.Event()
    structures.wake = woken.set
    compiled = structures.compiled(ENDLESS)
    assert woken.wait(60)
    for _ in range(2):
        with pytest.raises(StructureError, match="bounds"):
            structures.follow(done(compiled))
    assert structures.compiled(ENDLESS) is compiled, "it would be compiled again"


class Endless:
    """Takes formats, and never says what it thinks of them."""

    def submit(self, *_, **__):
        return Future()


def test_the_cores_thread_waits_for_no_format():
    assert not structures_with(Endless()).compiled(ENDLESS).matcher.done()


def test_a_good_format_is_compiled_once_for_all_sessions(vetting):
    structures = structures_with(vetting)
    first, second = structures.compiled(FORM), structures.compiled(FORM)
    assert first is second
    ways = [structures.follow(done(first)) for _ in range(2)]
    [a] = tiny_tokenizer().encode("a")
    assert ways[0].extend([a])
    assert ways[1].length == 0
    assert not ways[1].mask(())[EOS_ID]
    assert ways[0].mask(())[EOS_ID]


def test_what_could_not_be_told_is_tried_again(vetting):
    structures = structures_with(vetting)
    busy = structures.compiled(FORM)
    done(busy)
    structures._compiled[FORM] = failed = Compiled()
    failed.matcher.set_exception(Overloaded("busy"))
    with pytest.raises(Overloaded):
        structures.follow(failed)
    structures.follow(done(structures.compiled(FORM)))


def test_large_grammars_are_not_kept_beyond_their_bytes(vetting, monkeypatch):
    structures = structures_with(vetting)
    monkeypatch.setattr("services.engine.structure.KEPT_BYTES", 100)
    forms = [t.ResponseFormat(t.FormatKind.REGEX, (letter,)) for letter in "abc"]
    for form in forms:
        done(structures.compiled(form)).size = 60
    structures.compiled(forms[2])
    assert list(structures._compiled) == forms[2:]


@pytest.mark.parametrize("wanted", [r"[^\s\S]", r"a[^\s\S]b"])
def test_a_grammar_that_allows_no_first_token_is_refused_at_the_open(wanted):
    structures = structures_with(None)
    with pytest.raises(StructureError, match="allows no output"):
        structures.matcher(t.ResponseFormat(t.FormatKind.REGEX, (wanted,)))


def test_a_draft_is_made_without_its_form_until_that_is_there():
    compiler = Compiler()
    form = form_of(FORM, 2, compiler, "1")
    assert form.of([1, 2, 3]) is None
    form.rewind(2)
    compiler.finish()
    assert form.of([1, 2, 3]) is not None


async def test_a_host_takes_a_turn_when_a_form_is_there():
    """Nothing else would wake an idle core."""
    compiler, sink = Compiler(), Sink()

    options = VerifierOptions(structures=compiler)
    host = WorkerHost(
        lambda emit: VerifierCore(FakeEngine(), emit=emit, worker_id="v", options=options)
    )
    host.start()
    try:
        link = host.open_link(sink)
        await host.submit(link, [waiting()])
        await until(lambda: host.progress().sessions and not host.progress().queued_tokens)
        assert not sink.events
        compiler.finish()
        host.wake()
        await sink.until(1)
        assert isinstance(sink.events[0], t.VerifyOpened)
    finally:
        await host.stop()


# --- what following a form takes ---------------------------------------------------------

STEP = 0.02
"""Seconds of a forward, whatever is in it."""


class Crowd:
    """Sessions that send their next block as soon as the last one is decided, on a virtual clock.

    `heavy` ones have a form whose masks take `mask` seconds each; `plain` ones have none.
    """

    def __init__(self, heavy=(), plain=(), mask=0.03, allowance=OUTPUTS, committed=()):
        self.engine = Timed(1e3 * STEP, 0.0)
        compiler = Compiler()
        compiler.matcher = lambda: Anything(mask, allowance, self.engine)
        self.table = Table(self.engine, structures=compiler, clock=self.engine.clock, gather_ms=0.0)
        self.verdicts = {name: [] for name in (*heavy, *plain)}
        self.failed = {}
        for name in heavy:
            self.table.give(waiting(name, max_tokens=400, committed=committed))
            compiler.finish()
        for name in plain:
            self.table.give(opening(name, max_tokens=400))
        self._lengths = dict.fromkeys(heavy, len(committed))

    def serve(self, seconds):
        """Let the core have so much time."""
        until = self.engine.now + seconds
        while self.engine.now < until:
            patience = self.table.core.patience()
            if patience > 0:
                self.engine.now += patience
            elif not self.table.core.step():
                break
            for event in self.table.taken():
                self._answer(event)
        return self

    def _answer(self, event):
        name = event.session
        if isinstance(event, t.SessionFailed):
            self.failed[name] = event
            return
        if isinstance(event, t.Verdict):
            self.verdicts[name].append(event)
            self._lengths[name] = event.base_len + len(event.token_ids)
        length, round_ = self._lengths.get(name, 0), len(self.verdicts[name]) + 1
        self.table.give(block(round_, length, session=name))

    def count(self, name):
        return len(self.verdicts[name])


def test_heavy_forms_together_take_a_small_part_of_the_time_where_others_wait():
    undisturbed = Crowd(plain="ab").serve(4.0)
    crowd = Crowd(heavy="fgh", plain="ab").serve(4.0)
    spent = 0.03 * sum(map(crowd.count, "fgh"))
    assert not crowd.failed
    assert 0.05 * 4.0 < spent < SHARE * 4.0 + 0.2
    assert crowd.count("a") > 0.85 * undisturbed.count("a")
    # They take turns.
    assert max(map(crowd.count, "fgh")) - min(map(crowd.count, "fgh")) <= 1


def test_one_step_holds_one_heavy_form():
    crowd = Crowd(heavy="fgh", plain="ab").serve(4.0)
    together = [own.batch_size for name in "fgh" for own in crowd.verdicts[name][1:]]
    assert max(together) <= 3


def test_a_heavy_form_is_not_held_up_where_nobody_else_is():
    alone = Crowd(heavy="f", allowance=Allowance(0.05, 1.0)).serve(4.0)
    assert alone.count("f") > 0.95 * 4.0 / (STEP + 0.03)


def test_usual_forms_are_never_held_up():
    crowd = Crowd(heavy="fgh", plain="ab", mask=0.9 * LIGHT).serve(4.0)
    assert abs(crowd.count("f") - crowd.count("a")) <= 2


def test_nobody_learns_from_what_forms_take():
    """Neither whoever hears of a step's time nor the verifier's own model of it."""
    crowd = Crowd(heavy="f", plain="ab").serve(2.0)
    told = [own.verify_ms for name in "fab" for own in crowd.verdicts[name]]
    assert max(told) == pytest.approx(1e3 * STEP)
    assert crowd.table.core.progress().step_ms == pytest.approx(1e3 * STEP)
    assert crowd.table.core._gathering.line.at(2) == pytest.approx(STEP)


def test_a_session_whose_form_takes_more_than_it_may_ends_alone_and_for_good():
    crowd = Crowd(heavy="f", plain="ab", allowance=Allowance(0.01, 0.1)).serve(2.0)
    [failed] = crowd.failed.values()
    assert (failed.session, failed.reason) == ("f", t.FailureReason.FORMAT_COST)
    assert failed.reason.for_good
    assert "sampling.response_format" in failed.message
    # 20 ms a mask beyond what is allowed, and one that is on its way.
    assert crowd.count("f") == 6
    assert crowd.count("a") > 80
    assert crowd.table.core.progress().sessions == 2


def test_the_text_of_a_session_that_comes_back_is_followed_bit_by_bit():
    """Others are served meanwhile, and it opens behind all of its text."""
    text, each = (7,) * 300, 0.5e-3
    crowd = Crowd(heavy="f", plain="ab", mask=each, committed=text).serve(0.06)
    assert crowd.count("a") >= 2
    assert not crowd.count("f")
    crowd.serve(4.0)
    assert crowd.verdicts["f"][0].base_len == len(text)
    assert max(own.verify_ms for own in crowd.verdicts["a"]) < 2e3 * STEP


def test_a_text_that_takes_too_much_to_follow_ends_its_session_and_holds_nobody_up():
    text = (7,) * 300
    crowd = Crowd(heavy="f", plain="ab", committed=text, allowance=Allowance(0.01, 0.1)).serve(4.0)
    assert crowd.failed["f"].reason is t.FailureReason.FORMAT_COST
    assert crowd.count("a") > 0.85 * Crowd(plain="ab").serve(4.0).count("a")
