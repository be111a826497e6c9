"""ckptool: open any PyTorch checkpoint, change it, and write it back, without running anything that is inside it.

    ckpt = ckptool.open("in.pth")                         # headers only; neither torch nor a GPU is needed
    ckpt = ckptool.strip_prefix(ckpt, "module.")          # passes work on a Checkpoint and on a plain dict of tensors
    ckptool.save(ckpt, "out.safetensors")
    state_dict = ckptool.load("in.pth", map_location={"cuda:1": "cuda:0"})      # torch tensors, as torch.load gives

Importing it imports neither torch nor numpy: names are loaded when they are first used.
"""

from .starting import begin

begin()

from .lazy import lazily  # noqa: E402 (the program begins before anything else is imported)

TYPE_CHECKING = False  # what this module imports, the program waits for before it can answer a signal

__version__ = "1.0.0"

#: Public name -> the module that holds it.
_HOMES = {
    **dict.fromkeys(("open", "save", "plan", "detect", "repair", "salvage", "Plan", "Salvage", "FORMATS"), "formats"),
    **dict.fromkeys(("load", "from_torch"), "formats.loading"),
    "Inert": "inert.inert_object",
    **dict.fromkeys(("Checkpoint", "StateDict"), "checkpoint"),
    **dict.fromkeys(("LazyTensor", "Storage"), "tensor"),
    **dict.fromkeys(
        "Inspection inspect Scan scan Diff diff Diagnosis doctor Verification verify".split(), "reports.shown"
    ),
    **dict.fromkeys(("advise", "explain"), "reports.diagnosis.advice"),
    **dict.fromkeys(("Fit", "fits"), "reports.diagnosis.fits"),
    **dict.fromkeys("""strip_prefix add_prefix unwrap rename select drop to_dense clean""".split(), "passes.by_key"),
    **dict.fromkeys(("extract", "extract_weights", "wrap"), "passes.envelopes"),
    **dict.fromkeys(("drop_buffers", "fill_buffers"), "passes.buffers"),
    **dict.fromkeys(("map_location", "remap"), "passes.moving"),
    **dict.fromkeys(("cast", "untie", "ties", "compact", "average"), "passes.values"),
    "slim": "passes.slimming",
    "dequantize": "passes.dequantizing",
    "merge_lora": "adapters.merging",
    **dict.fromkeys(("transfer", "load_into", "read_mapping", "Mapping"), "porting"),
    **dict.fromkeys(
        """CheckpointError UnknownFormat Malformed Unreadable NoSuchFile Unwritable OutputExists NotFound Ambiguous
        RuleError NoMatch PartialMatch KeyCollision CannotCarry Doubtful NotInstalled
        TrainingFailed""".split(),
        "errors",
    ),
}

if TYPE_CHECKING:
    from .adapters.merging import merge_lora
    from .checkpoint import Checkpoint, StateDict
    from .errors import (
        Ambiguous,
        CannotCarry,
        CheckpointError,
        Doubtful,
        KeyCollision,
        Malformed,
        NoMatch,
        NoSuchFile,
        NotFound,
        NotInstalled,
        OutputExists,
        PartialMatch,
        RuleError,
        TrainingFailed,
        UnknownFormat,
        Unreadable,
        Unwritable,
    )
    from .formats import FORMATS, Plan, Salvage, detect, open, plan, repair, salvage, save
    from .formats.loading import from_torch, load
    from .inert.inert_object import Inert
    from .passes.buffers import drop_buffers, fill_buffers
    from .passes.by_key import (
        add_prefix,
        clean,
        drop,
        rename,
        select,
        strip_prefix,
        to_dense,
        unwrap,
    )
    from .passes.dequantizing import dequantize
    from .passes.envelopes import extract, extract_weights, wrap
    from .passes.moving import map_location, remap
    from .passes.slimming import slim
    from .passes.values import average, cast, compact, ties, untie
    from .porting import Mapping, load_into, read_mapping, transfer
    from .reports.diagnosis.advice import advise, explain
    from .reports.diagnosis.fits import Fit, fits
    from .reports.shown import (
        Diagnosis,
        Diff,
        Inspection,
        Scan,
        Verification,
        diff,
        doctor,
        inspect,
        scan,
        verify,
    )
    from .tensor import LazyTensor, Storage


__getattr__ = lazily(__name__, _HOMES, globals())


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "FORMATS",
    "Ambiguous",
    "CannotCarry",
    "Checkpoint",
    "CheckpointError",
    "Diagnosis",
    "Diff",
    "Doubtful",
    "Fit",
    "Inert",
    "Inspection",
    "KeyCollision",
    "LazyTensor",
    "Malformed",
    "Mapping",
    "NoMatch",
    "NoSuchFile",
    "NotFound",
    "NotInstalled",
    "OutputExists",
    "PartialMatch",
    "Plan",
    "RuleError",
    "Salvage",
    "Scan",
    "StateDict",
    "Storage",
    "TrainingFailed",
    "UnknownFormat",
    "Unreadable",
    "Unwritable",
    "Verification",
    "__version__",
    "add_prefix",
    "advise",
    "average",
    "cast",
    "clean",
    "compact",
    "dequantize",
    "detect",
    "diff",
    "doctor",
    "drop",
    "drop_buffers",
    "explain",
    "extract",
    "extract_weights",
    "fill_buffers",
    "fits",
    "from_torch",
    "inspect",
    "load",
    "load_into",
    "map_location",
    "merge_lora",
    "open",
    "plan",
    "read_mapping",
    "remap",
    "rename",
    "repair",
    "salvage",
    "save",
    "scan",
    "select",
    "slim",
    "strip_prefix",
    "ties",
    "to_dense",
    "transfer",
    "untie",
    "unwrap",
    "verify",
    "wrap",
]
