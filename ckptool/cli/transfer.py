"""`ckptool transfer`."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from .. import formats, passes
from ..checkpoint import Checkpoint
from ..errors import CheckpointError, Doubtful, RuleError, printable
from ..files import shell_quote
from ..porting.mapping import Mapping
from ..writing import check_target
from .options import FileName, FormatName
from .output import print_json, progress_bar

_ALL = "*"


@click.command()
@click.argument("source", type=FileName(), metavar="SRC")
@click.argument("model", type=FileName(), metavar="MODEL.py[:NAME]")
@click.option("-o", "--output", type=FileName(), metavar="OUT", help="The file to write (SRC.NAME.pth if left out).")
@click.option("-t", "--to", "format_", type=FormatName(), help="Format to write (see `ckptool formats`).")
@click.option("--overwrite", is_flag=True, help="Allow OUT to exist.")
@click.option("-n", "--dry-run", is_flag=True, help="Match and report; write nothing.")
@click.option("--at", metavar="PATH", help="Where the weights are in the file (`state_dict`, `models/0`).")
@click.option("--kwargs", multiple=True, metavar="NAME=VALUE", help="An argument for the class or factory.")
@click.option(
    "--accept-guesses",
    is_flag=False,
    flag_value=_ALL,
    multiple=True,
    metavar="[PATTERN]",
    help="Accept guesses: all, or those that match.",
)
@click.option(
    "--partial",
    is_flag=False,
    flag_value=_ALL,
    multiple=True,
    metavar="[PATTERN]",
    help="Keep the model's own initial values where the source has nothing: everywhere, or where it matches.",
)
@click.option(
    "--hint", "hints", multiple=True, metavar="OLD=NEW", help="Names of the source and what the model calls them."
)
@click.option(
    "--by", type=click.Choice(["evidence", "position"]), default="evidence", help="position: the n-th to the n-th."
)
@click.option("--first", type=click.IntRange(1), metavar="N", help="With --by position: fill N tensors only.")
@click.option(
    "--start", type=click.IntRange(0), default=0, metavar="K", help="With --by position: skip K of the source."
)
@click.option(
    "--mapping", "mapping_file", type=FileName(), metavar="FILE", help="Replay a mapping file instead of matching."
)
@click.option("--invert", is_flag=True, help="With --mapping: the way back.")
@click.option(
    "--save-mapping", type=FileName(), metavar="FILE", help="Write the mapping as YAML, to read, edit and replay."
)
@click.option(
    "--source-model", metavar="SRC.py[:NAME]", help="The source's own code: its order counts, and --prove can run it."
)
@click.option("--source-kwargs", multiple=True, metavar="NAME=VALUE", help="An argument for it.")
@click.option("--prove", is_flag=True, help="Run both models on the same inputs and compare; settle doubts by it.")
@click.option(
    "--reference", type=FileName(), metavar="FILE", help="Saved inputs and outputs of the source, to prove against."
)
@click.option(
    "--input", "inputs", multiple=True, metavar="SPEC", help="Example input: 'float32[2,3,64,64]', 'int64[2,12]<100'."
)
@click.option("--map-location", "-m", multiple=True, metavar="RULE", help="Change devices (see `ckptool remap`).")
@click.option("--allow-loss", is_flag=True, help="Write although the format cannot hold everything.")
@click.option("--json", "as_json", is_flag=True, help="Print the mapping as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No report, no progress bar.")
@click.option("-v", "--verbose", is_flag=True, help="One line for every key, with its evidence.")
def transfer(source: str, model: str, **options: Any) -> int:
    """Port weights into other model code: find which tensor goes where, and write the model's own state dict.

    This imports and runs MODEL.py. Nothing is written while there are guesses or keys without a source, unless they
    are accepted.

    \b
    ckptool transfer vgg19.pth model.py
    ckptool transfer vgg19.pth model.py:Net --kwargs classes=10 -o net.pth
    ckptool transfer resnet18.pth model.py --partial 'head.*'
    ckptool transfer llama.pth model.py --source-model llama.py --prove
    """
    from ..architecture import build, find_model, initial_values, unwrapped
    from ..inputs import parse_inputs
    from ..porting.refusal import require_accepted
    from ..porting.report import mapping_text
    from ..porting.sources import apply, open_source, require_fit
    from ..trace import signature_of

    inputs = parse_inputs(options["inputs"])
    _check_options(options)
    ckpt = open_source(source)
    found = find_model(model, _kwargs(options["kwargs"], "--kwargs"))
    if not options["quiet"]:
        click.echo(f"running the code of {printable(model, 100)}", err=True)
    built = unwrapped(build(found))
    name = type(built).__name__
    target = signature_of(built, inputs=inputs)
    code = None
    if options["source_model"]:
        code = find_model(
            options["source_model"], _kwargs(options["source_kwargs"], "--source-kwargs"), option="--source-model"
        )
    mapping = _mapping(ckpt, target, code, options)
    if not options["mapping_file"] and options["by"] == "evidence":
        require_fit(mapping, ckpt, target)
    if options["prove"] or options["reference"]:
        from ..porting.prove import prove, prove_against

        if options["reference"]:
            mapping = prove_against(mapping, ckpt, found, options["reference"])
        else:
            mapping = prove(mapping, ckpt, code, found, inputs=inputs)
    if options["save_mapping"]:
        from ..porting.mapping_file import save

        save(mapping, options["save_mapping"], overwrite=options["overwrite"])
    out = _output(source, name, options)
    width = max(shutil.get_terminal_size((120, 40)).columns, 60)
    if not options["as_json"] and not options["quiet"]:
        click.echo(mapping_text(replace(mapping, source=source), everything=options["verbose"], width=width))
    guesses, gaps = (list(options[name]) or None for name in ("accept_guesses", "partial"))
    try:
        _require_proof(mapping, options)
        require_accepted(mapping, guesses, gaps, _command(options))
    except Doubtful as doubt:
        if options["as_json"]:
            print_json({"ckptool": 1, "command": "transfer", **mapping.as_json(), "output": None})
        click.echo(f"Error: {doubt}", err=True)
        return 1
    plan = None
    if not options["dry_run"]:
        check_target(out, overwrite=options["overwrite"])
        made = apply(mapping, ckpt, lambda keys: initial_values(found, keys))
        if options["map_location"]:
            made = passes.map_location(made, options["map_location"])
        plan = _write(made, out, options)
    if options["as_json"]:
        print_json(
            {
                "ckptool": 1,
                "command": "transfer",
                **mapping.as_json(),
                "output": None if plan is None else plan.as_json(),
            }
        )
    elif plan is not None and not options["quiet"]:
        click.echo(f"wrote {printable(str(out))}: {plan.format}, {plan.nbytes:,} bytes, {plan.steps[-1]}", err=True)
    return 0


def _check_options(options: dict[str, Any]) -> None:
    if (options["first"] is not None or options["start"]) and options["by"] != "position":
        raise click.UsageError("--first and --start belong to --by position.")
    if options["invert"] and not options["mapping_file"]:
        raise click.UsageError("--invert needs --mapping FILE.")
    if options["prove"] and not options["source_model"] and not options["reference"]:
        raise click.UsageError(
            "--prove needs the source's code: --source-model SRC.py, or its outputs: --reference FILE."
        )


def _mapping(ckpt: Checkpoint, target: Any, code: Any, options: dict[str, Any]) -> Mapping:
    from ..architecture import build, unwrapped
    from ..inputs import parse_inputs
    from ..porting import mapping_file
    from ..porting.sources import by_position, match_signature
    from ..trace import signature_of

    if options["mapping_file"]:
        read = mapping_file.read(options["mapping_file"])
        if options["at"] is not None:
            read = replace(read, at=options["at"])
        weights = ckpt.state_dict(read.at if not options["invert"] else options["at"])
        if options["invert"]:
            read = mapping_file.invert(read, {k: e.shape for k, e in target.entries.items()})
        return mapping_file.for_target(read, target, {k: t.shape for k, t in weights.tensors.items()})
    if options["by"] == "position":
        return by_position(ckpt, target, at=options["at"], first=options["first"], start=options["start"])
    source_code = None
    if code is not None:
        source_code = signature_of(unwrapped(build(code)), inputs=parse_inputs(options["inputs"]))
    return match_signature(ckpt, target, at=options["at"], hints=options["hints"], source_code=source_code)


def _require_proof(mapping: Mapping, options: dict[str, Any]) -> None:
    if mapping.proof is not None and not mapping.proof.get("equal"):
        raise Doubtful(
            f"not proved: {mapping.proof.get('text')}",
            where=mapping.target,
            hint="leave out --prove to write it all the same",
        )


def _kwargs(texts: Sequence[str], option: str) -> dict[str, Any]:
    out = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise RuleError(f"{printable(text)!r} is not NAME=VALUE", where=option, hint=f"{option} classes=10")
        try:
            out[name] = json.loads(value)
        except ValueError:
            out[name] = {"True": True, "False": False, "None": None}.get(value, value)
        if isinstance(out[name], list):
            out[name] = tuple(out[name])
    return out


def _output(source: str, name: str, options: dict[str, Any]) -> str:
    if options["output"] == "-":
        raise click.UsageError("Checkpoints are not written to stdout; name a file.")
    if options["output"]:
        return str(options["output"])
    return f"{Path(source).stem}.{re.sub(r'[^A-Za-z0-9_]', '_', name)}.pth"


def _write(made: Checkpoint, out: str, options: dict[str, Any]) -> Any:
    format_ = options["format_"]
    if format_ is None and Path(out).suffix.lower() != ".safetensors":
        format_ = "torch-zip"
    plan = formats.plan(made, out, format=format_, allow_loss=options["allow_loss"])
    with progress_bar(Path(out).name, plan.nbytes, wanted=not options["quiet"]) as progress:
        formats.write(plan, overwrite=options["overwrite"], progress=progress)
    return plan


def _command(options: dict[str, Any]) -> str:
    """The command as it was typed, to be shown with what would accept the rest added."""
    return "ckptool " + " ".join(shell_quote(word) for word in sys.argv[1:])


__all__ = ["CheckpointError", "transfer"]
