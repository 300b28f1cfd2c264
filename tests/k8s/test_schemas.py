"""What the overlays render to is what Kubernetes takes."""

import os
from pathlib import Path

import kubernetes_validate
import pytest

from tests.k8s import crds, ranks
from tests.k8s.cluster import CUSTOM_GROUPS, DOWNLOAD, OVERLAYS, Cluster, name_of, render
from tests.k8s.server import CRDS

OLDEST, NEWEST = "1.30", "1.37"
"""Releases of Kubernetes: the oldest one with all that the manifests use, and the newest known."""

FOLDERS = (*OVERLAYS, DOWNLOAD)


def built_in(cluster: Cluster):
    return [m for m in cluster.manifests if not group_of(m).endswith(CUSTOM_GROUPS)]


def group_of(manifest):
    return manifest["apiVersion"].rpartition("/")[0]


def errors(manifest, version):
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{name_of(manifest)}: {error.message}"
    return None


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_fits_its_schema(folder, version):
    checked = built_in(render(folder))
    assert len(checked) > 3
    assert [found for m in checked if (found := errors(m, version))] == []


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_a_group_of_pods_fits_its_schema(version):
    [group] = render("overlays/prod-multi-node").of("LeaderWorkerSet")
    assert ranks.errors(group, version) == []


@pytest.mark.parametrize(
    ("named", "break_it"),
    [
        ("sizes", lambda spec: spec["leaderWorkerTemplate"].update(sizes=3)),
        ("'Never'", lambda spec: spec["leaderWorkerTemplate"].update(restartPolicy="Never")),
        ("'x'", lambda spec: spec.update(replicas="x")),
        ("workerTemplate", lambda spec: spec["leaderWorkerTemplate"].pop("workerTemplate")),
        (
            "containerss",
            lambda spec: spec["leaderWorkerTemplate"]["workerTemplate"]["spec"].update(
                containerss=[]
            ),
        ),
    ],
)
def test_a_field_of_a_group_that_does_not_exist_is_found(named, break_it):
    [group] = render("overlays/prod-multi-node").of("LeaderWorkerSet")
    break_it(group["spec"])
    assert named in " ".join(ranks.errors(group, NEWEST))


def test_a_field_that_does_not_exist_is_found():
    verifier = render("overlays/kind-cpu").get("Deployment", "verifier")
    verifier["spec"]["template"]["spec"]["containers"][0]["startupProbe"]["periodSecond"] = 5
    assert "periodSecond" in errors(verifier, NEWEST)


@pytest.mark.parametrize("folder", FOLDERS)
def test_objects_of_operators_fit_their_newest_schemas(folder):
    """Those of PACELINE_TEST_CRDS, a folder."""
    if not (given := os.environ.get(CRDS)):
        pytest.skip(f"{CRDS} names no folder of CRDs")
    known, manifests = crds.schemas(Path(given)), render(folder).manifests
    custom = {
        (m["apiVersion"], m["kind"]) for m in manifests if group_of(m).endswith(CUSTOM_GROUPS)
    }
    assert custom <= known.keys()
    assert list(crds.complaints(manifests, known)) == []


def test_a_field_that_a_crd_does_not_know_is_found(tmp_path):
    (tmp_path / "crd.yaml").write_text(SCALED_OBJECT)
    known = crds.schemas(tmp_path)
    scaled = render("overlays/prod-gpu").get("ScaledObject", "drafter")
    scaled["spec"] = {"triggers": [{"type": "prometheus", "metadata": {"query": "1"}}]}
    assert list(crds.complaints([scaled], known)) == []
    scaled["spec"] = {"trigger": [], "triggers": [{"type": 1, "metadata": {"query": "1"}}]}
    found = " ".join(crds.complaints([scaled], known))
    assert "'trigger' was unexpected" in found
    assert "$.spec.triggers[0].type" in found


SCALED_OBJECT = """
kind: CustomResourceDefinition
spec:
  group: keda.sh
  names: {kind: ScaledObject}
  versions:
    - name: v1alpha1
      served: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            apiVersion: {type: string}
            kind: {type: string}
            metadata: {type: object}
            spec:
              type: object
              required: [triggers]
              properties:
                triggers:
                  type: array
                  items:
                    type: object
                    properties:
                      type: {type: string}
                      metadata: {type: object, additionalProperties: {type: string}}
"""
