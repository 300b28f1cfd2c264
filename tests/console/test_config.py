"""`--config FILE`: below flags and variables, and refused in one line where it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cluster.specs import Site, orchestrator_specs, worker_specs
from services.console import up
from services.console.main import flags_of
from services.contract.errors import StartError
from services.runtime.atomic_file import MOST_BYTES
from tests.console.typed import paceline
from tests.docs.pages import ROOT

EXAMPLE = ROOT / "examples" / "cluster.toml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.toml"


def read(file: Path, *words: str, text: str = "") -> up.UpOptions:
    """What `paceline up` would run with."""
    file.write_text(text, "utf-8")
    flags = flags_of("up")
    flags.parse(["--config", str(file), *words])
    return flags.read(up.UpOptions, sections=flags.sections)


def specs(options: up.UpOptions, folder: Path):
    site = Site(1, folder, "redis://r", (0, 1))
    made = [*worker_specs(options, site), *orchestrator_specs(options, site)]
    return {spec.name: spec for spec in made}


def test_a_flag_wins_over_a_variable_which_wins_over_the_file(file, monkeypatch):
    text = 'target = "m"\nport = 1\nhost = "a"\nmethod = "skip"'
    monkeypatch.setenv("PACELINE_PORT", "2")
    monkeypatch.setenv("PACELINE_HOST", "b")
    options = read(file, "--port", "3", text=text)
    assert (options.port, options.host, options.method) == (3, "b", "skip")
    assert options.drafters == 1


def test_keys_are_flags_and_values_are_as_toml_has_them(file):
    text = 'verifier_device = ["cuda:0", "cuda:1"]\ntensor-parallel = 2\npool = false\npin = false'
    options = read(file, text=text)
    assert options.verifier_device == ("cuda:0", "cuda:1")
    assert (options.tensor_parallel, options.pool, options.pin) == (2, False, False)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("verifer = 2", "there is no flag for verifer; is verifiers meant?"),
        ("[nobody]", "there is no flag for nobody"),
        ("config = 'other'", "there is no flag for config"),
        ("port = 'x'", "port: 'x' is not allowed: "),
        ("port = true", "port: 'True' is not allowed: "),
        ("port = [1, 2]", "port: a list is no value of a flag"),
        ("verifiers = 0", "verifiers: '0' is not allowed: "),
        ("[port]", "port: a dict is no value of a flag"),
        ("verifier = 2", "[verifier]: there is no flag for verifier"),
        ("[verifier]\nmax_contxt = 1", "there is no flag for max_contxt; is max-context meant?"),
        ("[drafter]\nngram-max = 0", "[drafter]: ngram-max: '0' is not allowed: "),
        ("[orchestrator]\nmethod = 'ngram'", "[orchestrator]: --method is a flag of paceline up"),
        ("[orchestrator]\nverifier-addresses = ['x']", "verifier-addresses: 'x' is not allowed"),
        ("port = 1\nport = 2", "is no TOML: "),
        ("a" * 5000 + " = 1", "there is no flag for aaaa"),
        ("port = " + "[" * 5000, "is no TOML: "),
        ("fallback = false", "fallback is no longer there: give --pacing eager"),
        ("[verifier]\ngather_ms = 0", "[verifier]: gather-ms is no longer there: "),
    ],
)
def test_what_a_file_says_wrong_is_named_in_one_line(file, text, told):
    file.write_text(text, "utf-8")
    done = paceline("up", "--config", str(file))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"paceline up: --config: {file}")
    assert told in done.stderr
    assert len(done.stderr) < 1000


def test_a_file_that_cannot_be_read_is_refused_in_one_line(file):
    for path, told in ((file, "No such file"), (file.parent, "Is a directory")):
        done = paceline("verifier", "--config", str(path))
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert f"--config: cannot read {path}: {told}" in done.stderr
    for content, told in ((b"\xff", "not text in UTF-8"), (b"#" * (MOST_BYTES + 1), "larger than")):
        file.write_bytes(content)
        assert told in paceline("verifier", "--config", str(file)).stderr


def test_a_section_is_below_the_variables_of_its_processes(file, tmp_path):
    text = 'target = "m"\npool = true\n[verifier]\nmax-context = 9\n[drafter]\nngram_max = 6'
    made = specs(read(file, text=text), tmp_path)
    assert made["verifier-1"].defaults == {"PACELINE_MAX_CONTEXT": "9"}
    assert made["drafter-1"].defaults == {"PACELINE_NGRAM_MAX": "6"}
    assert made["orchestrator"].defaults == {}


def test_how_drafters_draft_holds_beside_a_verifier_too(file, tmp_path):
    text = 'target = "m"\n[drafter]\nngram-max = 6\nmax-context = 9'
    made = specs(read(file, text=text), tmp_path)
    assert made["verifier-1"].defaults == {"PACELINE_NGRAM_MAX": "6"}


def test_what_up_sets_by_itself_is_refused_in_a_section(file, tmp_path):
    for key, value in (("worker-id", '"a"'), ("threads", 2), ("start-timeout", 1)):
        role = "orchestrator" if key == "start-timeout" else "verifier"
        options = read(file, text=f'target = "m"\n[{role}]\n{key} = {value}')
        told = rf"\[{role}\] {key.replace('-', '_')}: paceline up sets it by itself"
        with pytest.raises(StartError, match=told):
            specs(options, tmp_path)


def test_the_example_is_a_cluster(tmp_path):
    options = read(tmp_path / "copy.toml", text=EXAMPLE.read_text("utf-8"))
    options.check()
    made = specs(options, tmp_path)
    assert sorted(made) == ["orchestrator", "verifier-1", "verifier-2"]
    assert made["verifier-2"].defaults["PACELINE_NGRAM_MAX"] == "6"
    assert made["orchestrator"].defaults["PACELINE_LOG_JSON"] == "True"
