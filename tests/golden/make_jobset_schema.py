"""Write jobset_v1alpha2.json: the public schema of a JobSet with all of Kubernetes' job and pod below it.

It comes from the models that the Kubeflow Trainer generates from the OpenAPI definitions of JobSet and Kubernetes
(Apache-2.0); descriptions, titles and defaults are left out. The recording needs nothing of Headwise:

    python3 -m venv golden && golden/bin/pip install kubeflow-trainer-api==2.3.0
    golden/bin/python tests/golden/make_jobset_schema.py
"""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

PACKAGE = "kubeflow-trainer-api"


def plain(node: Any) -> Any:
    """The same constraints without prose, null for "not given", the generator's wrappers, or unknown fields."""
    if isinstance(node, list):
        return [plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "actual_instance" in node.get("properties", {}):
        node = node["properties"]["actual_instance"]
    prose = {key for key in ("description", "title", "default") if not isinstance(node.get(key), dict)}
    node = {key: plain(value) for key, value in node.items() if key not in prose}
    options = [option for option in node.pop("anyOf", []) if option != {"type": "null"}]
    if len(options) > 1:
        node["anyOf"] = options
    elif options:
        node |= options[0]
    # Kubernetes refuses unknown fields when it validates strictly.
    if isinstance(node.get("properties"), dict):
        node.setdefault("additionalProperties", False)
    return node


def main() -> None:
    """Write the file beside this one."""
    from kubeflow_trainer_api import models

    schema = plain(models.JobsetV1alpha2JobSet.model_json_schema())
    origin = (
        f"JobSet jobset.x-k8s.io/v1alpha2, from {PACKAGE} {importlib.metadata.version(PACKAGE)}, "
        "Copyright The Kubeflow Authors and The Kubernetes Authors, Apache License 2.0; prose left out"
    )
    text = json.dumps({"$comment": origin, **schema}, sort_keys=True, separators=(",", ":"))
    Path(__file__).with_name("jobset_v1alpha2.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
