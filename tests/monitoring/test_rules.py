"""Alerts fire and stay silent as they should, and each has its paragraph in the runbooks."""

import re
import subprocess

import pytest
import yaml

from tests.monitoring.expressions import ROOT, RULES, alerts, rules
from tests.tools import tool

CASES = RULES.with_name("paceline.test.yaml")
OPERATING = ROOT / "docs" / "operating.md"
ORIGIN = "apt install prometheus"


def promtool(*arguments: str, folder=RULES.parent) -> subprocess.CompletedProcess[str]:
    command = [tool("promtool", ORIGIN), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_prometheus_takes_the_rules():
    done = promtool("check", "rules", RULES.name)
    assert done.returncode == 0, done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_every_alert_fires_and_stays_silent_where_the_cases_say_so():
    done = promtool("test", "rules", CASES.name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_that_fire_without_a_reason_are_found_by_the_cases(tmp_path):
    changed = yaml.safe_load(RULES.read_text())
    for group in changed["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                rule["expr"] = "vector(1)"
    (tmp_path / RULES.name).write_text(yaml.safe_dump(changed))
    (tmp_path / CASES.name).write_text(CASES.read_text())
    done = promtool("test", "rules", CASES.name, folder=tmp_path)
    assert done.returncode != 0
    assert {name for name in alerts() if name in done.stdout + done.stderr} == alerts().keys()


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent():
    looks = [
        look
        for case in yaml.safe_load(CASES.read_text())["tests"]
        for look in case["alert_rule_test"]
    ]
    firing = {look["alertname"] for look in looks if look.get("exp_alerts")}
    silent = {look["alertname"] for look in looks if not look.get("exp_alerts")}
    assert firing == silent == alerts().keys()


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_how_bad_it_is_what_it_saw_and_what_to_do(name):
    alert = alerts()[name]
    assert alert["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    assert re.fullmatch(r"\d+[sm]", alert["for"])
    annotations = alert["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert "$value" in annotations["summary"] or alert["expr"].startswith("absent(")
    assert annotations["description"].endswith(".")
    assert annotations["runbook_url"] == f"docs/operating.md#{name.lower()}"


def test_every_alert_has_its_paragraph_and_every_paragraph_its_alert():
    runbooks = OPERATING.read_text().partition("\n## Runbooks\n")[2].partition("\n## ")[0]
    paragraphs = re.split(r"^### ", runbooks, flags=re.MULTILINE)[1:]
    written = {paragraph.split("\n", 1)[0]: paragraph for paragraph in paragraphs}
    assert list(written) == list(alerts())
    for name, paragraph in written.items():
        # What it means, what users see, where to look, what it may be, what to do.
        assert len(re.findall(r"[.:?](?:\s|$)", paragraph)) >= 4, name
        assert re.search(r"\b(users?|clients?)\b", paragraph, re.IGNORECASE), name
        assert re.search(r"\blook\b", paragraph, re.IGNORECASE), name
