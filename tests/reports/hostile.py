"""Hostile files put together by hand. Their payload makes a folder named by $CANARY, and is never meant to run."""

import io
import os
import pickle
import struct
import tarfile
import zipfile

MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
CALL = b"cos\nmkdir\n(X\x06\x00\x00\x00canarytR"
EVIL = b"\x80\x02" + CALL + b"."
TENSORS = b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage" + (
    b"ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK\x00K\x02\x85K\x01\x85\x89"
    b"ccollections\nOrderedDict\n)RtRs."
)


class Payload:
    """An object whose unpickling calls os.mkdir."""

    def __reduce__(self):
        return os.mkdir, ("canary",)


def zipped(members, method=zipfile.ZIP_STORED, top="archive"):
    """A zip archive of {name: bytes} below TOP."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{top}/{name}" if top else name, data)
    return out.getvalue()


def torch_zip(pickled=TENSORS, **more):
    """What torch.save writes, as far as a scanner cares."""
    return zipped({"data.pkl": pickled, "byteorder": b"little", "data/0": bytes(8), "version": b"3\n", **more})


def legacy(tree=TENSORS, behind=b""):
    """A legacy file with one storage of 8 bytes."""
    head = [MAGIC, pickle.dumps(1001, 2), pickle.dumps({"little_endian": True}, 2), tree, pickle.dumps(["0"], 2)]
    return b"".join(head) + struct.pack("<q", 2) + bytes(8) + behind


def tarred(members):
    """A tar archive of {name: bytes}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def safetensors(header=b"{}", length=None):
    """A safetensors file without tensors; HEADER is padded with spaces."""
    length = len(header) if length is None else length
    return struct.pack("<Q", length) + header.ljust(length)


def npy(payload):
    """A numpy array of objects."""
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + payload


def polyglot():
    """What begins as a safetensors file does, and is a pickle that calls os.mkdir."""
    length = 0x5C43  # as a pickle: 'C', the 92 bytes that follow are a byte string
    header = b"{" + b" " * 84 + b'"' + b"0" + CALL + b'.":{}}'
    return struct.pack("<Q", length) + header.ljust(length)


#: What CPython runs over without a word, and a reader that believes in sense does not.
PRELUDES = {
    "a hexadecimal number": b"I0x10\n0",
    "an integer of 2,000 bytes": b"\x8b\xd0\x07\0\0" + b"\1" * 2000 + b"0",
    "a buffer": b"C\x01a\x980",
    "an opcode that straddles a frame": b"\x95\x03" + bytes(7),
    "an item of a list": b"]K\1aK\0K\2s0",
    "an item of a bytearray": b"\x96\1" + bytes(7) + b"aK\1a0",
    "a line of a megabyte": b"V" + b"a" * (1 << 20) + b"\n0",
}
SECOND_STORAGE = b"\x80\x02K\2X\3\0\0\0cpuctorch\nFloatStorage\n\x87."
OLD_EVIL = b"cos\nmkdir\n(S'canary'\ntR."


def torch_tar(storages):
    """What torch before 0.1.10 wrote, with one storage of two numbers before STORAGES."""
    first = b"\x80\x02K\x02." + b"\x80\x02(K\1X\3\0\0\0cpuctorch\nFloatStorage\nt." + struct.pack("<q", 2) + bytes(8)
    parts = {"sys_info": {}, "pickle": {}, "tensors": 0}
    return tarred({**{name: pickle.dumps(part, 2) for name, part in parts.items()}, "storages": first + storages})


def decoyed(**more):
    """An exported program with a pickle that names a member as if it were a storage."""
    decoy = TENSORS.replace(b"X\x01\0\0\x000X", b"X\x08\0\0\0opaque_0X")
    return zipped({"archive_format": b"pt2", "data.pkl": decoy, "data/opaque_0": EVIL, **more})


def forgotten():
    """A zip archive with a record that its directory does not know."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", TENSORS)
        archive.writestr("archive/hidden", EVIL)
        archive.writestr("archive/data/0", bytes(8))
        del archive.filelist[1]
    return out.getvalue()


EVIL_LOADER = b"cos\nmkdir\n"


def tensors_in_a_pickle(stream, function=b"ctorch.storage\n_load_from_bytes\n"):
    """A plain pickle that calls FUNCTION on STREAM, the file of a tensor."""
    return b"\x80\x03" + function + b"B" + struct.pack("<I", len(stream)) + stream + b"\x85R."


def npy_of(descr, payload):
    """A numpy array of DESCR."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + payload


def safetensors_pickle(prelude):
    """A safetensors file without fault that is a pickle as well: its first byte is that of a text with an end."""
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}'
    payload = prelude + OLD_EVIL
    header = header % (len(payload), len(payload))
    return struct.pack("<Q", 0x156) + header.ljust(0x155) + b"\n" + payload


