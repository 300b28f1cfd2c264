"""What `paceline doctor` says of machines that this one is not."""

import json

import pytest

from services.console import doctor
from services.console.doctor import Checkpoint, choose, read_checkpoint, run_doctor
from services.contract.errors import StartError
from services.engine.start import Installed
from services.runtime.embedded_redis import EmbeddedRedis
from tests.cpus import told
from tests.engine.eagle import kit
from tests.models import tiny_model_folder

NATIVE, VLLM = Installed("native", "torch 2"), Installed("vllm", "vllm 0.32.0")
NO_VLLM = Installed("vllm", problem="vLLM is not installed here")
NO_NATIVE = Installed("native", problem="torch is not installed")
GPUS = ["cuda:0 H100", "cuda:1 H100"]
PLAIN, AWQ = Checkpoint("llama"), Checkpoint("llama", "awq")


@pytest.fixture(params=[True, False], ids=["bfloat16", "without"])
def bfloat16(request, monkeypatch):
    told(monkeypatch, bfloat16=request.param, half=True)
    return request.param


@pytest.mark.parametrize(
    ("engines", "gpus", "checkpoint", "expected"),
    [
        ([NATIVE, NO_VLLM], [], PLAIN, "--engine native"),
        ([NATIVE, VLLM], [], PLAIN, "--engine native"),
        ([NATIVE, VLLM], GPUS, PLAIN, "--engine vllm --verifier-device cuda:0"),
        ([NATIVE, VLLM], GPUS, None, "--engine vllm --verifier-device cuda:0"),
        ([NATIVE, NO_VLLM], GPUS, PLAIN, "--engine native --verifier-device cuda:0"),
        ([NATIVE, VLLM], [], AWQ, "--engine vllm"),
        ([NO_NATIVE, VLLM], [], PLAIN, "--engine vllm"),
    ],
)
def test_the_choice_follows_from_what_there_is(engines, gpus, checkpoint, expected, bfloat16):
    narrow = "float32" if "vllm" in expected else "float16"
    dtype = "bfloat16" if gpus or bfloat16 else narrow
    assert choose(engines, gpus, checkpoint).flags == f"{expected} --dtype {dtype}"


@pytest.mark.parametrize(
    ("engines", "checkpoint", "said"),
    [
        ([NO_NATIVE, NO_VLLM], PLAIN, "torch is not installed; vllm: vLLM is not installed"),
        ([NATIVE, NO_VLLM], AWQ, "a checkpoint of awq is run by vLLM alone; vllm: vLLM is not"),
    ],
)
def test_what_cannot_be_run_is_said_with_the_reason(engines, checkpoint, said):
    with pytest.raises(StartError, match=said):
        choose(engines, [], checkpoint)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "llama"}, Checkpoint("llama")),
        ({"quantization_config": {"quant_method": "gptq"}}, Checkpoint("unknown", "gptq")),
        ({"quantization_config": [1]}, Checkpoint("unknown")),
        ([], Checkpoint("unknown")),
    ],
)
def test_a_folder_says_what_it_holds(tmp_path, config, expected):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_checkpoint(str(tmp_path)) == expected


def test_a_redis_is_described_or_the_reason_why_not_is_given(capsys):
    with EmbeddedRedis() as redis:
        assert run_doctor(doctor.DoctorOptions(redis=redis.url)) == 0
    said = capsys.readouterr().out
    assert "0 replicas, no append-only file: a restart forgets" in said
    assert run_doctor(doctor.DoctorOptions(redis="redis://u:hunter2@127.0.0.1:1")) == 1
    told = "".join(capsys.readouterr())
    assert "Redis at redis://127.0.0.1:1 does not answer" in told
    assert "hunter2" not in told


def test_a_broken_config_is_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(StartError, match=r"config\.json: RecursionError"):
        read_checkpoint(str(tmp_path))


def test_this_machine_is_described_and_a_model_that_is_not_there_is_named(tmp_path, capsys):
    folder = tiny_model_folder(tmp_path)
    assert run_doctor(doctor.DoctorOptions(target=str(folder))) == 0
    said = capsys.readouterr().out
    assert "cores" in said
    assert "native   torch" in said
    assert "llama" in said
    assert "--engine" in said
    assert run_doctor(doctor.DoctorOptions(target=str(tmp_path / "nowhere"))) == 1
    assert "no such file" in capsys.readouterr().err


def test_a_head_is_measured_under_each_way_to_read_it(tmp_path, capsys):
    target = tiny_model_folder(tmp_path, num_hidden_layers=8)
    made = kit.make(shape={"hidden_size": 64, "num_attention_heads": 4})
    head = kit.save_specforge(made, tmp_path / "head")
    asked = {"head": str(head), "target": str(target)}
    assert run_doctor(doctor.DoctorOptions(**asked)) == 1
    assert "is hardly one of" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "FLOOR", 0.0)
        assert run_doctor(doctor.DoctorOptions(**asked)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("tokens: ")[1] for line in lines if "% of 200 tokens" in line] == [
        "states 2,3,5, residual before the norm",
        "states 1,2,4, residual before the norm",
    ]
    assert run_doctor(doctor.DoctorOptions(head=str(head))) == 1
    assert "--head: give its model with --target" in capsys.readouterr().err
