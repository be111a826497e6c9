"""ckptool beside the libraries that own the formats: `python -m tests.fuzz.differential --mutants 1000`.

Each file is opened by ckptool and by `torch.load(weights_only=True)`, safetensors or huggingface_hub. Where both accept
it, their tensors must be equal. Where they disagree, the disagreement is counted under the reason of the one that
refuses; a reason that is in no class below is a finding, as are tensors that differ.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path

import ckptool

from . import seeds
from .__main__ import ROOT, keep, place_of, put, working_folder
from .mutants import Mutants

FAMILIES = ("pickle", "zip", "legacy", "tar", "torchscript", "pt2", "package", "safetensors", "sharded")
_MOST_SECONDS = 20
_MOST_MEGABYTES = 6 << 10
_MOST_VALUES = 1 << 20


#: What ckptool gives in place of a call that it does not make.
_INERT = ["inert"]


# -- what a loader gives, as plain data


def tensors_in(root, strided=True):
    """[(path, what is to be equal)] of the tensors below ROOT; memory that they share is numbered as it comes."""
    import torch

    from ckptool.torch_bridge import Inert

    found, memory, seen, pending = [], [], set(), [("", root)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, torch.Tensor):
            found.append((path, _told(node, memory, strided)))
        elif isinstance(node, Inert):
            found.append((path, _INERT))
        elif isinstance(node, dict | list | tuple | set | frozenset):
            if id(node) in seen:
                continue
            seen.add(id(node))
            pairs = (
                node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list | tuple) else ()
            )
            pending += reversed(
                [(f"{path}/{key if isinstance(key, str | int) else '?'}", value) for key, value in pairs]
            )
    _number(memory)
    return found


def _number(memory):
    """Say of each place in memory whose it is and how far from the first tensor there, not where it is.

    A storage may be a part of another one: what overlaps is one memory.
    """
    end = base = -1
    parts, known = {}, {}
    for place, begin, address, nbytes in sorted(memory, key=lambda one: one[1]):
        base = begin if begin >= end else base
        end = max(end, begin + nbytes)
        parts.setdefault(base, []).append((place, address))
    of = {id(place): (base, min(a for _, a in part)) for base, part in parts.items() for place, _ in part}
    for place, _, address, _ in memory:
        base, first = of[id(place)]
        place[:] = known.setdefault(base, len(known)), address - first


def _told(tensor, memory, strided):
    told = [str(tensor.dtype), str(tensor.layout), list(tensor.shape) if not tensor.is_nested else []]
    tensor = tensor.detach()
    if tensor.is_meta:
        return told
    if tensor.is_nested:
        return [*told, *([list(part.shape), _values(part)] for part in tensor.unbind())]
    if tensor.layout != _strided():
        parts = ("_indices", "_values") if "coo" in str(tensor.layout) else ("crow_indices", "col_indices", "values")
        if "csc" in str(tensor.layout) or "bsc" in str(tensor.layout):
            parts = ("ccol_indices", "row_indices", "values")
        return [*told, *(_values(getattr(tensor, part)()) for part in parts)]
    if strided:
        told.append(list(tensor.stride()) if tensor.numel() else [])
        if tensor.numel():
            storage, place = tensor.untyped_storage(), []
            memory.append((place, storage.data_ptr(), tensor.data_ptr(), storage.nbytes()))
            told.append(place)
    if tensor.is_quantized:
        return [*told, str(tensor.qscheme()), _values(tensor.int_repr())]
    return [*told, tensor.is_conj(), tensor.is_neg(), _values(tensor)]


def _strided():
    import torch

    return torch.strided


def _values(tensor):
    """The bytes of the values; of a tensor that repeats few values very often, those of its storage."""
    import torch

    if tensor.numel() > _MOST_VALUES:
        return bytes(tensor.untyped_storage().tolist()).hex()
    plain = tensor.resolve_conj().resolve_neg().contiguous() if tensor.layout == torch.strided else tensor
    flat = torch.empty(plain.numel(), dtype=plain.dtype)
    flat.copy_(plain.reshape(-1))
    return bytes(flat.untyped_storage().tolist()).hex()


def ours(path):
    return ckptool.load(path, map_location="cpu")


def of_torch(path):
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)


def of_safetensors(path):
    from safetensors.torch import load_file

    return load_file(path)


def of_the_hub(path):
    import torch
    from huggingface_hub import load_torch_model

    class Taker(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.taken = {}

        def load_state_dict(self, state_dict, *_, **__):
            self.taken.update(state_dict)
            return torch.nn.modules.module._IncompatibleKeys([], [])

        def state_dict(self, *_, **__):
            index = next(iter(sorted(path.glob("*.index.json"))), None)
            return dict.fromkeys(json.loads(index.read_text())["weight_map"]) if index else {}

    taker = Taker()
    load_torch_model(taker, path, weights_only=True, safe=not any(path.glob("*.bin.index.json")))
    return taker.taken


THEIRS = {"safetensors": of_safetensors, "sharded": of_the_hub}


# -- one file after the other, in children that may crash


def outcome(load, path, strided):
    """("takes", tensors) or ("refuses", why)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "takes", tensors_in(load(path), strided)
        except Exception as error:
            return "refuses", f"{type(error).__name__}: {error}"


