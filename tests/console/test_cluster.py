"""What is started for a local cluster, and with which flags."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.settings import OrchestratorSettings
from services.cluster import local
from services.cluster.beside import BesideSettings, drafter_settings
from services.cluster.flags import Flags
from services.cluster.models import DEMO_HEAD
from services.cluster.process import ProcessSettings
from services.cluster.specs import (
    ClusterOptions,
    Site,
    orchestrator_specs,
    role_of,
    worker_specs,
)
from services.cluster.supervisor import START_TIMEOUT_S
from services.console.up import describe
from services.contract.errors import StartError
from services.contract.types import Role
from services.drafter.settings import DrafterSettings
from services.engine import number_formats
from services.verifier.main import _model_spec
from services.verifier.settings import VerifierSettings
from tests.cpus import told

KINDS = {
    "verifier": VerifierSettings,
    "drafter": DrafterSettings,
    "orchestrator": OrchestratorSettings,
}


@pytest.fixture
def site(tmp_path):
    return Site(owner=1234, folder=tmp_path, redis="redis://somewhere:6379", cores=(0, 1))


def settings_of(spec):
    """The settings that the process would read: also proves that every flag exists."""
    flags = flags_of(spec)
    assert flags.read(ProcessSettings).tether == 1234
    return flags.read(KINDS[spec.argv[spec.argv.index("paceline") + 1]])


def flags_of(spec):
    role, *arguments = spec.argv[spec.argv.index("paceline") + 1 :]
    flags = Flags(role, "", KINDS[role], ProcessSettings, BesideSettings)
    flags.parse(arguments)
    return flags


def test_without_a_draft_model_the_verifier_has_every_core(site):
    for options in (ClusterOptions("big"), ClusterOptions("big", drafters=0)):
        [verifier] = map(settings_of, worker_specs(options, site))
        assert (verifier.target, verifier.dtype) == ("big", "float32")
        assert (verifier.threads, verifier.cpus) == (2, (0, 1))


def test_n_grams_are_drafted_beside_the_verifier(site):
    for method in ("", "ngram"):
        [spec] = worker_specs(ClusterOptions("big", method=method, ngrams="f.bin"), site)
        drafter = drafter_settings(flags_of(spec), settings_of(spec))
        assert (drafter.method_names, drafter.ngrams) == (("ngram",), "f.bin")
        assert drafter.worker_id == "verifier-1-drafter"


@pytest.mark.parametrize(
    "apart", [{"pool": True}, {"drafters": 2}, {"tensor_parallel": 2, "engine": "vllm"}]
)
def test_n_grams_are_drafted_apart_where_that_is_asked_for_or_must_be(site, apart):
    options = ClusterOptions("big", **apart)
    verifier, *drafters = worker_specs(options, site)
    assert drafter_settings(flags_of(verifier), settings_of(verifier)) is None
    assert len(drafters) == options.drafters
    for drafter in map(settings_of, drafters):
        assert (drafter.method_names, drafter.cpus) == (("ngram",), ())


def test_several_verifiers_draft_beside_where_they_are_told_to(site):
    options = ClusterOptions("big", verifiers=2, drafters=2, pool=False)
    specs = worker_specs(options, site)
    assert [spec.name for spec in specs] == ["verifier-1", "verifier-2"]
    for spec in specs:
        assert drafter_settings(flags_of(spec), settings_of(spec)).method_names == ("ngram",)


def test_a_draft_model_has_a_core_of_its_own(site):
    options = ClusterOptions(target="big", draft="small", dtype="bfloat16")
    verifier, drafter = map(settings_of, worker_specs(options, site))
    assert (verifier.threads, verifier.cpus) == (1, (0,))
    assert (drafter.threads, drafter.cpus) == (1, (1,))
    assert (drafter.draft, drafter.dtype) == ("small", "auto")
    assert drafter.method_names == ("ngram", "model")


def beside(site, **options):
    """What the verifier of a cluster drafts with, of all its workers."""
    verifier, *_ = worker_specs(ClusterOptions("big", ngrams="f.bin", **options), site)
    drafter = drafter_settings(flags_of(verifier), settings_of(verifier))
    return None if drafter is None else (drafter.method_names, drafter.ngrams)


@pytest.mark.parametrize("method", ["text", "ngram,text"])
def test_a_draft_model_with_another_tokenizer_is_told_the_target(site, method):
    _, drafter = worker_specs(ClusterOptions("big", draft="small", method=method), site)
    settings = settings_of(drafter)
    assert (settings.draft, settings.target) == ("small", "big")
    assert settings.method == method


def test_with_a_draft_model_n_grams_are_drafted_beside_the_verifier_too(site):
    for options in ({}, {"method": "ngram,model"}, {"drafters": 2}, {"pool": False}):
        assert beside(site, draft="small", **options) == (("ngram",), "f.bin")
    for options in ({"method": "model"}, {"pool": True}, {"tensor_parallel": 2, "engine": "vllm"}):
        assert beside(site, draft="small", **options) is None


@pytest.mark.parametrize(
    ("options", "drafters"),
    [
        ({"method": "ngram"}, []),
        ({"draft": "small"}, ["drafter-1"]),
    ],
)
def test_what_drafts_beside_a_verifier_is_no_worker(site, options, drafters):
    given = ClusterOptions("big", **options)
    assert [
        own.name for own in worker_specs(given, site) if role_of(own) is Role.DRAFTER
    ] == drafters


@pytest.fixture
def head(tmp_path):
    """The folder of a head, as far as its name goes."""
    (tmp_path / "head").mkdir()
    said = {"architectures": ["LlamaForCausalLMEagle3"]}
    (tmp_path / "head" / "config.json").write_text(json.dumps(said))
    return str(tmp_path / "head")


def test_a_head_drafts_beside_the_states_that_it_needs(site, head):
    [spec] = worker_specs(ClusterOptions("big", draft=head, dtype="bfloat16"), site)
    verifier = settings_of(spec)
    assert (verifier.threads, verifier.dtype) == (2, "bfloat16")
    drafter = drafter_settings(flags_of(spec), verifier)
    assert drafter.method_names == ("ngram", "eagle")
    assert (drafter.draft, drafter.draft_base, drafter.dtype) == (head, "big", "auto")
    assert describe(ClusterOptions("big", draft=head)).endswith(f"ngram,eagle ({head}), too")


def test_a_head_may_have_a_process_and_a_core_of_its_own(site, head):
    options = ClusterOptions("big", draft=head, method="eagle", pool=True)
    verifier, drafter = map(settings_of, worker_specs(options, site))
    assert (verifier.cpus, drafter.cpus) == ((0,), (1,))
    assert (drafter.draft, drafter.draft_base) == (head, "big")
    assert drafter.method_names == ("eagle",)


def test_the_processes_of_a_split_verifier_share_its_cores(site):
    options = ClusterOptions(target="big", tensor_parallel=2, engine="vllm")
    verifier = settings_of(worker_specs(options, site)[0])
    assert (verifier.tensor_parallel, verifier.threads, verifier.cpus) == (2, 1, (0, 1))
    options = ClusterOptions(target="big", tensor_parallel=4, engine="vllm")
    assert settings_of(worker_specs(options, site)[0]).threads == 1


def test_a_split_verifier_drafts_for_nobody(site):
    options = ClusterOptions(
        target="big", lookahead="f.safetensors", tensor_parallel=2, engine="vllm"
    )
    [spec] = worker_specs(options, site)
    with pytest.raises(StartError, match="drafting: a target that is split"):
        drafter_settings(flags_of(spec), settings_of(spec))


def test_a_verifier_may_leave_a_core_alone_that_no_drafter_needs(site):
    verifier, drafter = worker_specs(ClusterOptions("m", spare_core=True, pool=True), site)
    assert settings_of(verifier).cpus == (0,)
    assert "--cpus" not in drafter.argv


def test_the_draft_model_may_have_a_number_format_of_its_own(site):
    options = ClusterOptions(target="big", draft="small", draft_dtype="bfloat16")
    verifier, drafter = map(settings_of, worker_specs(options, site))
    assert (verifier.dtype, drafter.dtype) == ("float32", "bfloat16")
    assert drafter.draft_base is None


@pytest.mark.parametrize("asked", [None, True, False])
def test_equal_bits_may_be_asked_for_and_declined(site, asked):
    [verifier] = worker_specs(ClusterOptions("big", batch_invariant=asked), site)
    assert _model_spec(settings_of(verifier)).batch_invariant is asked


def test_nobody_waits_for_torch_before_workers_start(site, monkeypatch):
    monkeypatch.setattr(number_formats, "cpu", pytest.fail)
    options = ClusterOptions("big", dtype="auto", draft=DEMO_HEAD)
    assert [settings_of(spec).dtype for spec in worker_specs(options, site)] == ["auto"]
    assert describe(options)


@pytest.mark.parametrize(
    ("here", "device", "expected", "passed_on", "named"),
    [
        ({"bfloat16": True}, "cpu", "bfloat16", "auto", "the faster number format"),
        ({"half": True}, "cpu", "float16", "auto", "the faster number format"),
        ({}, "cpu", "float32", "auto", "the faster number format"),
        ({}, "cuda:0", "bfloat16", "bfloat16", "bfloat16"),
    ],
)
def test_the_faster_number_format_is_chosen_and_named(
    site, monkeypatch, here, device, expected, passed_on, named
):
    told(monkeypatch, **{"bfloat16": False, "half": False} | here)
    options = ClusterOptions(
        "big", dtype="auto", verifier_device=(device,), method="skip", pool=True
    )
    assert [settings_of(spec).dtype for spec in worker_specs(options, site)] == [
        passed_on,
        expected,
    ]
    assert f"of big in {named}, " in describe(options)
    assert _model_spec(VerifierSettings(target="m", dtype="auto", device=device)).dtype == expected
    assert _model_spec(VerifierSettings(target="m", device=device)).dtype == "float32"


def test_what_drafts_with_the_target_does_so_beside_it_on_every_core(site, tmp_path):
    mask = tmp_path / "mask.json"
    options = ClusterOptions(target="big", method="skip,ngram", skip_mask=mask, verifiers=2)
    for spec, core in zip(worker_specs(options, site), (0, 1), strict=True):
        verifier = settings_of(spec)
        drafter = drafter_settings(flags_of(spec), verifier)
        assert verifier.cpus == (core,)
        assert (drafter.target, drafter.method_names) == ("big", ("skip", "ngram"))
        assert (drafter.skip_mask, drafter.worker_id) == (mask, f"{verifier.worker_id}-drafter")


def test_look_ahead_embeddings_alone_are_used_beside_the_target(site):
    [spec] = worker_specs(ClusterOptions(target="big", lookahead="f.safetensors"), site)
    drafter = drafter_settings(flags_of(spec), settings_of(spec))
    assert (drafter.method_names, drafter.lookahead) == (("lookahead",), "f.safetensors")


def test_each_role_has_devices_of_its_own(site):
    devices = {"verifier_device": ("cuda:0", "cuda:1"), "drafter_device": ("cuda:2",)}
    options = ClusterOptions("big", draft="small", verifiers=3, drafters=2, **devices)
    specs = [(spec.name.split("-")[0], settings_of(spec)) for spec in worker_specs(options, site)]
    found = [own.device for role, own in specs if role == "verifier"]
    assert found == ["cuda:0", "cuda:1", "cuda:0"]
    assert [own.device for role, own in specs if role == "drafter"] == ["cuda:2"] * 2
    assert {own.memory_share for _, own in specs} == {None}


def test_a_device_of_both_roles_is_shared_between_them(site):
    devices = {"verifier_device": ("cuda:0",), "drafter_device": ("cuda:0",), "engine": "vllm"}
    specs = worker_specs(ClusterOptions("big", draft="small", **devices), site)
    shares = [settings_of(spec).memory_share for spec in specs]
    assert None not in shares
    assert sum(shares) < 1


class Starts:
    """A supervisor that notes what it starts at once."""

    def __init__(self):
        self.at_once = []

    async def start(self, specs):
        self.at_once.append([spec.name for spec in specs])
        return [f"{spec.name}:1" for spec in specs]


@pytest.mark.parametrize(
    ("engine", "drafter", "at_once"),
    [
        ("vllm", "cuda:0", [["verifier-1"], ["drafter-1"], ["orchestrator"]]),
        ("vllm", "cuda:1", [["verifier-1", "drafter-1", "orchestrator"]]),
        ("native", "cuda:0", [["verifier-1", "drafter-1", "orchestrator"]]),
    ],
)
async def test_workers_that_share_a_device_by_vllm_start_in_turn(site, engine, drafter, at_once):
    options = ClusterOptions(
        "big", draft="small", engine=engine, verifier_device=("cuda:0",), drafter_device=(drafter,)
    )
    starts = Starts()
    specs = [*worker_specs(options, site), *orchestrator_specs(options, site)]
    addresses = await local._start(starts, options, specs)
    assert starts.at_once == at_once
    assert addresses == ["verifier-1:1", "drafter-1:1", "orchestrator:1"]


@pytest.mark.parametrize("draft", ["small", None, DEMO_HEAD])
def test_the_engine_is_that_of_both_roles_but_where_vllm_runs_no_draft(site, monkeypatch, draft):
    monkeypatch.setenv("PACELINE_ENGINE", "vllm")  # as vLLM's image has it
    monkeypatch.setenv("PACELINE_EXECUTION", "compiled")
    options = ClusterOptions("big", draft=draft, pool=True, engine="vllm", execution="compiled")
    verifier, drafter = map(settings_of, worker_specs(options, site))
    assert (verifier.engine, verifier.execution) == ("vllm", "compiled")
    by_vllm = ("vllm", "compiled") if draft == "small" else ("native", "eager")
    assert (drafter.engine, drafter.execution) == by_vllm


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"execution": "compiled"}, "--execution: only --engine vllm has others than eager"),
        ({"tensor_parallel": 2}, "--tensor-parallel: only --engine vllm splits a model"),
        ({"engine": "vllm", "method": "skip"}, "draft on the native engine alone"),
        ({"engine": "vllm", "lookahead": "f"}, "draft on the native engine alone"),
        (
            {"engine": "vllm", "tensor_parallel": 2, "verifier_device": ("cuda:1",)},
            "ranks take devices by themselves",
        ),
    ],
)
def test_what_no_engine_does_is_refused(asked, why):
    with pytest.raises(StartError, match=why):
        ClusterOptions("big", **asked).check()


def test_a_verifier_drafts_only_if_it_is_told_to(site, monkeypatch):
    monkeypatch.setenv("PACELINE_METHOD", "model")
    monkeypatch.setenv("PACELINE_DRAFT", "small")
    spec, *_ = worker_specs(ClusterOptions(target="big", pool=True), site)
    assert drafter_settings(flags_of(spec), settings_of(spec)) is None
    monkeypatch.setenv("PACELINE_DRAFTING", "skip,ngram")
    monkeypatch.setenv("PACELINE_NGRAM_MAX", "6")
    drafter = drafter_settings(flags_of(spec), settings_of(spec))
    assert (drafter.method_names, drafter.draft) == (("skip", "ngram"), None)
    assert drafter.ngram_max == 6


@pytest.mark.parametrize(
    ("asked", "methods"),
    [
        ({"method": "skip,ngram"}, ("skip", "ngram")),
        ({"lookahead": "f.safetensors"}, ("lookahead",)),
    ],
)
def test_what_drafts_with_the_target_may_run_it_on_a_core_of_its_own(site, asked, methods):
    options = ClusterOptions("big", dtype="bfloat16", pool=True, **asked)
    verifier, drafter = map(settings_of, worker_specs(options, site))
    assert (verifier.cpus, drafter.cpus) == ((0,), (1,))
    assert (drafter.target, drafter.dtype) == ("big", "bfloat16")
    assert (drafter.method_names, drafter.lookahead) == (methods, options.lookahead)


@pytest.mark.parametrize(("asked", "threads"), [({"verifier_threads": 3}, 3), ({"pin": False}, 2)])
def test_threads_that_are_asked_for_are_not_pinned_nor_any_without_pin(site, asked, threads):
    [verifier] = map(settings_of, worker_specs(ClusterOptions(target="big", **asked), site))
    assert (verifier.threads, verifier.cpus) == (threads, ())


def test_every_worker_has_a_name_a_ready_file_and_the_store(site):
    options = ClusterOptions(target="big", draft="small", verifiers=2, drafters=2)
    specs = worker_specs(options, site)
    assert [spec.name for spec in specs] == ["verifier-1", "verifier-2", "drafter-1", "drafter-2"]
    for spec in specs:
        settings = settings_of(spec)
        assert settings.worker_id == spec.name
        assert settings.redis == "redis://somewhere:6379"
        assert settings.ready_file == spec.ready_file
        assert settings.port == 0
    assert len({spec.log_file for spec in specs}) == 4


def test_a_password_of_redis_is_in_no_command_line(site):
    secret = replace(site, redis="redis://u:hunter2@somewhere")
    options = ClusterOptions(target="big")
    for spec in (*worker_specs(options, secret), *orchestrator_specs(options, secret)):
        assert "hunter2" not in " ".join(spec.argv)
        assert spec.environment == {"PACELINE_REDIS": secret.redis}


def test_the_orchestrator_listens_where_it_is_told(site):
    [spec] = orchestrator_specs(ClusterOptions(target="big", host="::1", port=7000), site)
    settings = settings_of(spec)
    assert (settings.host, settings.port, settings.pacing) == ("::1", 7000, "adaptive")
    assert settings.start_timeout == START_TIMEOUT_S
    assert settings.ready_file == Path(spec.ready_file)


def test_one_orchestrator_for_each_pacing_and_only_the_first_on_the_port(site):
    options = ClusterOptions(target="big", port=7000, pacings=("fixed", "eager"))
    specs = orchestrator_specs(options, site)
    assert [spec.name for spec in specs] == ["orchestrator-fixed", "orchestrator-eager"]
    assert [(s.pacing, s.port) for s in map(settings_of, specs)] == [("fixed", 7000), ("eager", 0)]


def test_synthetic_workers_have_no_model_and_no_core_of_their_own(site, tmp_path):
    options = ClusterOptions(target="", synthetic=tmp_path / "times.json")
    verifier, drafter = map(settings_of, worker_specs(options, site))
    assert verifier.synthetic == drafter.synthetic == tmp_path / "times.json"
    assert (verifier.target, drafter.draft, drafter.method_names) == ("", None, ("model",))
    assert verifier.cpus == drafter.cpus == ()
    assert verifier.threads == drafter.threads == 1


def test_synthetic_drafters_may_draft_by_n_grams_instead(site, tmp_path):
    options = ClusterOptions(target="", synthetic=tmp_path / "times.json", method="ngram")
    drafter = settings_of(worker_specs(options, site)[1])
    assert drafter.method_names == ("ngram",)
