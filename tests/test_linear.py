"""Whatever a file is made of, what looks at it works in proportion to its size, and says it on one screen."""

import contextlib

import pytest
from effort import lines
from strategies import state_dict_of, tensor_of

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.model_code.signature import Entry, Signature
from ckptool.passes.values import compact
from ckptool.porting.sources import match_signature
from ckptool.reports.comparing.diff_text import diff_text
from ckptool.reports.diagnosis.doctor_text import doctor_text
from ckptool.reports.inspect import describe
from ckptool.reports.inspect_text import inspect_text
from ckptool.reports.scanning.scan_text import scan_text
from ckptool.reports.verify_text import verify_text
from ckptool.tree import Dict, Global, List, Object

SMALL, TIMES = 40, 8
#: Twice more than in proportion: files are sorted, and of long pickles the first bytes are read again.
MOST = 2 * TIMES
#: Lines that a report may have.
SCREEN = 60


def weights(keys, shape=(2,)):
    return state_dict_of({key: tensor_of("float32", shape) for key in keys}).root


def layers(count):
    return [f"layers.{number}.weight" for number in range(count)]


def nested(count, key, inmost):
    for _ in range(count):
        inmost = Dict([(key, inmost)])
    return inmost


def module(children=(), **tensors):
    parts = [("_parameters", tensors.items()), ("_buffers", ()), ("_modules", children)]
    state = Dict([(name, Dict(list(entries), ordered=True)) for name, entries in parts])
    return Object("newobj", Global("net", "Block"), (), [("state", state)])


def deep_module(count):
    found = module(weight=tensor_of("float32", (2,)))
    for _ in range(count):
        found = module([("inner", found)])
    return found


def optimizer(groups):
    group = [Dict([("params", List([number])), ("lr", 0.1)]) for number in range(groups)]
    return Dict([("state", Dict([])), ("param_groups", List(group))])


def same_optimizer(count):
    one = optimizer(count)
    return Dict([("state_dict", weights(["w"])), *((f"optimizer_{number}", one) for number in range(count))])


def same_list(count):
    one = List([tensor_of("float32", (2,)) for _ in range(count)])
    return Dict([("state_dict", weights(["w"])), *((f"extra_{number}", one) for number in range(count))])


def parts_of_one_storage(count):
    whole = tensor_of("float32", (16 * count,))
    parts = {key: whole.changed(shape=(2,), offset=16 * n) for n, key in enumerate(layers(count))}
    return state_dict_of(parts).root


MADE = {
    "layers": lambda count: weights(layers(count)),
    "layers with two tensors": lambda count: weights(
        f"l{n}.{leaf}" for n in range(count) for leaf in ("weight", "bias")
    ),
    "norms behind the parts": lambda count: weights(f"post_{n}_norm.weight" for n in range(count)),
    "shapes of their own": lambda count: (
        state_dict_of({f"l.{n}.weight": tensor_of("float32", (n + 1,)) for n in range(count)}).root
    ),
    "names of their own": lambda count: weights(f"{chr(97 + n % 26)}x{n * 7919 % 1000}.w{n}" for n in range(count)),
    "prefixes within prefixes": lambda count: weights("a." * n + "w" for n in range(count)),
    "state dicts": lambda count: Dict([(f"net_{n}", weights(["fc.weight", "fc.bias"])) for n in range(count)]),
    "a state dict deep inside": lambda count: nested(count, "model", weights(["fc.weight"])),
    "encoders within encoders": lambda count: nested(count, "encoder", Dict([("w", tensor_of("float32", (2,)))])),
    "a deep module": deep_module,
    "modules beside each other": lambda count: module(
        [(f"m{n}", module(weight=tensor_of("float32", (2,)))) for n in range(count)]
    ),
    "one optimizer at many places": same_optimizer,
    "one list of tensors at many places": same_list,
    "parts of one storage": parts_of_one_storage,
    "devices": lambda count: Dict(
        [("state_dict", weights(["w"])), ("devices", List([f"cuda:{n % 9}" for n in range(count)]))]
    ),
    "objects": lambda count: Dict(
        [
            ("state_dict", weights(["w"])),
            ("made", List([Object("reduce", Global("m", f"C{n}"), ()) for n in range(count)])),
        ]
    ),
}


def match(path):
    wanted = Signature("Net", {key: Entry(key, (2,), parameter=True) for key in ("fc.weight", "fc.bias")})
    with contextlib.suppress(ckptool.CheckpointError):
        match_signature(path, wanted)


ASKED = {
    "inspect": lambda path: inspect_text(describe(ckptool.open(path))),
    "doctor": lambda path: doctor_text(ckptool.doctor(path)),
    "scan": lambda path: scan_text(ckptool.scan(path)),
    "verify": lambda path: verify_text(ckptool.verify(path)),
    "diff": lambda path: diff_text(ckptool.diff(path, path)),
    "transfer": match,
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("made", MADE)
def test_work_grows_in_proportion_to_the_file(tmp_path, made, asked):
    for name, count in (("small", SMALL), ("large", SMALL * TIMES)):
        ckptool.save(Checkpoint(MADE[made](count)), tmp_path / name, format="torch-zip", keep_objects=True)
    ASKED[asked](tmp_path / "small")  # imports, and tables that are made once
    text = []
    small, large = (lines(lambda name=name: text.append(ASKED[asked](tmp_path / name))) for name in ("small", "large"))
    assert large < MOST * small
    assert (text[1] or "").count("\n") < SCREEN


def test_compact_works_in_proportion_to_the_parts_that_it_keeps():
    few, many = (Checkpoint(parts_of_one_storage(count)) for count in (320, 1280))
    assert lines(lambda: compact(many)) < 5 * lines(lambda: compact(few))


def test_looking_for_averages_takes_time_in_proportion_to_the_state_dicts():
    def slimmed(count):
        held = Dict(
            [(f"transformer/layer_{n}/linear", Dict([("w", tensor_of("float32", (2,)))])) for n in range(count)]
        )
        with contextlib.suppress(ckptool.CheckpointError):
            ckptool.slim(Checkpoint(Dict([("params", held)])), weights="raw")

    assert lines(lambda: slimmed(SMALL * TIMES)) < MOST * lines(lambda: slimmed(SMALL))