def compared(family, path):
    """What both make of a file: (ours, theirs, whether the tensors are equal)."""
    strided = family not in THEIRS
    one, other = outcome(ours, path, strided), outcome(THEIRS.get(family, of_torch), path, strided)
    if one[0] == other[0] == "takes":
        inert = {place for place, told in one[1] if told == _INERT}
        mine, others = ([pair for pair in pairs if pair[0] not in inert] for pairs in (one[1], other[1]))
        if (mine != others) if strided else (dict(mine) != dict(others)):
            return "takes", "takes", "TENSORS DIFFER: " + _difference(mine, others)
        return "takes", "takes", "a tensor to torch, an inert object to ckptool" if len(others) < len(other[1]) else ""
    return one[1] if one[0] == "refuses" else "takes", other[1] if other[0] == "refuses" else "takes", ""


def _difference(mine, others):
    for one, other in zip(sorted(mine, key=str), sorted(others, key=str), strict=False):
        if one != other:
            return f"{str(one)[:300]} and {str(other)[:300]}"
    return f"{len(mine)} and {len(others)} tensors"


def answers(cases, family, prepare):
    """What `compared` says of each case, asked in children; one that dies says which case it was."""
    at = 0
    while at < len(cases):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _child(cases[at:], family, prepare, writing)
        os.close(writing)
        with os.fdopen(reading) as lines:
            for line in lines:
                yield json.loads(line)
                at += 1
        _, status = os.waitpid(child, 0)
        if status:  # it died of this one
            yield ["?", f"crash: {signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else status}", ""]
            at += 1


def _child(cases, family, prepare, writing):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEGABYTES << 20,) * 2)
    with os.fdopen(writing, "w") as out:
        for case in cases:
            signal.setitimer(signal.ITIMER_PROF, _MOST_SECONDS)
            out.write(json.dumps(compared(family, prepare(case))) + "\n")
            out.flush()
    os._exit(0)


# -- classes

#: (pattern of what is said, class) of refusals by ckptool, in the order in which they are tried.
OURS = (
    (r"record is marked as a folder", "a record that torch takes for a folder, and leaves unread"),
    (r"two records have the same name", "two records of one name"),
    (r"has the .* twice|names '.*' twice", "two tensors of one name"),
    (
        r"contradicts? (its entry|the checksum|each other)|records overlap|than its end records say|reaches into|"
        r"no record where|central directory|end record is damaged|extra field is|does not inflate|cannot be inflated|"
        r"has two sizes|more than deflate|behind the last possible|holds more than|begin with its first",
        "an archive that says two things of a record",
    ),
    (r"appended to the archive|end of the archive is missing", "bytes behind the archive"),
    (r"feature of zip|is encrypted|several disks|compressed with method", "what no checkpoint uses of zip"),
    (r"name of a record|folder of the archive|not in one folder|several top folders|__MACOSX", "names of records"),
    (r"checksum does not match", "a record that is damaged"),
    (r"shape or offsets of", "shapes beyond 64 dimensions or 2**62"),
    (
        r"two sizes|size that is none|reaches to byte|elements where it stands|list of storages",
        "a storage with two sizes",
    ),
    (r"sparse|nested|quantized", "sparse, nested and quantized tensors whose parts do not fit"),
    (r"protocol \d+, which does not exist", "a protocol that does not exist"),
    (r"persistent id", "a persistent id that torch does not write"),
    (r"memo|straddles|frame|as a key|class without a name|opcode|empty stack|no mark|appends to|sets ", "odd pickles"),
    (r"the storage .* is missing", "a storage that is not there, or under a name that is cut at a NUL"),
    (
        r"with arguments that|tensor over|tensor of|rebuil|storage|shape|stride",
        "tensors whose arguments torch does not check",
    ),
    (r"behind its end", "several pickles in a row"),
    (r"does not begin with '\{'", "a header of safetensors that does not begin with {"),
    (r"first bytes, .* are those of no format", "beginnings that no version of torch writes"),
    (
        r"empty weight_map|disagrees with its shards|is in two shards|names '.*', which",
        "an index that is not that of its shards",
    ),
    (r"too deep|too large|larger than|of at most|is the limit|bytes, where|an integer of", "more than the limits"),
    (r"expands|repeats", "a tensor that is expanded to far more than it has"),
)
#: The same of refusals by torch, safetensors and huggingface_hub.
OF_OTHERS = (
    (r"Unsupported global|Unsupported class|GLOBAL .* was not an allowed", "classes that weights_only does not allow"),
    (r"Unsupported operand|Unsupported opcode", "opcodes that weights_only does not know"),
    (
        r"weights_only=True.*with (TorchScript|files saved in the legacy .tar)",
        "kinds of files that weights_only excludes",
    ),
    (
        r"locating file data.pkl|failed finding central directory|constants.pkl",
        "archives that torch.load does not read",
    ),
    (
        r"parse the version|hasRecord|maximum supported version|minimum supported version|invalid literal for int|"
        r"UnicodeDecodeError|endianness|byteorder|byte order",
        "a damaged record beside the pickle (version, byte order, alignment)",
    ),
    (r"MemoryError|DefaultCPUAllocator", "a call that takes as much memory as it is told to"),
    (
        r"magic number|protocol version|pop from empty|Ran out of input|EOFError",
        "files that torch takes for another kind",
    ),
    (r"does not contain a valid checkpoint", "folders without an index, or with one of another name"),
    (r"header too large", "a pickle or archive named .safetensors, which ckptool reads as what it is"),
    (r"does not contain the valid metadata", "shards without the format in their metadata"),
    (
        r"TypeError|AttributeError|RuntimeError|LookupError|ValueError|IndexError|KeyError|AssertionError|"
        r"UnpicklingError|NotImplemented|OverflowError|SystemError|SyntaxError",
        "calls that fail with these arguments, which ckptool shows as inert objects",
    ),
)


