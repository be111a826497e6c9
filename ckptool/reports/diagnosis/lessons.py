"""What error messages really mean, and what helps: data, one lesson for each kind of message.

The texts are those of torch, safetensors, Lightning, DeepSpeed, mmcv and transformers, old and new. A lesson has the
expression that recognises a message, what it means, and the commands and actions that help. `{file}` and `{out}` stand
for the checkpoint and a file beside it, `{key}` for the key that a message misses. Lessons about the same message stand
from the special to the general.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lesson:
    """A kind of message.

    Attributes:
        name: for tests and JSON.
        pattern: an expression that is found in the message.
        means: what is really the matter, one sentence or two.
        commands: command lines that help, in order.
        actions: what to do that is no command of ckptool.
    """

    name: str
    pattern: str
    means: str
    commands: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()

    def fits(self, text: str) -> bool:
        """Whether this lesson is about the message TEXT."""
        return re.search(self.pattern, text, re.IGNORECASE | re.DOTALL) is not None


_LOOK = "ckptool doctor {file}"
_REPAIR = "ckptool repair {file} {out}"
_CPU = "ckptool remap {file} {out} --map-location cpu"
_EXTRACT = "ckptool extract-weights {file} {out}"
_FETCH = "compare the size of the file with that of its source, and copy or download it again"
_TRANSFER = "ckptool transfer {file} MODEL.py -o {out}"

LESSONS: tuple[Lesson, ...] = (
    # -- names
    Lesson(
        "compile-prefix",
        r"(missing|unexpected) key.*_orig_mod\.",
        "one of the two was wrapped by torch.compile, which puts '_orig_mod.' into the names.",
        ("ckptool convert {file} {out} --unwrap",),
        ("if the model is the compiled one: load before compiling",),
    ),
    Lesson(
        "module-missing",
        r"missing key\(s\)((?!unexpected)[^\n])*\"module\.",
        "the model is wrapped in DataParallel or DDP, whose names begin with 'module.', and the file is not.",
        ("ckptool add-prefix {file} {out} --prefix module.",),
        ("or load before wrapping the model, or into model.module",),
    ),
    Lesson(
        "module-unexpected",
        r"unexpected key\(?s?\)?[^\n]*['\"]module\.",
        "the file was saved from DataParallel or DDP, whose names begin with 'module.', and the model is not wrapped.",
        ("ckptool strip-prefix {file} {out} --prefix module.",),
    ),
    Lesson(
        "envelope",
        r"unexpected key[^\n]*[\"'](state_dict|model|net|optimizer|epoch|model_state_dict|scheduler|global_step)[\"']",
        "the whole checkpoint was given; the weights are under one of its keys.",
        (_EXTRACT,),
        ("or pass that entry: checkpoint['state_dict']",),
    ),
    Lesson(
        "no-envelope",
        r"KeyError: ['\"](state_dict|model|weights?|net|model_state_dict|params(_ema)?|generator|network|module)['\"]",
        "the script expects the weights under that key, and the file is the weights themselves, or has another key.",
        ("ckptool inspect {file}", "ckptool convert {file} {out} --wrap {key}"),
        ("in the script: checkpoint.get('state_dict', checkpoint)",),
    ),
    Lesson(
        "no-dict",
        r"Expected state_dict to be dict-like, got",
        "a whole pickled model (or None) was given to load_state_dict, which wants a dict of tensors.",
        (_EXTRACT,),
    ),
    Lesson(
        "weights-are-no-model",
        r"(OrderedDict|'dict'|DataParallel)[^\n]*object has no attribute",
        "a state dict is the weights, not the model; and a wrapped model has its attributes in .module.",
        (),
        ("model = Net(); model.load_state_dict(torch.load(path)); model.eval()",),
    ),
    Lesson(
        "zero-3",
        r"size mismatch[^\n]*shape torch\.Size\(\[[01]\]\) from checkpoint",
        "these are placeholders of DeepSpeed ZeRO-3: the weights are in the *_optim_states.pt files beside it.",
        (),
        ("ckptool convert FOLDER OUT.safetensors, where FOLDER holds the files of all ranks, makes one file of them",),
    ),
    Lesson(
        "size-mismatch",
        r"size mismatch for",
        "the model differs from the saved one, for example in its number of classes. strict=False does not help.",
        ("ckptool verify {file} --fits MODEL.py", "ckptool convert {file} {out} --drop fc"),
        ("leave out the layers that differ (--drop NAME), then load with strict=False",),
    ),
    # -- devices
    Lesson(
        "device-index",
        r"deserialize object on \w+ device \d+",
        "the tensors were saved on a GPU that this machine does not have.",
        ("ckptool remap {file} {out} --map-location 'cuda:*=cuda:0'",),
    ),
    Lesson(
        "device-absent",
        r"deserialize object on a(n)? \w+ device but .{0,60}is_available\(\) is False",
        "the tensors were saved on a device that this torch does not see.",
        (_CPU,),
    ),
    Lesson(
        "device-unknown",
        r"don't know how to restore data location|Storage device not recognized|device module is not registered",
        "the tensors were saved on a device that this torch does not know.",
        (_CPU,),
    ),
    Lesson(
        "gpu-memory",
        r"CUDA out of memory|OutOfMemoryError",
        "torch.load puts tensors where they were saved: every process that loads the file fills the same GPU.",
        (_CPU,),
        ("or torch.load(path, map_location='cpu')",),
    ),
    Lesson(
        "adam-step",
        r"state_steps should not be CUDA tensors",
        "the step of Adam was moved to the GPU with the rest; it belongs on the CPU.",
        ("ckptool remap {file} {out} --map-location cpu",),
        ("load_state_dict of the optimizer then moves what has to move",),
    ),
    Lesson(
        "rng-state",
        r"RNG state must be a torch\.ByteTensor|got torch\.cuda\.ByteTensor",
        "the state of the random number generator was moved to the GPU; it belongs on the CPU.",
        (_CPU,),
        ("and load without map_location='cuda'",),
    ),
    Lesson(
        "mps-float64",
        r"(convert a MPS Tensor to float64|MPS framework doesn't support float64|float64.{0,40}\bMPS\b)",
        "MPS has no float64, and tensors of that type are in the file or in its optimizer.",
        ("ckptool convert {file} {out} --cast fp32 --map-location cpu",),
        ("or torch.load(path, map_location='cpu'), then model.float().to('mps')",),
    ),
    Lesson(
        "two-devices",
        r"Expected all tensors to be on the same device|is not on the expected device",
        "model and optimizer are on different devices: the optimizer was made or loaded before the model was moved.",
        (),
        ("move the model first, then make the optimizer, then load its state",),
    ),
    Lesson(
        "optimizer-groups",
        r"parameter group that doesn't match the size|different number of parameter groups",
        "the optimizer in the file is of a model with other parameters. Its state has no names, only numbers.",
        ("ckptool inspect {file}", _EXTRACT),
        ("load the weights only, and start with a new optimizer",),
    ),
    # -- pickles
    Lesson(
        "code-execution",
        r"GLOBAL (posix|nt|os|subprocess|builtins|sys|__builtin__|runpy|socket)\.\w+ whose module \S+ is blocked|"
        r"Unsupported global: GLOBAL (posix|nt|os|subprocess|sys|runpy|socket|builtins\.(eval|exec|getattr|open))\b",
        "STOP: the file tries to run a command when it is loaded. Do not load it with weights_only=False.",
        ("ckptool scan {file}",),
        ("delete it, and tell where you have it from",),
    ),
    Lesson(
        "legacy-tar",
        r"files saved in the legacy \.tar format",
        "a file of torch before 0.1.10, or a file that begins with zeros, which looks like an empty tar archive.",
        ("ckptool inspect {file}", "ckptool convert {file} {out}"),
    ),
    Lesson(
        "torchscript",
        r"weights_only=True`+ with TorchScript|looks like a TorchScript archive|constants\.pkl",
        "a TorchScript archive, made by torch.jit.save: a program with its weights.",
        (_EXTRACT,),
        ("or torch.jit.load(path)",),
    ),
    Lesson(
        "persistent-id",
        r"A load persistent id instruction was encountered|unsupported persistent id encountered",
        "a file of torch.save was read as a plain pickle: with pickle.load, or because its zip header is damaged.",
        (_LOOK, _REPAIR),
        ("use torch.load, not pickle.load",),
    ),
    Lesson(
        "first-byte",
        r"invalid load key|Unsupported operand \d+",
        "the file is not a pickle. weights_only=False does not help, whatever the message says.",
        (_LOOK,),
        (_FETCH,),
    ),
    Lesson(
        "empty",
        r"Ran out of input|EOFError:?\s*$",
        "the file is empty, or ends where its pickle should begin.",
        (_LOOK,),
        (_FETCH,),
    ),
    Lesson(
        "cut-global",
        r"Unsupported global: GLOBAL (torch\._utils\.(?!_rebuild_\w)\w*|torch\.\w+Sto(r|ra|rag)? was|[\w.]*\. was|"
        r"collections\.(?!(OrderedDict|defaultdict|Counter|deque|namedtuple|ChainMap|UserDict)\b)\w*)",
        "the name is cut off: the file is truncated. Allowing the name does not help.",
        (f"{_REPAIR} --allow-loss",),
        (_FETCH,),
    ),
    Lesson(
        "weights-only",
        r"Unsupported global|not an allowed global|Weights only load failed",
        "the file holds objects other than tensors and plain data; weights_only=True refuses to make them.",
        ("ckptool scan {file}", "ckptool clean {file} {out}"),
        ("weights_only=False runs what the file names: only for files that you trust",),
    ),
    Lesson(
        "cve-2025-32434",
        r"Due to a serious vulnerability issue in .?torch\.load",
        "transformers refuses pickles with torch before 2.6 (CVE-2025-32434), but not safetensors.",
        ("ckptool convert {file} OUT.safetensors --extract",),
        ("or use torch 2.6 or later",),
    ),
    Lesson(
        "allow-pickle",
        r"allow_pickle=False",
        "the array holds Python objects: a dict that numpy.save pickled, or no file of numpy at all.",
        (_LOOK, "ckptool scan {file}"),
        ("numpy.load(path, allow_pickle=True).item() runs what the file names: only for files that you trust",),
    ),
    Lesson(
        "not-a-tar",
        r"This does not look like a tar archive|ReadError: (file could not be opened|not a .{1,9} file)",
        "it is not a tar archive, whatever its name says: a .pth.tar is usually a file of torch.save.",
        (_LOOK,),
        ("torch.load(path) reads it as it is",),
    ),
    Lesson(
        "not-gzip",
        r"not in gzip format|Not a gzipped file|unknown suffix -- ignored",
        "it is not a gzip file, or its name does not end as gunzip expects.",
        (_LOOK,),
        ("gunzip < {file} > {out} unpacks one, whatever it is called",),
    ),
    Lesson(
        "numpy-core",
        r"No module named '?numpy\._?core",
        "the pickle was written with numpy 2 and is read with numpy 1, or the other way round.",
        ("ckptool clean {file} {out}",),
    ),
    Lesson(
        "paths",
        r"cannot instantiate '?(Posix|Windows)Path",
        "a path of another operating system is in the pickle.",
        ("ckptool clean {file} {out}",),
    ),
    Lesson(
        "attribute-of-main",
        r"Can't get attribute '?\w+'? on <module",
        "a class or function of the program that saved the file is in the pickle: the whole model, probably.",
        (_EXTRACT,),
    ),
    Lesson(
        "no-module",
        r"No module named (?!'?numpy\b)",
        "a class of the program that saved the file is in the pickle: the whole model, probably, not its weights.",
        (_EXTRACT,),
    ),
    Lesson(
        "python-2",
        r"UnicodeDecodeError: '?(ascii|utf-?8)'? codec",
        "a pickle of Python 2, whose strings are bytes.",
        ("ckptool convert {file} {out} -t torch-zip",),
        ("or torch.load(path, encoding='latin1')",),
    ),
    Lesson(
        "protocol",
        r"unsupported pickle protocol: \d+",
        "another format was read as a pickle: the first bytes of a safetensors file look like a protocol.",
        (_LOOK,),
        ("load it with safetensors.torch.load_file",),
    ),
    # -- containers
    Lesson(
        "cut-record",
        r"failed (reading|locating) file .*(data/\d+|data\.pkl)",
        "a record of the archive is damaged or missing.",
        ("ckptool verify {file}", f"{_REPAIR} --allow-loss"),
        (_FETCH,),
    ),
    Lesson(
        "no-directory",
        r"failed finding central directory|failed reading zip archive",
        "the end of the zip archive is missing: a download or copy that did not finish, a full disk, several processes "
        "that wrote one file, or no zip archive at all.",
        (_LOOK, f"{_REPAIR} --allow-loss"),
        (_FETCH,),
    ),
    Lesson(
        "no-directory-small",
        r"OSError: \[Errno 22\] Invalid argument",
        "from torch.load: the end of a small zip archive is missing.",
        (f"{_REPAIR} --allow-loss",),
        (_FETCH,),
    ),
    Lesson(
        "cut-legacy",
        r"pickle data was truncated|unexpected EOF|storage has wrong (byte )?size: expected",
        "a legacy file is cut short, or several processes wrote it at the same time.",
        (f"{_REPAIR} --allow-loss",),
        (_FETCH, "in distributed training, write from the process of global rank 0 only"),
    ),
    Lesson(
        "rezipped",
        r"file in archive is not in a subdirectory",
        "the archive was unpacked and zipped again, by hand or by macOS. A .pth file is not meant to be unpacked.",
        (_REPAIR,),
    ),
    Lesson(
        "no-version",
        r"hasRecord\(\"?version\"?\)",
        "a zip archive that torch did not make: zipped again, or an archive with the checkpoint in it.",
        (_REPAIR,),
    ),
    Lesson(
        "old-torch-zip",
        r"is a zip archive \(did you mean to use torch\.jit\.load",
        "a torch before 1.6 reads a file of a newer one.",
        ("ckptool convert {file} {out} -t legacy --for torch==1.5",),
    ),
    Lesson(
        "old-torch-version",
        r"PyTorch file with version \d+, but the maximum supported version",
        "an old torch reads a file of a newer one.",
        ("ckptool convert {file} {out} -t legacy --for torch==1.5",),
    ),
    Lesson(
        "magic-number",
        r"Invalid magic number; corrupt file",
        "not a file of torch.save: a plain pickle, or something else.",
        (_LOOK, "ckptool convert {file} {out} -t torch-zip"),
    ),
    Lesson(
        "mmap-legacy",
        r"mmap can only be used with files saved with",
        "torch can map zip archives only, and this is a legacy file.",
        ("ckptool convert {file} {out} -t torch-zip",),
        ("or ckptool.load(path, mmap=True), which maps legacy files too",),
    ),
    Lesson(
        "mmap-compressed",
        r"Trying to resize storage that is not resizable",
        "the archive is compressed, so torch cannot map it.",
        (_REPAIR,),
    ),
    # -- safetensors
    Lesson(
        "header-too-large",
        r"header ?too ?large",
        "not a safetensors file: a pickle, a Git LFS pointer or a web page under its name.",
        (_LOOK, "ckptool convert {file} OUT.safetensors --extract"),
    ),
    Lesson(
        "header-too-small",
        r"header ?too ?small|(?<!ReadError\(')invalid ?header ?(length|start|deserialization)?",
        "the safetensors file is empty, cut short or damaged at its beginning.",
        (_LOOK,),
        (_FETCH,),
    ),
    Lesson(
        "not-covered",
        r"incomplete metadata, file not fully covered|MetadataIncompleteBuffer",
        "the safetensors file is cut short, or has bytes behind its end.",
        (f"{_REPAIR} --allow-loss",),
        (_FETCH,),
    ),
    Lesson(
        "header-damaged",
        r"invalid UTF-8 in header|unknown variant `|expected one of `",
        "the header of the safetensors file is damaged, or names an element type that this version does not know.",
        (_LOOK,),
        (_FETCH,),
    ),
    Lesson(
        "no-format",
        r"does not contain (the )?(valid )?metadata. Make sure",
        "the header lacks the entry \"format\": \"pt\", which transformers wants to see.",
        ("ckptool convert {file} {out}",),
    ),
    Lesson(
        "shared",
        r"Some tensors share memory",
        "tied tensors, which safetensors has no word for. Both can be stored, and noted as one.",
        ("ckptool convert {file} OUT.safetensors",),
        ("for a model: safetensors.torch.save_model",),
    ),
    Lesson(
        "not-carried",
        r"non contiguous tensor|is invalid, expected torch\.Tensor|sparse tensors|KeyError: torch\.q\w+",
        "safetensors holds one flat set of dense, contiguous tensors.",
        ("ckptool convert {file} OUT.safetensors --extract",),
        ("--to-dense for sparse ones, --dequantize for quantized ones",),
    ),
    Lesson(
        "complex128",
        r"KeyError: torch\.complex(128|32)",
        "safetensors has no word for this type, only for complex64.",
        ("ckptool convert {file} OUT.safetensors --cast complex64",),
        ("or keep it in a .pth file, with all of its digits",),
    ),
    # -- writing and the system
    Lesson(
        "mapped",
        r"code: 1224|user-mapped section open|Bus error|os error (14|19)|\[Errno 14\] Bad address",
        "a file was written while it was mapped: a save onto the file that the tensors came from.",
        (),
        ("write to another file, then rename it; ckptool does this when OUT is IN",),
    ),
    Lesson(
        "disk-full",
        r"PytorchStreamWriter failed writing|iostream error|unexpected pos \d+ vs \d+",
        "the disk or the quota was full while torch.save wrote. The file that it left is not whole.",
        (f"{_REPAIR} --allow-loss",),
        ("df -h . shows what is free",),
    ),
    Lesson(
        "no-parent",
        r"Parent directory .{0,300} does not exist",
        "the folder does not exist: a mistyped name, or another process was to make it and had not yet.",
        (),
        ("os.makedirs(folder, exist_ok=True) in every process",),
    ),
    Lesson(
        "protocol-4",
        r"larger than 4 GiB requires pickle protocol 4",
        "a single text or byte string of more than 4 GiB is in what is saved.",
        (),
        ("store it as a tensor of uint8, or torch.save(…, pickle_protocol=4)",),
    ),
    Lesson(
        "meta",
        r"Cannot copy out of meta tensor",
        "the model was built on the meta device and has no memory; its weights were never filled in.",
        (),
        ("model.load_state_dict(…, assign=True), or model.to_empty(device='cpu') before",),
    ),
    Lesson(
        "dtensor",
        r"got mixed torch\.Tensor and DTensor",
        "a plain file was loaded into a model that FSDP2 has divided already.",
        (),
        ("load before wrapping, or with torch.distributed.checkpoint.state_dict.set_model_state_dict",),
    ),
    Lesson(
        "dcp-missing",
        r"CheckpointException|Missing key in checkpoint state_dict:",
        "torch.distributed.checkpoint looked for keys that the folder does not hold: other names, or another model.",
        ("ckptool inspect {file}", "ckptool verify {file} --fits MODEL.py"),
        ("the names have to be those under which it was saved, with the key that stood around them ('model')",),
    ),
    Lesson(
        "zero-numels",
        r"consumed \d+ numels out of \d+",
        "DeepSpeed's shards do not fit together: files of another step, or of another number of processes.",
        (),
        ("look into the folder named by the file `latest`, and merge only that",),
    ),
    # -- messages that are not errors
    Lesson(
        "nothing-missing",
        r"missing(/unexpected)?[_ ]keys?: *\[\][,\s]*(unexpected[_ ]keys?: *)?\[\]|<All keys matched successfully>",
        "nothing is wrong: no key is missing and none is left over.",
    ),
    Lesson(
        "partly-loaded",
        r"The model and loaded state dict do not match exactly|Some weights of .{0,200}"
        r"(were not used|newly initialized|not initialized)",
        "only a part of the file was loaded; what was not keeps its random values. It may be a head that you train, or "
        "everything.",
        ("ckptool verify {file} --fits MODEL.py", _TRANSFER),
    ),
    Lesson(
        "killed",
        r"(^|\n)\s*(\S+: (line )?\d+:\s+(\d+ )?)?Killed\b|\bKilled\s*$|oom-kill",
        "the system ran out of memory. torch needs that of the whole file, often twice.",
        ("ckptool convert {file} OUT.safetensors --extract",),
        ("torch.load(path, mmap=True) reads what is used; ckptool needs no memory for values",),
    ),
    Lesson(
        "incompatible-keys",
        r"_IncompatibleKeys\(|<IncompatibleKeys|missing_keys=\[",
        "with strict=False nothing stopped: what is missing keeps the values that it was made with, and what is "
        "unexpected was not loaded. If all is on both lists, nothing was loaded.",
        ("ckptool verify {file} --fits MODEL.py", _TRANSFER),
    ),
    Lesson(
        "missing-and-unexpected",
        r"(Missing|Unexpected) key\(s\) in state_dict",
        "the names in the file are not those of the model.",
        ("ckptool verify {file} --fits MODEL.py", _TRANSFER),
    ),
)  # fmt: skip


def lessons_for(text: str) -> list[Lesson]:
    """The lessons about a message: the special one first; none that a special one makes superfluous."""
    found = [lesson for lesson in LESSONS if lesson.fits(text)]
    general = {"weights-only", "missing-and-unexpected"}
    special = [lesson for lesson in found if lesson.name not in general]
    return special or found
