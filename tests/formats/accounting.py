"""What receipts say of the bytes of tensors in the files of a run, and how many there are."""

import re
import zipfile

import ckptool


def account(folder, **options):
    """(stored, used, what is left behind and beside), as the receipt says."""
    (line,) = [line for line in ckptool.open(folder, **options).lost_form if line.startswith("of ")]
    stored, used = re.findall(r"([\d,]+) (?:bytes? of tensors|are used)", line)
    left = re.findall(r"([\d,]+) bytes? (at|beside|elsewhere)", line)
    stored, used = (int(number.replace(",", "")) for number in (stored, used))
    sums = {kind: sum(int(n.replace(",", "")) for n, k in left if k == kind) for _, kind in left}
    assert stored == used + sum(sums.values())
    return stored, used, sums


def stored_in(paths):
    """Bytes of the records of tensors in files of torch.save."""
    held = 0
    for path in paths:
        with zipfile.ZipFile(path) as archive:
            held += sum(info.file_size for info in archive.infolist() if "/data/" in info.filename)
    return held
