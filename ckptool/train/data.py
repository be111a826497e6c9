"""What is learned from: a table of houses, images that are made up, a folder of images; and how it is divided."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from ..disk.documents import LARGEST_LIST, read_json, read_text
from ..disk.files import is_folder, reason
from ..errors import CheckpointError, Malformed, NotFound, RuleError, Unreadable, counted, printable, require
from .config import Config

FEATURES = 13
ROWS = 506
_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"}


@dataclass(frozen=True)
class Data:
    """A training part and a test part, and the names of the classes (none for a regression)."""

    train: Dataset[Any]
    test: Dataset[Any]
    classes: tuple[str, ...] = ()


def split(count: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Divide the numbers 0 to COUNT - 1 at random: those to train with, and FRACTION of them to test with."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held_out = max(1, round(count * fraction))
    if held_out >= count:
        raise RuleError(f"of {counted(count, 'sample')}, nothing is left to train with", where="--test-fraction")
    return order[held_out:], order[:held_out]


# -- a table


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a table: features [13] and a value [1], in float32."""

    def __init__(self, features: Tensor, values: Tensor) -> None:
        self.features = features
        self.values = values

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.features[index], self.values[index]


def housing(config: Config) -> Data:
    """The table of the housing task, its columns scaled to mean 0 and deviation 1 of the training part."""
    features, values = read_table(Path(config.data), config.target) if config.data else synthetic_houses(config)
    train, test = split(len(features), config.test_fraction, config.seed)
    features = _scaled(features, train)
    values = _scaled(values, train)
    return Data(Rows(features[train], values[train]), Rows(features[test], values[test]))


def _scaled(columns: Tensor, train: Tensor) -> Tensor:
    mean, deviation = columns[train].mean(0), columns[train].std(0, correction=0)
    return ((columns - mean) / torch.where(deviation > 0, deviation, 1)).float()


def synthetic_houses(config: Config) -> tuple[Tensor, Tensor]:
    """A made-up table in the shape of the Boston one: 506 rows of 13 features, and a value that depends on them."""
    random = torch.Generator().manual_seed(config.seed)
    features = torch.randn(config.samples or ROWS, FEATURES, generator=random)
    weights = torch.randn(FEATURES, 1, generator=random)
    values = features @ weights + torch.tanh(features[:, :1] * features[:, 1:2])
    return features, values + 0.1 * torch.randn(values.shape, generator=random)


