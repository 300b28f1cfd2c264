"""Response formats that are compiled, by workers of their own, and the host that waits for them."""

import json
import threading
from concurrent.futures import Future

import pytest

from services.contract import types as t
from services.contract.errors import Overloaded
from services.contract.worker_messages import SessionStarted
from services.drafter.methods.model.forms import form_of
from services.engine.checkpoint.bundle import make_bundle
from services.engine.structure import Compiled, StructureError, Structures
from services.grammar.vetting import Bounds, Vetting
from services.runtime.host import WorkerHost
from services.verifier.options import VerifierOptions
from services.verifier.running.core import RunningCore
from tests.fake_engine import FakeEngine
from tests.models import EOS_ID, VOCAB_SIZE, tiny_model, tiny_tokenizer
from tests.services.fakes import Sink
from tests.services.forms_kit import Compiler
from tests.services.running_bench import start
from tests.waiting import until

FORM = t.ResponseFormat(t.FormatKind.REGEX, ("a+",))
ENDLESS = t.ResponseFormat(
    t.FormatKind.JSON_SCHEMA,
    (json.dumps({"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(24)]}),),
)


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
        lambda emit: RunningCore(FakeEngine(), emit=emit, worker_id="v", options=options)
    )
    host.start()
    try:
        link = host.open_link(sink)
        await host.submit(link, [start(response_format=FORM)])
        await until(lambda: host.progress().sessions and not host.progress().queued_tokens)
        assert not sink.events
        compiler.finish()
        host.wake()
        await sink.until(1)
        assert isinstance(sink.events[0], SessionStarted)
    finally:
        await host.stop()