#: name -> file. Each calls os.mkdir when some program unpickles it, and each program is one that is used.
HOSTILE = {
    "pickle": EVIL,
    "protocol 0": b"cos\nmkdir\n(S'canary'\ntR.",
    "protocol 0, inst": b"(S'canary'\nios\nmkdir\n.",
    "python 2 name": b"\x80\x02cposix\nmkdir\n(X\x06\x00\x00\x00canarytR.",
    "pickled by protocol 4": pickle.dumps(Payload(), 4),
    "pickled by protocol 5": pickle.dumps({"w": [Payload()]}, 5),
    "obj": b"\x80\x02(cos\nmkdir\nX\x06\x00\x00\x00canaryo.",
    "the name in the memo": b"\x80\x04\x8c\x05mkdir\x940\x8c\x02os\x94h\x01h\x00\x93(\x8c\x06canarytR.",
    "the result thrown away": b"\x80\x02" + CALL + b"0}.",
    "hidden in a tuple that is thrown away": b"\x80\x02(" + CALL + b"t0}.",
    "before an end that never comes": EVIL[:-1],
    "before an opcode that is none": EVIL[:-1] + b"\xff",
    "several in a row": TENSORS + pickle.dumps({}) + EVIL,
    "zip": torch_zip(EVIL),
    "zip under another name": torch_zip(**{"notes.txt": EVIL}),
    "zip with a nested zip": zipped({"inner.bin": zipped({"deep.bin": torch_zip(EVIL)})}),
    "zip, deflated": zipped({"data.pkl": EVIL}, zipfile.ZIP_DEFLATED),
    "zip without a folder": zipped({"data.pkl": EVIL}, top=""),
    "zip with a nested tar": zipped({"inner": tarred({"x": EVIL})}),
    "zip with two names that differ in case": zipped({"data.pkl": TENSORS, "DATA.PKL": EVIL}),
    "zip with a second pickle behind the first": torch_zip(TENSORS + EVIL),
    "zip in a storage that no tensor uses": torch_zip(**{"data/1": EVIL}),
    "zip behind other bytes": b"GIF89a" + bytes(100) + torch_zip(EVIL),
    "zip whose directory is gone": torch_zip(EVIL)[:300],
    "zip with a wrong checksum": torch_zip(EVIL.replace(b"canary", b"CANARY")).replace(b"CANARY", b"canary", 1),
    "zips in a row": torch_zip() + torch_zip(EVIL),
    "legacy": legacy(EVIL),
    "legacy, in place of the magic number": EVIL + legacy(),
    "legacy, in the third pickle": MAGIC + pickle.dumps(1001, 2) + EVIL + TENSORS + pickle.dumps([]),
    "legacy, behind the last storage": legacy(behind=EVIL),
    "tar": tarred({"sys_info": pickle.dumps({}), "pickle": EVIL, "storages": b"", "tensors": b""}),
    "npy": npy(EVIL),
    "npz": zipped({"a.npy": npy(EVIL)}, top=""),
    "a safetensors file that is a pickle": polyglot(),
    "a pickle called safetensors.safetensors": EVIL,
    **{f"{name}, in a pickle": prelude + OLD_EVIL for name, prelude in PRELUDES.items()},
    **{f"{name}, in a safetensors file": safetensors_pickle(prelude) for name, prelude in PRELUDES.items()},
    **{f"{name}, in the second pickle": b"\x80\x02N." + prelude + OLD_EVIL for name, prelude in PRELUDES.items()},
    **{f"{name}, in a record": torch_zip(x=prelude + OLD_EVIL) for name, prelude in PRELUDES.items()},
    "exported program, where a decoy calls the pickle a storage": decoyed(),
    "package, where a decoy calls the pickle a storage": decoyed(**{".data/extern_modules": b""}),
    "tar, in place of the second storage": torch_tar(OLD_EVIL),
    "tar, in place of the views": torch_tar(EVIL),
    "npy with a structure": npy_of("[('a', '|O')]", EVIL),
    "npy with other quotes": npy_of('"|O"', EVIL),
    "npy, the second array": npy_of("'|u1'", b"\1") + npy(EVIL),
    "legacy, the second one": legacy() + legacy(EVIL),
    "legacy, behind a pickle": TENSORS + legacy(EVIL),
    "zip with a record that is in no directory": forgotten(),
    "pickle with the file of a tensor": tensors_in_a_pickle(legacy(EVIL)),
    "pickle with a file that another function loads": tensors_in_a_pickle(legacy(), EVIL_LOADER),
}

#: name -> file that no program executes anything of.
HARMLESS = {
    "zip": torch_zip(),
    "zip with the same pickle twice": torch_zip(TENSORS + TENSORS),
    "zip, deflated": zipped({"data.pkl": TENSORS, "data/0": bytes(8)}, zipfile.ZIP_DEFLATED),
    "zip with a payload in the numbers of a tensor": torch_zip(**{"data/0": EVIL[:8]}),
    "zips in a row": torch_zip() * 3,
    "legacy": legacy(),
    "pickle": pickle.dumps({"epoch": 3, "when": (1, 2.5, None, b"x", {4})}, 2),
    "safetensors": safetensors(),
    "npy": npy(pickle.dumps([1, "x"])),
    "pickle with the file of a tensor": tensors_in_a_pickle(legacy()),
    "tar": torch_tar(
        b"\x80\x02K\2X\3\0\0\0cpuctorch\nFloatStorage\n\x87." + bytes([1] + [0] * 11) + pickle.dumps([], 2)
    ),
    "text in an archive": torch_zip(**{"readme.md": b"cos\nmkdir\n is how it is done\n"}),
}
