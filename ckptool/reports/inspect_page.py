"""The page of `ckptool inspect --html`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..drawing.page import render, shown
from ..tree import names_in
from .inspect import Inspection, TensorReport


def inspect_page(reports: Sequence[Inspection], stats: Sequence[Sequence[dict[str, Any] | None]] | None = None) -> str:
    """The page of `ckptool inspect --html`: a zoomable treemap of bytes beside a tree that can be searched.

    Args:
        reports: one for each file.
        stats: for each file and tensor its statistics, with a histogram where there is one.
    """
    return render(
        {
            "title": ", ".join(shown(report.path) for report in reports[:3]) + (", …" if len(reports) > 3 else ""),
            "parameters": sum(one.parameters for report in reports for one in report.state_dicts),
            "notes": [shown(text) for report in reports for text in _notes(report)],
            "commands": [(command, what) for report in reports for command, what in report.suggestions],
            "files": [_file(report, stats[number] if stats else None) for number, report in enumerate(reports)],
        },
        "treemap",
    )


def _notes(report: Inspection) -> list[str]:
    """What the text of the report says beside its tensors."""
    training = report.training
    notes = [f"saved by {training.framework}"] if training.framework else []
    notes += [f"training: {', '.join(f'{name} {value}' for name, value in training.progress)}"] * bool(
        training.progress
    )
    notes += [f"{name}: {words}" for name, words, _ in training.state]
    notes += [f"tied: {' = '.join(keys[:8])}" for keys in report.ties[:8]]
    notes += [f"objects: {', '.join(f'{name} ({n:,})' for name, n in report.objects.items())}"] * bool(report.objects)
    return [*notes, *report.warnings]


def _file(report: Inspection, stats: Sequence[dict[str, Any] | None] | None) -> dict[str, Any]:
    """The tensors of a file in columns, which are a third of the size of as many records."""
    tensors = report.tensors
    columns: dict[str, Any] = {
        "path": [[shown(part) for part in _parts(one)] for one in tensors],
        "dtype": [one.dtype for one in tensors],
        "shape": [one.shape for one in tensors],
        "location": [shown(one.location) for one in tensors],
        "storage": [one.storage for one in tensors],
        "own": _own_bytes(report),
    }
    if stats:
        columns["stats"] = list(stats)
    return {"path": shown(report.path), "format": report.format, "tensors": columns}


def _own_bytes(report: Inspection) -> list[int]:
    """The bytes of each tensor, 0 for all but the first of those that are tied."""
    group_of = {key: number for number, group in enumerate(report.ties) for key in group}
    seen: set[tuple[int, int | None]] = set()
    own = []
    for one in report.tensors:
        group = group_of.get(one.key or "")
        tied = group is not None and (group, one.storage) in seen
        if group is not None:
            seen.add((group, one.storage))
        own.append(0 if tied else one.bytes)
    return own


def _parts(tensor: TensorReport) -> list[str]:
    """The way to a tensor: through the tree of the file, then through the modules of its key."""
    key = tensor.key
    path = names_in(tensor.path)
    if key is None:
        return path
    return [*path[:-1], *key.split(".")]
