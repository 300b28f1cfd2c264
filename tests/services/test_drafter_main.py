"""A drafter process: its settings, the methods it builds, and one that really serves."""

import signal

import pytest
import torch
from paceline.worker.v1 import drafter_pb2, drafter_pb2_grpc
from pydantic import ValidationError

from services.cluster.flags import Flags
from services.contract.errors import StartError
from services.contract.frames import DraftFrame, draft_rows
from services.contract.types import (
    LinkHello,
    VerifyMode,
    WorkerDescription,
    local_methods,
    tree_capability,
)
from services.contract.wire import DRAFTER_LINK, decode_description
from services.drafter.main import make_proposer
from services.drafter.methods.graph.draft_graph import GraphRules
from services.drafter.methods.graph.graph import GraphDrafter
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.methods.ngram.text_pool import PoolLimits
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.lookahead import LookaheadDrafter
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.drafter.methods.text.text import TextDrafter
from services.drafter.registry import Beside, _dtype, build
from services.drafter.settings import DrafterSettings
from services.engine.checkpoint.files import weights_digest
from services.engine.lending import Lending
from services.engine.lookahead_file import Lookahead, save_lookahead
from services.engine.native import NativeEngine
from services.engine.skip_mask import SkipMask, every_second
from services.engine.skip_mask_file import MaskFile, write_mask
from services.engine.spec import ModelSpec
from services.grammar.vetting import Vetting
from services.runtime.serving import open_channel
from tests.cpus import told
from tests.engine.eagle import kit
from tests.models import VOCAB_SIZE, tiny_model_folder
from tests.services.hypothesis_kit import starting
from tests.services.link_kit import first_event, process
from tests.services.text_kit import byte_level

pytestmark = pytest.mark.usefixtures("no_environment")
torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, ("ngram",)),
        ({"draft": "m"}, ("ngram", "model")),
        ({"draft": "m", "method": "ngram, model"}, ("ngram", "model")),
        ({"lookahead": "f"}, ("lookahead",)),
        ({"lookahead": "f", "draft": "m"}, ("ngram", "model", "lookahead")),
    ],
)
def test_the_methods_follow_from_what_is_there(values, names):
    assert DrafterSettings(**values).method_names == names


def test_a_draft_model_is_rounded_where_the_cpu_can_and_a_target_never(monkeypatch):
    auto, asked = DrafterSettings(), DrafterSettings(dtype="bfloat16")
    for able, found in ((True, "int8"), (False, "float32")):
        told(monkeypatch, int8=able)
        assert _dtype(auto, drafts=True) == found
        assert _dtype(auto, drafts=False) == "float32"
        assert _dtype(asked, drafts=True) == "bfloat16"
    for other in (DrafterSettings(device="cuda"), DrafterSettings(engine="vllm")):
        assert _dtype(other, drafts=True) == "bfloat16"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"method": "model"}, "draft"),
        ({"method": "graph"}, "draft"),
        ({"method": "eagle"}, "draft"),
        ({"method": "ngram", "draft": "m"}, "draft"),
        ({"draft_base": "m"}, "draft_base"),
        ({"method": "skip"}, "target"),
        ({"target": "m", "skip_mask": "mask.json"}, "skip_mask"),
        ({"skip_search": True}, "skip_search"),
        ({"method": "text"}, "draft"),
        ({"method": "text", "draft": "m"}, "target: the method text needs"),
        ({"method": "text", "target": "m", "synthetic": "f"}, "synthetic: the method text"),
        ({"method": "text,model", "draft": "m", "target": "t"}, "method: text .* than model"),
        ({"method": "lookahead"}, "lookahead: the method lookahead needs"),
        ({"method": "ngram", "lookahead": "f"}, "lookahead: f is given"),
        ({"ngram_min": 5, "ngram_max": 4}, "ngram_min"),
        ({"lengthen": 2}, "lengthen"),
        ({"method": "model", "draft": "m", "phrase_redis": "redis://here"}, "phrase_redis"),
    ],
)
def test_settings_that_do_not_go_together_are_named(values, named):
    with pytest.raises(ValidationError, match=named):
        DrafterSettings(**values)


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("PACELINE_CPUS", "0,1")
    monkeypatch.setenv("PACELINE_MAX_WINDOW", "9")
    settings = Flags("paceline drafter", "", DrafterSettings).read(DrafterSettings)
    assert (settings.cpus, settings.max_window) == ((0, 1), 9)


def test_two_drafters_left_unnamed_have_different_names():
    assert DrafterSettings().worker_id != DrafterSettings().worker_id


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(
        StartError,
        match="'oracle' is unknown; there is model, eagle, skip, lookahead, graph, text, ngram",
    ):
        build(DrafterSettings(method="oracle"))


