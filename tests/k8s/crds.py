"""Objects of operators against the schemas of their CustomResourceDefinitions, without a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.k8s.cluster import Manifest, name_of

Schemas = dict[tuple[str, str], Any]
"""By API version and kind."""


def schemas(folder: Path) -> Schemas:
    """Of all CRDs in the files of a folder, in every version that is served."""
    found: Schemas = {}
    for file in sorted(folder.rglob("*.yaml")):
        for one in yaml.safe_load_all(file.read_text()):
            if one and one.get("kind") == "CustomResourceDefinition":
                found |= _of(one["spec"])
    return found


def _of(spec: Manifest) -> Schemas:
    kind, served = spec["names"]["kind"], [one for one in spec["versions"] if one["served"]]
    found = {}
    for version in served:
        schema = closed(version["schema"]["openAPIV3Schema"])
        # Of every object, which a CRD does not say.
        schema["properties"]["metadata"] = {"type": "object"}
        found[f"{spec['group']}/{version['name']}", kind] = schema
    return found


def closed(schema: Any) -> Any:
    """The same for jsonschema, as strict as a server: no field that it does not name."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    open_ended = "additionalProperties" in made or made.get("x-kubernetes-preserve-unknown-fields")
    if made.get("type") == "object" and "properties" in made and not open_ended:
        made["additionalProperties"] = False
    if made.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if made.get("nullable") and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made


def complaints(manifests: Iterable[Manifest], known: Schemas) -> Iterator[str]:
    """What does not fit, of the kinds that are known."""
    for one in manifests:
        if schema := known.get((one["apiVersion"], one["kind"])):
            for error in jsonschema.Draft202012Validator(schema).iter_errors(one):
                yield f"{name_of(one)}: {error.json_path}: {error.message}"
