"""The PrometheusRule of components/monitoring, made from k8s/rules/paceline.yaml.

`python -m tests.k8s.prometheus_rule` writes it anew.
"""

from pathlib import Path

import yaml

K8S = Path(__file__).parents[2] / "k8s"
RULES = K8S / "rules" / "paceline.yaml"
MANIFEST = K8S / "components" / "monitoring" / "prometheusrule.yaml"
_HEAD = """\
# The groups of k8s/rules/paceline.yaml, for the Prometheus operator. Change them there, then
# python -m tests.k8s.prometheus_rule
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: paceline
  labels:
    app.kubernetes.io/name: paceline
spec:
"""


def manifest(rules: str) -> str:
    """The rules file as the `spec` of a PrometheusRule, comments and all."""
    lines = rules.splitlines()
    begins = next(number for number, line in enumerate(lines) if line.startswith("groups:"))
    return _HEAD + "\n".join([f"  {line}" if line else "" for line in lines[begins:]]) + "\n"


def groups(text: str) -> object:
    """The rule groups of either file."""
    loaded = yaml.safe_load(text)
    return loaded.get("spec", loaded)["groups"]


if __name__ == "__main__":
    MANIFEST.write_text(manifest(RULES.read_text()))
