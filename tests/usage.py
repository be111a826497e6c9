"""What a program of a user looks like to type checkers: mypy, and pyright beside the wheel. Nothing runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

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
    sizes: list[int] = [one.shape[0] for one in weights.values()]
    kept: dict[str, ckptool.LazyTensor] = {key.upper(): one for key, one in weights.items() if one.nbytes}
    total: float = float(row.numpy().sum())
    tensor.nmpy()  # type: ignore[attr-defined]  # pyright: ignore
    receipt: ckptool.Plan = ckptool.save({"w": tensor, "total": total}, "out.safetensors")
    seen: ckptool.Inspection = ckptool.inspect("out.safetensors")
    found: ckptool.Diff = ckptool.diff("in.pth", str(receipt.path), rtol=1e-5)
    print(plain, sizes, kept, seen, found.same, ckptool.scan("in.pth").verdict, ckptool.doctor("in.pth").cure)


def passes(path: Path) -> ckptool.Checkpoint:
    """Each pass gives what it takes."""
    ckpt = ckptool.unwrap(ckptool.open(path))
    ckpt = ckptool.rename(ckpt, {"old": "new"})
    ckpt = ckptool.rename(ckpt, lambda key: None if key.startswith("aux.") else key)
    ckpt = ckptool.add_prefix(ckptool.drop_buffers(ckptool.clean(ckpt)), "model.")
    ckpt = ckptool.cast(ckptool.untie(ckptool.to_dense(ckpt)), "bf16", keep=["re:running"])
    ckpt = ckptool.map_location(ckptool.compact(ckpt), "cuda:*=cpu")
    ckpt = ckptool.wrap(ckptool.extract(ckpt), "state_dict")
    return ckptool.average([ckpt, ckptool.slim(ckptool.open(path))])


def values(path: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Checkpoints and state dicts are mappings, and tensors arrays."""
    ckpt = ckptool.open(path)
    print(len(ckpt), "epoch" in ckpt, ckpt.get("epoch", 0))
    for key, tensor in ckpt.state_dict().items():
        yield key, np.asarray(tensor, dtype=np.float32) * 2


def reports(path: Path) -> bool:
    """Reports are values, and print as the commands do."""
    verified = ckptool.verify(path, digest=True)
    problems: list[str] = [*verified.damage, *verified.doubts]
    keys: int = sum(one.keys for one in ckptool.inspect(path).state_dicts)
    names: list[str] = [finding.name for finding in ckptool.scan(path).findings]
    print(problems, keys, names, verified.digest, ckptool.detect(path), [one.name for one in ckptool.FORMATS])
    return ckptool.diff(path, "other.pth", detect_renames=True).same


def porting(model: Any, path: Path) -> list[str]:
    """A mapping has an entry for each key of the model."""
    mapping: ckptool.Mapping = ckptool.transfer(path, model, hints=["a=b"], prove=False)
    mapping.save("mapping.yaml", overwrite=True)
    ckptool.save(mapping.apply(path), "ported.safetensors")
    account = ckptool.load_into(model, path, partial=["head.*"], accept_guesses=True)
    return [entry.target for entry in account.having("mapped")]


def errors(path: Path) -> Any:
    """Each error is one of ours, and the builtin one that a program catches anyway."""
    try:
        ckptool.save(values(path), "doubled.safetensors", overwrite=True)
        return ckptool.load(path, map_location="cpu")
    except FileNotFoundError as missing:
        return missing.filename
    except ImportError as missing:
        return missing.name
    except ckptool.Doubtful as doubtful:
        return doubtful.evidence
    except ckptool.CheckpointError as error:
        return error.where, error.what, error.hint