def class_of(said, classes):
    """The class of a refusal."""
    for pattern, name in classes:
        if re.search(pattern, said, re.S):
            return name
    return "UNCLASSIFIED: " + _shape(said)


def _shape(said):
    """What is said, without what is of one file."""
    said = re.sub(r"Weights only load failed.*?WeightsUnpickler error:", "WeightsUnpickler:", said, flags=re.S)
    said = re.sub(r"/\S+/(in\S*)", "IN", said)
    said = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", said)
    return re.sub(r"\d[\d,]*", "N", said.split("\n    ")[0].strip().splitlines()[0] if said.strip() else said)[:140]


def table_of(family, results):
    """Count the disagreements. Returns (lines, findings)."""
    both = sum(one == other == "takes" for _, one, other, _ in results)
    neither = sum(one != "takes" and other != "takes" for _, one, other, _ in results)
    lines = [f"{family}: {len(results):,} files; both take {both:,}, both refuse {neither:,}"]
    counts, first, findings = Counter(), {}, []
    for case, one, other, differs in results:
        if differs:
            kind = differs
        elif one == "?":
            kind = f"their loader dies ({other})"
        elif one != "takes" and other == "takes":
            kind = f"only ckptool refuses: {class_of(one.splitlines()[0].split(': ', 2)[-1], OURS)}"
        elif one == "takes" and other != "takes":
            kind = f"only ckptool takes: {class_of(other, OF_OTHERS)}"
        else:
            continue
        counts[kind] += 1
        first.setdefault(kind, case)
    for kind, count in counts.most_common():
        lines.append(f"  {count:6,}  {kind}   e.g. {first[kind]}")
        if "UNCLASSIFIED" in kind or "DIFFER" in kind:
            findings.append((kind, first[kind]))
    return lines, findings


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.differential", description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", default=[], help=f"of {', '.join(FAMILIES)} (default: all)")
    parser.add_argument("--mutants", type=int, default=1000, help="of each family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=Path, default=ROOT / "build/fuzz/seeds")
    parser.add_argument("--findings", type=Path, default=ROOT / "build/fuzz/findings")
    parser.add_argument(
        "--also", type=Path, help="a folder with more files; those ending in .safetensors go to safetensors"
    )
    given = parser.parse_args()
    work = working_folder()
    wrong = 0
    try:
        for family in given.families or FAMILIES:
            found = seeds.read(given.seeds, family)
            mutants = Mutants(family, found, given.seed)

            def made(case, found=found, mutants=mutants):
                name, files, *_ = (
                    next(one for one in found if one[0] == case) if isinstance(case, str) else mutants[case]
                )
                place = place_of(work, name, files)
                put(place, files)
                return place

            wrong += asked(family, [name for name, _ in found] + list(range(given.mutants)), made, given, mutants)
        if given.also:
            wrong += more(given)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return bool(wrong)


def asked(family, cases, prepare, given, mutants=None):
    results = [(case, *answer) for case, answer in zip(cases, answers(cases, family, prepare), strict=True)]
    lines, findings = table_of(family, results)
    print("\n".join(lines), flush=True)
    for _, case in findings:
        if mutants is not None and isinstance(case, int):
            name, files, _ = mutants[case]
            keep(given.findings / f"{family}-{given.seed}-{case}-{name}", files)
    return len(findings)


def more(given):
    """Files that somebody else made."""
    paths = [path for path in sorted(given.also.iterdir()) if path.exists() and path.name != "manifest.json"]
    flat = [path for path in paths if path.is_file()]
    kinds = {
        "safetensors": [path for path in flat if path.suffix == ".safetensors"],
        "zip": [path for path in flat if path.suffix != ".safetensors"],
        "sharded": [path for path in paths if path.is_dir() and any(path.glob("*.index.json"))],
    }
    return sum(
        asked(family, [str(path) for path in found], Path, given, None) for family, found in kinds.items() if found
    )


if __name__ == "__main__":
    sys.exit(main())
