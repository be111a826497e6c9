"""What a program of a user looks like to a type checker. mypy reads it with the package; nothing runs it."""

from __future__ import annotations

from typing import Any

import ckptool


def types(state_dict: dict[str, Any]) -> None:
    """A dict in, a dict out; a checkpoint in, a checkpoint out; tensors are lazy ones."""
    plain: dict[str, Any] = ckptool.strip_prefix(state_dict, "module.")
    plain = ckptool.rename(plain, str.lower)
    plain = ckptool.drop(ckptool.select(plain, "features"), ["features.0"])
    plain = ckptool.remap(plain, {"cuda:1": "cpu"})
    ckpt: ckptool.Checkpoint = ckptool.strip_prefix(ckptool.open("in.pth"))
    weights: ckptool.StateDict = ckpt.state_dict()
    tensor: ckptool.LazyTensor = weights["conv1.weight"]
    row: ckptool.LazyTensor = tensor[0, ..., :2]
    total: float = float(row.numpy().sum())
    tensor.nmpy()  # type: ignore[attr-defined]
    receipt: ckptool.Plan = ckptool.save({"w": tensor, "total": total}, "out.safetensors")
    seen: ckptool.Inspection = ckptool.inspect("out.safetensors")
    found: ckptool.Diff = ckptool.diff("in.pth", str(receipt.path), rtol=1e-5)
    print(plain, seen, found.same, ckptool.scan("in.pth").verdict, ckptool.doctor("in.pth").cure)