def test_a_head_drafts_by_the_method_for_heads_alone(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    draft = str(tmp_path)
    assert DrafterSettings(draft=draft).method_names == ("ngram", "eagle")
    with pytest.raises(StartError, match="which the method eagle drafts with"):
        build(DrafterSettings(draft=draft, method="model"))
    with pytest.raises(StartError, match="describes no EAGLE-3 head"):
        build(DrafterSettings(draft=str(tiny_model_folder(tmp_path / "m")), method="eagle"))


def test_a_head_beside_its_verifier_is_measured_unless_the_floor_is_0(tmp_path):
    target = tiny_model_folder(tmp_path, num_hidden_layers=8)
    random = kit.make(shape={"hidden_size": 64, "num_attention_heads": 4})
    asked = {"draft": str(kit.save_specforge(random, tmp_path / "head")), "method": "eagle"}
    asked |= {"draft_base": str(target), "dtype": "float32", "threads": 1}

    def beside():
        spec = ModelSpec(str(target), threads=1, kv_capacity_tokens=4096)
        return Beside(lambda: NativeEngine.load(spec), Lending(), Vetting())

    with pytest.raises(StartError, match="is hardly a head of this model"):
        build(DrafterSettings(**asked), beside())
    assert build(DrafterSettings(**asked, head_floor=0), beside())
    assert build(DrafterSettings(**asked))


def test_the_pool_of_phrases_has_the_limits_of_the_settings():
    (drafter,) = build(DrafterSettings(phrases=5, phrases_per_tenant=3)).values()
    assert isinstance(drafter, NgramDrafter)
    assert drafter._small.pool._limits == PoolLimits(per_scope=3, capacity=5)


def test_phrases_in_no_redis_stop_the_start():
    with pytest.raises(StartError, match="is not usable"):
        build(DrafterSettings(phrase_redis="nonsense"))


@pytest.fixture
def made(tmp_path):
    """The drafters of these settings, in a small process."""
    return lambda **values: build(DrafterSettings(cache_dir=tmp_path, threads=1, **values))


def described(drafter):
    return drafter.describe(WorkerDescription("d", None))


def test_a_model_is_loaded_from_a_folder(made, tmp_path):
    drafter = made(draft=str(tiny_model_folder(tmp_path)), q_top=3)["model"]
    assert isinstance(drafter, ModelDrafter)
    assert drafter._q_top == 3
    worker = described(drafter)
    assert worker.vocab_size == VOCAB_SIZE
    assert worker.model_fingerprint
    assert worker.tokenizer_fingerprint


def test_drafts_pass_as_text_between_the_tokenizers_of_two_folders(made, tmp_path):
    target = str(tiny_model_folder(tmp_path / "target"))
    draft = tiny_model_folder(tmp_path / "draft", "gpt2")
    (draft / "tokenizer.json").write_text(byte_level().tokenizer_json)
    drafter = made(draft=str(draft), method="text", target=target)["text"]
    assert isinstance(drafter, TextDrafter)
    own = made(draft=target)["model"]
    worker = described(drafter)
    assert worker.tokenizer_fingerprint == described(own).tokenizer_fingerprint
    assert worker.tokenizer_fingerprint != drafter.engine.bundle.fingerprint
    assert worker.model == str(draft)


def test_the_target_is_loaded_with_its_mask_and_thresholds(made, tmp_path):
    folder = str(tiny_model_folder(tmp_path))
    mask, path = SkipMask.of(2, attention=[1]), tmp_path / "mask.json"
    write_mask(path, MaskFile(mask, "tiny", weights_digest(folder, tmp_path)))
    rule = {"skip_threshold": 0.3, "skip_adaptive": False}
    drafter = made(method="skip", target=folder, skip_mask=path, q_top=3, **rule)["skip"]
    assert isinstance(drafter, SkipDrafter)
    assert (drafter._mask, drafter._exit_rule) == (mask, Exit(0.3, adaptive=False))
    assert (drafter._q_top, drafter._trials) == (3, None)


def test_a_search_starts_from_the_mask_with_the_share_of_the_settings(made, tmp_path):
    target = str(tiny_model_folder(tmp_path, num_hidden_layers=6))
    searching = {"method": "skip", "target": target, "skip_search": True}
    (drafter,) = made(**searching, skip_share=0.3).values()
    assert isinstance(drafter, SkipDrafter)
    search = drafter._trials._search
    search.look_at(0)
    assert search.propose() == drafter._mask == every_second(6)
    search.note(every_second(6), 0.5)
    candidate = search.propose()
    assert len(candidate.attention) + len(candidate.mlp) == 2, "0.3 of eight"
    with pytest.raises(StartError, match=r"skip_share: 0\.1 of the 8 sub-layers"):
        made(**searching, skip_share=0.1)


def test_a_mask_for_another_model_stops_the_start_before_weights_are_read(
    made, tmp_path, monkeypatch
):
    monkeypatch.setattr(NativeEngine, "load", lambda spec: pytest.fail("weights were read"))
    path = tmp_path / "mask.json"
    write_mask(path, MaskFile(SkipMask.of(2, attention=[1]), "another", "d" * 64))
    with pytest.raises(StartError, match=r"is for another \(weights dddddddddddd\), but"):
        made(method="skip", target=str(tiny_model_folder(tmp_path)), skip_mask=path)


def test_without_a_mask_every_second_layer_is_skipped_and_a_line_says_so(made, tmp_path, caplog):
    target = str(tiny_model_folder(tmp_path, num_hidden_layers=4))
    drafter = made(method="skip", target=target)["skip"]
    assert isinstance(drafter, SkipDrafter)
    assert drafter._mask == every_second(4)
    assert "`paceline train skip-mask` finds a better set" in caplog.text


def test_graphs_and_trees_take_their_own_numbers(made, tmp_path):
    values = {"draft": str(tiny_model_folder(tmp_path)), "tree_nodes": 3, "tree_level_cost": 0.0}
    graph, model = made(method="graph,model", graph_nodes=9, graph_repeat=-1, **values).values()
    assert isinstance(graph, GraphDrafter)
    assert graph._engine is model._engine
    assert graph._rules == GraphRules(max_nodes=9, repeat=None)
    assert isinstance(model, ModelDrafter)
    assert model._plans[VerifyMode.GREEDY].growth(8).nodes == 3
    (comb,) = made(method="model", tree="comb", **values).values()
    assert isinstance(comb, ModelDrafter)
    assert comb._plans == {}


def test_a_model_that_is_not_there_stops_the_start(made, tmp_path):
    with pytest.raises(StartError, match="no such file"):
        made(draft=str(tmp_path / "nothing"))


def embeddings(folder, width):
    """A tiny model, and a file of look-ahead embeddings of this width for it."""
    base, file = tiny_model_folder(folder), folder / "x.safetensors"
    digest = weights_digest(str(base), folder)
    save_lookahead(file, Lookahead(torch.ones(3, width), str(base), digest))
    return base, str(file)


def test_look_ahead_embeddings_are_loaded_with_the_model_that_they_were_trained_for(made, tmp_path):
    base, file = embeddings(tmp_path, 64)
    (drafter,) = made(lookahead=file).values()
    assert isinstance(drafter, LookaheadDrafter)
    worker = described(drafter)
    assert (worker.model, worker.vocab_size) == (str(base), VOCAB_SIZE)

    made(lookahead=file, target=str(base.rename(tmp_path / "elsewhere")))
    other = tiny_model_folder(tmp_path, seed=1)
    with pytest.raises(StartError, match="has other weights"):
        made(lookahead=file, target=str(other))


def test_look_ahead_embeddings_of_another_width_stop_the_start(made, tmp_path):
    _, file = embeddings(tmp_path, 65)
    with pytest.raises(StartError, match=r"are \[3, 65\], but the model's are 64 wide"):
        made(lookahead=file)


# --- a real process, with torch and numpy out of reach ------------------------------

SCRIPT = """
import sys
for name in ("torch", "numpy", "transformers"):
    sys.modules[name] = None
from pathlib import Path
from services.drafter.main import run
from services.drafter.settings import DrafterSettings
sys.exit(run(DrafterSettings(method="ngram", worker_id="n1", ready_file=Path(sys.argv[1]))))
"""


@pytest.mark.processes
async def test_an_ngram_drafter_serves_without_torch_and_ends_on_sigterm(tmp_path):
    with process(SCRIPT, tmp_path / "ready") as (running, address):
        async with open_channel(address) as channel:
            stub = drafter_pb2_grpc.DrafterServiceStub(channel)
            answer = await stub.Describe(drafter_pb2.DrafterServiceDescribeRequest())
            worker = decode_description(answer.worker)
            assert (worker.worker_id, worker.methods) == ("n1", ("ngram",))
            repeating = starting(prompt=(1, 2, 3, 4, 1, 2), window=3)
            call = stub.Link()
            hello = LinkHello("test", protocol=2)
            await call.write(DRAFTER_LINK.encode_request([repeating], hello))
            [draft] = draft_rows(await first_event(DraftFrame, call, DRAFTER_LINK))
            assert draft.tree.token_ids == (3, 4, 1)
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0


def test_a_proposer_has_the_methods_of_the_settings():
    settings = DrafterSettings(method="ngram")
    told = make_proposer(settings, build(settings)).capabilities
    assert local_methods(told) == ("ngram",)
    assert tree_capability("ngram") in told
