"""Error messages as they are printed, by the name of the lesson that is about them."""

MISSING = "Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: {}. \n\tUnexpected key(s) in state_dict: {}. "

MESSAGES = {
    "incompatible-keys": [
        "_IncompatibleKeys(missing_keys=['conv.weight'], unexpected_keys=['net.conv.weight'])",
        "<IncompatibleKeys missing_keys=['a'] unexpected_keys=[]>",
    ],
    "dcp-missing": [
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0])\n  RuntimeError: "
        "Missing key in checkpoint state_dict: model.conv.weight."
    ],
    "mps-float64": [
        "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use "
        "float32 instead."
    ],
    "allow-pickle": ["ValueError: Object arrays cannot be loaded when allow_pickle=False"],
    "not-a-tar": [
        "tar: This does not look like a tar archive",
        "tarfile.ReadError: file could not be opened successfully",
    ],
    "not-gzip": ["gzip: x.pth: unknown suffix -- ignored", "gzip: x.gz: not in gzip format"],
    "module-unexpected": [
        MISSING.format('"conv1.weight", "fc.bias"', '"module.conv1.weight", "module.fc.bias"'),
        "KeyError: 'unexpected key \"module.features.conv0.weight\" in state_dict'",
    ],
    "module-missing": [MISSING.format('"module.conv1.weight"', '"conv1.weight"')],
    "compile-prefix": [
        MISSING.format('"w"', '"_orig_mod.w"'),
        MISSING.format('"module.w"', '"module._orig_mod.w"'),
    ],
    "envelope": [MISSING.format('"fc.weight"', '"epoch", "state_dict", "optimizer"')],
    "no-envelope": [
        "Traceback …\n    sd = torch.load(path)['state_dict']\nKeyError: 'state_dict'",
        "KeyError: 'model'",
    ],
    "weights-are-no-model": [
        "AttributeError: 'collections.OrderedDict' object has no attribute 'eval'",
        "AttributeError: 'DataParallel' object has no attribute 'fc'",
        "AttributeError: 'dict' object has no attribute 'cuda'",
    ],
    "no-dict": ["TypeError: Expected state_dict to be dict-like, got <class 'net.Net'>."],
    "size-mismatch": [
        "size mismatch for fc.weight: copying a param with shape torch.Size([1000, 2048]) from checkpoint, the shape in "
        "current model is torch.Size([10, 2048])."
    ],
    "zero-3": [
        "size mismatch for transformer.wte.weight: copying a param with shape torch.Size([0]) from checkpoint, the shape "
        "in current model is torch.Size([50257, 768])."
    ],
    "device-absent": [
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you "
        "are running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu')",
    ],
    "device-index": [
        "RuntimeError: Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is 1. Please use "
        "torch.load with map_location to map your storages to an existing device.",
        "RuntimeError: Attempting to deserialize object on CUDA device 1 but …",
    ],
    "device-unknown": [
        "RuntimeError: don't know how to restore data location of torch.storage.UntypedStorage (tagged with xla:0)",
        "RuntimeError: torch.UntypedStorage(): Storage device not recognized: mps",
        "RuntimeError: The HPU device module is not registered",
    ],
    "gpu-memory": ["torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB"],
    "adam-step": ["AssertionError: If capturable=False, state_steps should not be CUDA tensors."],
    "rng-state": ["TypeError: RNG state must be a torch.ByteTensor"],
    "two-devices": ["RuntimeError: Expected all tensors to be on the same device, but found at least two devices"],
    "optimizer-groups": [
        "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
        "ValueError: loaded state dict has a different number of parameter groups",
    ],
    "code-execution": [
        "Weights only load failed. … Trying to load unsupported GLOBAL posix.system whose module posix is blocked.",
    ],
    "weights-only": [
        "_pickle.UnpicklingError: Weights only load failed. … WeightsUnpickler error: Unsupported global: GLOBAL "
        "omegaconf.listconfig.ListConfig was not an allowed global by default.",
    ],
    "cut-global": [
        "Weights only load failed. … Unsupported global: GLOBAL torch._utils._rebui was not an allowed global by default."
    ],
    "first-byte": [
        "_pickle.UnpicklingError: invalid load key, 'v'.",
        "Weights only load failed. … weights_only=False will likely succeed … Unsupported operand 118",
    ],
    "legacy-tar": ["RuntimeError: Cannot use ``weights_only=True`` with files saved in the legacy .tar format."],
    "torchscript": [
        "RuntimeError: Cannot use ``weights_only=True`` with TorchScript archives passed to ``torch.load``.",
        "UserWarning: 'torch.load' received a zip file that looks like a TorchScript archive dispatching to 'torch.jit.load'",
    ],
    "persistent-id": [
        "_pickle.UnpicklingError: A load persistent id instruction was encountered, but no persistent_load function",
        "unsupported persistent id encountered",
    ],
    "empty": ["EOFError: Ran out of input", "EOFError"],
    "cut-legacy": [
        "_pickle.UnpicklingError: pickle data was truncated",
        "RuntimeError: unexpected EOF, expected 1234 more bytes. The file might be corrupted.",
        "RuntimeError: storage has wrong size: expected -4669315570785868528 got 512",
    ],
    "no-directory": ["RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"],
    "no-directory-small": ["OSError: [Errno 22] Invalid argument"],
    "cut-record": [
        "RuntimeError: PytorchStreamReader failed reading file data/16: invalid header or archive is corrupted",
        "RuntimeError: PytorchStreamReader failed locating file data.pkl: file not found",
    ],
    "rezipped": ["RuntimeError: file in archive is not in a subdirectory: data.pkl"],
    "no-version": ['RuntimeError: Expected hasRecord("version") to be true, but got false.'],
    "old-torch-zip": ["RuntimeError: a.pth is a zip archive (did you mean to use torch.jit.load()?)"],
    "old-torch-version": [
        "RuntimeError: Attempted to read a PyTorch file with version 3, but the maximum supported version for reading is 2."
    ],
    "magic-number": ["RuntimeError: Invalid magic number; corrupt file?"],
    "mmap-legacy": [
        "RuntimeError: mmap can only be used with files saved with `torch.save(_use_new_zipfile_serialization=True), …"
    ],
    "mmap-compressed": ["RuntimeError: Trying to resize storage that is not resizable"],
    "header-too-large": [
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
        "SafetensorError: Error while deserializing header: header too large",
    ],
    "header-too-small": [
        "SafetensorError: Error while deserializing header: header too small",
        "Error while deserializing header: invalid header length",
        "Error while deserializing header: InvalidHeaderDeserialization",
    ],
    "not-covered": [
        "Error while deserializing header: incomplete metadata, file not fully covered",
        "SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    ],
    "header-damaged": [
        "Error while deserializing header: invalid UTF-8 in header: invalid utf-8 sequence of 1 bytes",
        "Error while deserializing header: invalid JSON in header: unknown variant `F31`, expected one of `BOOL`, `F4`",
    ],
    "no-format": [
        "OSError: The safetensors archive passed at m.safetensors does not contain the valid metadata. Make sure you save "
        "your model with the `save_pretrained` method."
    ],
    "shared": [
        "RuntimeError: Some tensors share memory, this will lead to duplicate memory on disk: [{'lm_head.weight', 'wte'}]"
    ],
    "not-carried": [
        "ValueError: You are trying to save a non contiguous tensor: `a` which is not allowed.",
        "ValueError: Key `epoch` is invalid, expected torch.Tensor but received <class 'int'>",
        "ValueError: You are trying to save a sparse tensors: `['a']` which this library does not support.",
        "KeyError: torch.qint8",
    ],
    "complex128": ["KeyError: torch.complex128"],
    "mapped": ["IoError(Os { code: 1224, … user-mapped section open", "Bus error (core dumped)"],
    "no-module": ["ModuleNotFoundError: No module named 'models.yolo'", "No module named 'models'"],
    "attribute-of-main": ["AttributeError: Can't get attribute 'RecorderMeter' on <module '__main__' from 'a.py'>"],
    "numpy-core": ["ModuleNotFoundError: No module named 'numpy._core'", "No module named 'numpy.core.multiarray'"],
    "paths": ["NotImplementedError: cannot instantiate 'PosixPath' on your system"],
    "python-2": ["UnicodeDecodeError: 'ascii' codec can't decode byte 0xc3 in position 1"],
    "protocol": ["ValueError: unsupported pickle protocol: 104"],
    "disk-full": [
        "RuntimeError: PytorchStreamWriter failed writing file data/271: file write failed",
        "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 190007680 vs 190007572",
    ],
    "no-parent": ["RuntimeError: Parent directory /runs/7 does not exist."],
    "protocol-4": ["OverflowError: serializing a bytes object larger than 4 GiB requires pickle protocol 4 or higher"],
    "meta": ["NotImplementedError: Cannot copy out of meta tensor; no data!"],
    "dtensor": [
        "RuntimeError: aten.copy_.default: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor"
    ],
    "cve-2025-32434": [
        "ValueError: Due to a serious vulnerability issue in `torch.load`, even with `weights_only=True`, we now require"
    ],
    "partly-loaded": [
        "WARNING - The model and loaded state dict do not match exactly\n\nunexpected key in source state_dict: fc.weight",
        "Some weights of the model checkpoint at bert-base were not used when initializing BertModel",
        "Some weights of BertForX were not initialized from the model checkpoint and are newly initialized: ['c.weight']",
    ],
    "zero-numels": ["ValueError: consumed 255381772 numels out of 255381776 - something is wrong"],
    "nothing-missing": ["missing/unexpected keys: [] []", "<All keys matched successfully>"],
    "killed": ["Loading checkpoint shards:  50%\nKilled"],
    "missing-and-unexpected": [MISSING.format('"encoder.weight"', '"backbone.weight"')],
}
