"""A port moves tensors from file to file: memory does not grow with the model. Inputs are made of holes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("memory is measured as Linux does it", allow_module_level=True)

import ckptool

#: Runs the command line and prints how many MB of memory it took beyond those of the interpreter with torch imported.
MEASURED = """
import re, sys
import torch
from ckptool.cli import main

def megabytes(what):
    with open("/proc/self/status") as status:
        return int(re.search(what + r":\\s+(\\d+) kB", status.read())[1]) >> 10

before = megabytes("VmRSS")
try:
    main(sys.argv[1:])
finally:
    print(megabytes("VmHWM") - before)
"""
WIDE = """
    from torch import nn

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16384, 16384, bias=False) for _ in range(3))
            self.turned = nn.Linear(16384, 2048, bias=False)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.turned(x)
"""


def test_a_source_of_3_gb_is_ported_in_little_memory(tmp_path: Path, in_new_python: Any) -> None:
    shapes = {f"net.h.{i}.weight": [16384, 16384] for i in range(3)} | {"net.out.kernel": [16384, 2048]}
    header, at = {}, 0
    for key, shape in shapes.items():
        size = 4 * shape[0] * shape[1]
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with open(tmp_path / "big.safetensors", "wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + at)
    (tmp_path / "wide.py").write_text(dedent(WIDE))
    out = tmp_path / "out.safetensors"
    hints = ("--hint", "net.h.=layers.", "--hint", "net.out.=turned.")
    done = in_new_python(
        MEASURED, "transfer", tmp_path / "big.safetensors", tmp_path / "wide.py", *hints, "-o", out, "-q"
    )
    assert int(done.split()[-1]) < 500
    made = ckptool.open(out).state_dict()
    assert [made[key].shape for key in made] == [(16384, 16384)] * 3 + [(2048, 16384)]
    assert out.stat().st_size > 3 * 10**9
