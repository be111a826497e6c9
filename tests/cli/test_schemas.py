"""The documents of `--json` are those of the JSON Schemas in the package, and say nothing that these do not name."""

from __future__ import annotations

import json
from importlib.resources import files as resources
from typing import Any

import jsonschema
import pytest
from samples import Files, Run

SCHEMAS = {
    path.name.removesuffix(".json"): json.loads(path.read_text(encoding="utf-8"))
    for path in (resources("ckptool.cli") / "schemas").iterdir()
    if path.name.endswith(".json")
}
TYPED = {
    "inspect": [
        "plain.pth",
        "last.ckpt evil.pth",
        "last.ckpt --stats",
        ". --filter fc",
        "absent.pth",
        "plain.pth absent.pth",
    ],
    "scan": ["evil.pth plain.pth", ".", "absent.pth", "--nonsense"],
    "verify": ["plain.pth", "plain.pth --digest --against dp.pth", "plain.pth absent.pth", "absent.pth"],
    "diff": ["plain.pth dp.pth", "plain.pth last.ckpt --detect-renames", "plain.pth absent.pth", "plain.pth"],
    "doctor": ["last.ckpt", "dp.pth --error CUDA", "--error nonsense", "absent.pth", ". --remove-leftovers"],
    "formats": [""],
    "strip-prefix": [
        "dp.pth out.pth",
        "dp.pth out.pth -v -n",
        "plain.pth out.pth",
        "dp.pth",
        "dp.pth absent.pth --out-dir o",
    ],
    "convert": [
        "dp.pth out.safetensors",
        "last.ckpt o.safetensors",
        "last.ckpt o.safetensors --allow-loss --cast bf16",
    ],
    "clean": ["last.ckpt out.pth"],
    "average": ["plain.pth plain.pth out.pth"],
}


def check(schema: dict[str, Any], document: Any) -> None:
    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize(
    ("command", "rest"), [(command, rest) for command, all_ in TYPED.items() for rest in all_], ids=" ".join
)
def test_a_document_is_as_its_schema_says(run: Run, files: Files, command: str, rest: str) -> None:
    ran = run(command, *rest.split(), "--json")
    document = json.loads(ran.out)
    check(SCHEMAS[command if command in SCHEMAS else "receipt"], document)
    assert bool(document["errors"]) == (ran.code == 2)


def test_a_document_that_says_more_is_noticed(run: Run, files: Files) -> None:
    document = json.loads(run("inspect", "plain.pth", "--json").out)
    document["files"][0]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError):
        check(SCHEMAS["inspect"], document)