def read_table(path: Path, target: str | None) -> tuple[Tensor, Tensor]:
    """Read a CSV file with a line of names, 13 columns of features and one of values.

    Args:
        path: the file.
        target: name of the column of values; the last one unless it is given.

    Raises:
        NotFound: a column is missing.
        Malformed: a cell is no finite number, or a row has another number of cells than the first.
        Unreadable: the file cannot be opened.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Unreadable(reason(error), where=path) from None
    lines = [(line, row) for line, row in enumerate(rows, 1) if any(cell.strip() for cell in row)]
    if not lines:
        raise Malformed("is empty", where=path)
    names = [name.strip() for name in lines[0][1]]
    _check_columns(path, names, target)
    if not lines[1:]:
        raise Malformed("has the names of columns, and no rows", where=path)
    chosen = names.index(target) if target else len(names) - 1
    table = torch.tensor([_numbers(path, names, row, line) for line, row in lines[1:]], dtype=torch.float64)
    rest = [column for column in range(len(names)) if column != chosen]
    return table[:, rest], table[:, [chosen]]


def _check_columns(path: Path, names: list[str], target: str | None) -> None:
    shown = ", ".join(printable(name, 30) for name in names[:20])
    if all(_is_number(name) for name in names):
        raise NotFound(
            "has no line of column names",
            where=path,
            evidence=[f"its first line: {shown}"],
            hint="put a line with the names of the columns before the numbers",
        )
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise Malformed(f"has several columns {printable(twice[0], 40)!r}", where=path)
    if target and target not in names:
        raise NotFound(
            f"has no column {printable(target)!r}",
            where=path,
            evidence=[f"its columns: {shown}"],
            hint=f"--target {names[-1]}",
        )
    if len(names) != FEATURES + 1:
        missing = FEATURES + 1 - len(names)
        short = f", {missing} missing" if missing > 0 else f", {-missing} too many"
        raise NotFound(
            f"has {counted(len(names), 'column')}; {FEATURES} features and a value are needed{short}",
            where=path,
            evidence=[f"its columns: {shown}"],
        )


def _numbers(path: Path, names: list[str], row: list[str], line: int) -> list[float]:
    if len(row) != len(names):
        raise Malformed(f"line {line:,} has {counted(len(row), 'cell')}, the first {len(names)}", where=path)
    for name, cell in zip(names, row, strict=True):
        if not _is_number(cell):
            what = "is empty" if not cell.strip() else f"is {printable(cell.strip(), 40)}, which is not a finite number"
            raise Malformed(
                f"line {line:,}, column {printable(name, 40)}: {what}",
                where=path,
                hint="fill in or leave out such rows before training",
            )
    return [float(cell) for cell in row]


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


# -- images


class Gratings(Dataset[tuple[Tensor, int]]):
    """Made-up images, each a grating in noise; the class is its direction. Image number I is the same in every process.

    Args:
        count: how many.
        shape: (channels, height, width).
        classes: how many directions.
        seed: another seed gives other images.
    """

    def __init__(self, count: int, shape: tuple[int, int, int], classes: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(classes, (count,), generator=random)
        self._phases = torch.rand(count, generator=random) * math.tau
        self._shape = shape
        self._angles = torch.arange(classes) * math.pi / classes
        self._seed = seed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        channels, height, width = self._shape
        label = int(self.labels[index])
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        angle = self._angles[label]
        wave = torch.sin(0.7 * (x * angle.cos() + y * angle.sin()) + self._phases[index])
        noise = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        return wave.expand(channels, -1, -1) + 0.3 * torch.randn(self._shape, generator=noise), label


def gratings(config: Config, shape: tuple[int, int, int], default: int) -> Data:
    """Made-up images for training, and others for testing."""
    count = config.samples or default
    train, test = split(count, config.test_fraction, config.seed)
    names = tuple(f"{180 * number / config.classes:g} degrees" for number in range(config.classes))
    return Data(
        Gratings(len(train), shape, config.classes, 2 * config.seed),
        Gratings(len(test), shape, config.classes, 2 * config.seed + 1),
        names,
    )


class Images(Dataset[tuple[Tensor, int]]):
    """Images in files, opened when they are asked for, with the change that TRANSFORM makes."""

    def __init__(self, files: Sequence[tuple[Path, int]], transform: Callable[[Any], Tensor]) -> None:
        self._files = files
        self._transform = transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image, UnidentifiedImageError

        path, label = self._files[index]
        try:
            with Image.open(path) as image:
                return self._transform(image.convert("RGB")), label
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise Unreadable(f"is not an image: {reason(error)}", where=path) from None


@dataclass(frozen=True)
class Resized:
    """Scale an image to SIZE x SIZE; with AUGMENT, first crop at least half of it, and mirror every other one."""

    size: int
    augment: bool = False

    def __call__(self, image: Any) -> Tensor:
        """Turn an image of Pillow into values from -1 to 1 of shape [3, SIZE, SIZE]."""
        import numpy
        from PIL import Image, ImageOps

        if self.augment:
            scale = math.sqrt(0.5 + 0.5 * torch.rand(()).item())
            width, height = max(1, round(image.width * scale)), max(1, round(image.height * scale))
            left = int(torch.randint(image.width - width + 1, ()).item())
            top = int(torch.randint(image.height - height + 1, ()).item())
            image = image.crop((left, top, left + width, top + height))
            if torch.rand(()).item() < 0.5:
                image = ImageOps.mirror(image)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(numpy.asarray(image, dtype=numpy.float32).copy())
        return pixels.permute(2, 0, 1) / 127.5 - 1


def image_folder(config: Config) -> Data:
    """The user's images: FOLDER/CLASS/*.jpg, or FOLDER/train/CLASS/* and FOLDER/test/CLASS/* (or val).

    Classes are numbered in the order of their names, or as `--labels FILE.json` says ({"cat": 0, …}).

    Raises:
        NotFound: there is no such folder, no image in it, or a class that the label map does not know.
    """
    require("--task imagefolder", "PIL", extra="train")
    folder = Path(config.data or ".")
    if not is_folder(folder):
        raise NotFound("is not a folder", where=folder)
    given = _label_map(Path(config.labels)) if config.labels else None
    parts = [folder / name for name in ("train", "test", "val") if (folder / name).is_dir()]
    if len(parts) >= 2 and parts[0].name == "train":
        labels = given or _labels_of(parts[0])
        train, test = _files_of(parts[0], labels), _files_of(parts[1], labels)
    else:
        labels = given or _labels_of(folder)
        found = _files_of(folder, labels)
        train_at, test_at = split(len(found), config.test_fraction, config.seed)
        train, test = [found[i] for i in train_at.tolist()], [found[i] for i in test_at.tolist()]
    names = tuple(sorted(labels, key=lambda name: labels[name]))
    return Data(
        Images(train, Resized(config.image_size, augment=True)), Images(test, Resized(config.image_size)), names
    )


def _labels_of(folder: Path) -> dict[str, int]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise NotFound(
            "has no folder for a class in it", where=folder, hint="put the images of each class into a folder"
        )
    return {name: number for number, name in enumerate(names)}


def _label_map(path: Path) -> dict[str, int]:
    labels = read_json(read_text(path, Malformed, largest=LARGEST_LIST), path)
    numbers: list[Any] = list(labels.values()) if isinstance(labels, dict) else []
    if not numbers or any(type(n) is not int for n in numbers) or sorted(numbers) != list(range(len(numbers))):
        raise Malformed("is not a label map: the names of the classes with the numbers from 0 on", where=path)
    return labels


def _files_of(folder: Path, labels: dict[str, int]) -> list[tuple[Path, int]]:
    files = []
    for entry in sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        if entry.name not in labels:
            known = ", ".join(printable(name, 30) for name in list(labels)[:10])
            raise NotFound(
                f"the class {printable(entry.name)} has no label", where=folder, evidence=[f"known: {known}"]
            )
        inside = sorted(path for path in entry.rglob("*") if path.suffix.lower() in _SUFFIXES)
        files += [(path, labels[entry.name]) for path in inside]
    if len(files) < 2:
        raise NotFound(f"has {counted(len(files), 'image')} in its folders of classes", where=folder)
    return files


def unburied(error: CheckpointError) -> CheckpointError:
    """ERROR as it was raised. Of one in a worker of a DataLoader, torch gives the traceback for its message."""
    kind = type(error)
    _, is_buried, text = error.what.rpartition(f"{kind.__module__}.{kind.__qualname__}: ")
    return kind(text.strip().rstrip(".")) if is_buried else error


# -- dividing among processes


class Partition(Sampler[int]):
    """The part of one process, by hand: of each epoch's permutation, which all processes draw alike, every WORLD-th.

    All parts are equally long, else a process would wait for the others for ever: samples from the start of the
    permutation are used twice, or with DROP_LAST some from its end are not used. This is what DistributedSampler does.
    """

    def __init__(self, count: int, rank: int, world: int, seed: int, *, drop_last: bool = False) -> None:
        self._count = count
        self._rank = rank
        self._world = world
        self._seed = seed
        self._length = count // world if drop_last else math.ceil(count / world)
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw another permutation from now on."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self._count, generator=torch.Generator().manual_seed(self._seed + self._epoch)).tolist()
        total = self._length * self._world
        order = (order * math.ceil(total / self._count))[:total]
        return iter(order[self._rank :: self._world])
