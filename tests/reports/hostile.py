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
    "text in an archive": torch_zip(**{"readme.md": b"cos\nmkdir\n is how it is done\n"}),
}
