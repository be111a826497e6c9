"""`ckptool merge-lora`."""

from __future__ import annotations

import math
from typing import Any

import click

from .. import formats
from ..adapters.merging import merge_lora as merge
from ..adapters.merging import open_adapter
from ..disk.files import is_there
from ..errors import RuleError, printable
from ..formats.opening import require_whole
from .help import Command
from .options import FileName, output_options, parts_option
from .rewrite import rewrite


@click.command(cls=Command)
@click.argument("paths", type=FileName(), metavar="BASE ADAPTER[@WEIGHT]… OUT", nargs=-1, required=True)
@click.option("--component", metavar="PART", help="Part of a pipeline adapter to merge: unet, lora_te1.")
@click.option("--max-shard-size", metavar="SIZE", help="Write a folder of shards of at most SIZE (5GB, 500MB).")
@parts_option
@output_options
def merge_lora(paths: tuple[str, ...], component: str | None, max_shard_size: str | None, **options: Any) -> None:
    """Merge adapters into their base model like peft's merge_and_unload, but without loading a model.

    Supports LoRA, rsLoRA, DoRA, LoHa, LoKr and IA3 from peft, and the layouts of diffusers and kohya. Values are
    computed in float32 and rounded once to the type of the base; a quantised base is dequantised first. OUT has the
    same shards, configuration and tokenizer as BASE. If a key of an adapter does not fit, nothing is written.

    \b
    ckptool merge-lora base/ adapter/ merged/
    ckptool merge-lora base/ style/@0.8 task/@0.5 merged/
    ckptool merge-lora unet/ lora.safetensors unet-merged/ --component unet
    """
    named = list(paths)
    if options["output"] is None:
        if len(named) < 3:
            raise click.UsageError("Missing BASE, ADAPTER or OUT: ckptool merge-lora BASE ADAPTER OUT.")
        options["output"] = named.pop()
    if len(named) < 2:
        raise click.UsageError("Missing ADAPTER: ckptool merge-lora BASE ADAPTER -o OUT.")
    source, *others = named
    adapters = [open_adapter(*_weighted(word)) for word in others]
    base = formats.open(source)
    if not options["partial_file"]:
        require_whole(base)
    merged = merge(base, adapters, component=component, at=options["at"])
    options |= {"source": source, "target": None, "in_place": False, "at": None}
    rewrite([], "merge-lora", options, opener=lambda _: merged, max_shard_size=max_shard_size)


def _weighted(word: str) -> tuple[str, float]:
    """A path and a weight, of `path@0.5`. A file whose name has an @ is taken as it is."""
    path, at, number = word.rpartition("@")
    if not at or not path or is_there(word):
        return word, 1.0
    try:
        weight = float(number)
    except ValueError:
        return word, 1.0
    if not math.isfinite(weight) or not weight:
        raise RuleError(f"{printable(number, 40)} is not a weight", where=printable(word), hint="ADAPTER@0.8")
    return path, weight
