"""What the overlays render to is what Kubernetes takes."""

import kubernetes_validate
import pytest

from tests.k8s.cluster import CUSTOM_GROUPS, DOWNLOAD, OVERLAYS, Cluster, name_of, render

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
    """Its own fields are those that `ranks` and `rolling` ask for; a real server knows the rest."""
    [group] = render("overlays/prod-multi-node").of("LeaderWorkerSet")
    for kind in ("leaderTemplate", "workerTemplate"):
        template = group["spec"]["leaderWorkerTemplate"][kind]
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}
        pod["metadata"] = {**template["metadata"], "name": kind}
        assert errors(pod, version) is None


def test_a_field_that_does_not_exist_is_found():
    verifier = render("overlays/kind-cpu").get("Deployment", "verifier")
    verifier["spec"]["template"]["spec"]["containers"][0]["startupProbe"]["periodSecond"] = 5
    assert "periodSecond" in errors(verifier, NEWEST)
