"""What is published of the gateway: flags that exist, and one port that is reached."""

import re
import shlex

import pytest

from tests.console.typed import read
from tests.gateway.openai_kit import GUIDE, RECIPE, ROOT, command_of, recipe


def flags_of(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def test_the_recipes_cluster_takes_its_flags_and_serves_gateways():
    options = read(*command_of("paceline"))
    assert options.vllm_engine
    assert options.host == "127.0.0.1"
    [worker] = [word for word in command_of("gateway") if word.startswith("--worker-urls=")]
    assert worker == f"--worker-urls=grpc://127.0.0.1:{options.port}"
    assert options.redis == "redis://127.0.0.1:6379"


def test_one_port_is_published_and_everything_else_stays_on_loopback():
    services = recipe()
    owner = services.pop("redis")
    assert owner["ports"] == ["127.0.0.1:30000:30000"]
    assert owner["command"][1:3] == ["--bind", "127.0.0.1"]
    assert {service["network_mode"] for service in services.values()} == {"service:redis"}
    assert not any("ports" in service for service in services.values())
    listening = [word for word in command_of("gateway") if "host=" in word]
    assert listening == ["--host=0.0.0.0", "--prometheus-host=127.0.0.1"]


def test_the_images_are_built_from_what_is_there_with_the_gateway_that_is_tested():
    services = recipe()
    build = services["paceline"]["build"]
    context = (RECIPE.parent / build["context"]).resolve()
    assert context == ROOT
    assert f"AS {build['target']}\n" in (context / build["dockerfile"]).read_text()
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    [installed] = re.findall(r"smg==\S+", services["gateway"]["build"]["dockerfile_inline"])
    assert installed in pins
    assert installed in GUIDE.read_text()


@pytest.mark.parametrize("program", ["paceline", "smg"])
def test_the_guides_commands_have_flags_that_exist(program):
    [line] = re.findall(rf"^\.venv/bin/({program} .*)$", GUIDE.read_text(), re.MULTILINE)
    words = shlex.split(line)[1:]
    if program == "paceline":
        assert read(*words).vllm_engine
    else:
        # The recipe's are run by the tests of the gateway.
        assert words[0] == "launch"
        assert flags_of(words) <= flags_of(command_of("gateway"))
