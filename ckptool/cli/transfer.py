"""`ckptool transfer`."""

from __future__ import annotations

import contextlib
import gc
import math
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import formats
from ..checkpoint import Checkpoint
from ..disk.documents import read_json
from ..disk.files import is_file, shell_quote
from ..disk.folders import check_folder
from ..disk.targets import check_target, is_same_file
from ..disk.urls import as_path
from ..drawing.sizes import size_text
from ..errors import Doubtful, Malformed, NotFound, RuleError, printable
from ..model_code import user_code
from ..model_code.signature import Signature
from ..passes import by_key as passes
from ..passes import values
from ..porting import mapping_file
from ..porting.mapping import Mapping
from ..porting.mapping_text import mapping_page, mapping_text
from ..porting.refusal import require_accepted
from ..porting.sources import apply, by_position, match_signature, open_source, require_fit
from .options import FileName, FormatName, SideOutput
from .output import check_side_outputs, damage, print_json, progress_bar, status_line, write_page

if TYPE_CHECKING:
    from ..model_code.building import ModelSource

_ALL = "*"


class _WithPatterns(click.Command):
    """A command with options whose value may be left out, and then means all: never a file that stands after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        told = [
            f"{word}={_ALL}" if word in ("--accept-guesses", "--partial") and _is_a_file(after) else word
            for word, after in zip(args, [*args[1:], ""], strict=False)
        ]
        return super().parse_args(ctx, told)


def _is_a_file(word: str) -> bool:
    return is_file(word) or word.partition(":")[0].endswith(".py")


@click.command(cls=_WithPatterns)
@click.argument("source", type=FileName(), metavar="SRC")
@click.argument("model", type=FileName(), metavar="MODEL.py[:NAME]")
@click.option("-o", "--output", type=FileName(), metavar="OUT", help="The file to write (SRC.NAME.pth if left out).")
@click.option("-t", "--to", "format_", type=FormatName(), help="Format to write (see `ckptool formats`).")
@click.option("--overwrite", is_flag=True, help="Allow OUT and REPORT to exist.")
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
    "--save-mapping",
    type=SideOutput("mapping", same_is_fine=True),
    metavar="FILE",
    help="Write the mapping as YAML, to read, edit and replay.",
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
    "--patience",
    type=click.FloatRange(0),
    default=300.0,
    metavar="SECONDS",
    help="How long a proof may look for what makes outputs equal (300).",
)
@click.option(
    "--input", "inputs", multiple=True, metavar="SPEC", help="Example input: 'float32[2,3,64,64]', 'int64[2,12]<100'."
)
@click.option(
    "--source-input",
    "source_inputs",
    multiple=True,
    metavar="SPEC",
    help="Example input of the source's code, if it takes them in another form.",
)
@click.option("--cast", metavar="TYPE", help="Cast floating point tensors: bf16, fp16, fp32 … (see `ckptool convert`).")
@click.option("--map-location", "-m", multiple=True, metavar="RULE", help="Change devices (see `ckptool remap`).")
@click.option("--allow-loss", is_flag=True, help="Write although the format cannot hold everything.")
@click.option("--html", type=SideOutput("page"), metavar="REPORT", help="Also write a page to look at.")
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
    _check_options(options)
    _check_order(source, model)
    check_side_outputs()
    read = mapping_file.read(options["mapping_file"]) if options["mapping_file"] else None
    _require_torch()
    out = options["output"]
    if out is not None:
        _check_target(out, source, options)
    ckpt = open_source(source)
    if not options["quiet"]:
        codes = [_named_code(code) for code in (model, options["source_model"]) if code]
        click.echo(f"running the code of {' and '.join(codes)}", err=True)
    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the report
        mapping, found, name = _matched(ckpt, model, options, read)
    out = out or f"{Path(source).stem}.{re.sub(r'[^A-Za-z0-9_]', '_', name)}.pth"
    _check_target(out, source, options)
    for option in ("html", "save_mapping"):
        if options[option] and is_same_file(options[option], out):
            raise RuleError("is the file of weights that is written", where=options[option], hint="choose another name")
    _show(replace(mapping, source=source), options)
    refusal = _refusal(mapping, options)
    plan = None
    if refusal is None and not options["dry_run"]:
        with contextlib.redirect_stdout(sys.stderr):
            made = apply(mapping, ckpt, partial(_initial_values, found))
        if options["cast"]:
            made = values.cast(made, options["cast"])
        if options["map_location"]:
            made = passes.map_location(made, options["map_location"])
        plan = _write(made, out, options)
    if options["as_json"]:
        written = {"output": None} if plan is None else {"output": str(out), "written": plan.as_json()}
        print_json({"ckptool": 1, "command": "transfer", **mapping.as_json(), **written})
    if refusal is not None:
        click.echo(f"Error: {refusal}", err=True)
        return 1
    if plan is not None and not options["quiet"]:
        click.echo(f"wrote {printable(out)}: {plan.format}, {size_text(plan.nbytes)}, {plan.steps[-1]}", err=True)
        for line in plan.steps[:-1]:
            click.echo(f"  {line}", err=True)
        for line in damage(plan):
            click.echo(line, err=True)
    return 0


def _check_target(out: str, source: str, options: dict[str, Any]) -> None:
    """Refuse a target before any code is run."""
    as_folder = options["format_"] and formats.named_format(options["format_"]) in formats.FOLDERS
    if not as_folder:
        formats.refuse_folder(out, as_path(source))
    if not options["dry_run"]:
        (check_folder if as_folder else check_target)(out, overwrite=options["overwrite"])


def _named_code(text: str) -> str:
    """Code as it was named, with its file where the name does not tell."""
    file = user_code.file_of(text)
    return printable(text, 100) + (f" ({printable(str(file))})" if file else "")


def _check_options(options: dict[str, Any]) -> None:
    if options["output"] == "-":
        raise click.UsageError("Checkpoints are not written to stdout; name a file.")
    if (options["first"] is not None or options["start"]) and options["by"] != "position":
        raise click.UsageError("--first and --start belong to --by position.")
    if options["invert"] and not options["mapping_file"]:
        raise click.UsageError("--invert needs --mapping FILE.")
    if options["source_inputs"] and not options["source_model"]:
        raise click.UsageError("--source-input belongs to --source-model SRC.py.")
    if options["prove"] and not options["source_model"] and not options["reference"]:
        raise click.UsageError(
            "--prove needs the source's code: --source-model SRC.py, or its outputs: --reference FILE."
        )


def _check_order(source: str, model: str) -> None:
    """Refuse the code in the place of the weights."""
    if source.partition(":")[0].endswith(".py") and is_file(model) and not model.endswith(".py"):
        swapped = {source: model, model: source}
        raise RuleError(
            "is code; the weights come first, and then the model that they go into",
            where=source,
            hint=_command(swapped=swapped),
        )


def _initial_values(found: ModelSource, keys: Sequence[str]) -> Any:
    from ..model_code.building import initial_values

    return initial_values(found, keys)


def _require_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise NotFound("running a model's code needs torch", hint="pip install 'ckptool[torch]'")


def _matched(
    ckpt: Checkpoint, model: str, options: dict[str, Any], read: Mapping | None
) -> tuple[Mapping, ModelSource, str]:
    """The mapping, the model's code, and the name of the model. READ is the mapping of a file, if there is one."""
    from ..model_code.building import build, find_model, unwrapped
    from ..model_code.inputs import parse_inputs
    from ..model_code.trace import signature_of

    inputs = parse_inputs(options["inputs"])
    source_inputs = parse_inputs(options["source_inputs"], "--source-input")
    found = find_model(model, _kwargs(options["kwargs"], "--kwargs"))
    target = signature_of(unwrapped(build(found)), inputs=inputs)
    code = None
    if options["source_model"]:
        arguments = _kwargs(options["source_kwargs"], "--source-kwargs")
        code = find_model(options["source_model"], arguments, option="--source-model")
    if read is not None:
        mapping = _replayed(read, ckpt, target, options)
    elif options["by"] == "position":
        mapping = by_position(ckpt, target, at=options["at"], first=options["first"], start=options["start"])
    else:
        theirs = None if code is None else signature_of(unwrapped(build(code)), inputs=source_inputs or inputs)
        mapping = match_signature(ckpt, target, at=options["at"], hints=options["hints"], source_code=theirs)
    if options["reference"] or options["prove"]:
        gc.enable()  # models that run leave much behind
    if options["reference"]:
        from ..porting.prove import prove_against

        with status_line("proof", wanted=not options["quiet"]) as say:
            mapping = prove_against(
                mapping, ckpt, found, options["reference"], patience=options["patience"], progress=say
            )
    elif options["prove"]:
        from ..porting.prove import prove

        # which may find what matching does not
        with status_line("proof", wanted=not options["quiet"]) as say:
            mapping = prove(
                mapping,
                ckpt,
                code,
                found,
                inputs=inputs,
                source_inputs=source_inputs,
                patience=options["patience"],
                progress=say,
            )
    if not options["mapping_file"] and options["by"] != "position":
        require_fit(mapping, ckpt, target)
    return mapping, found, target.name


def _replayed(read: Mapping, ckpt: Checkpoint, target: Signature, options: dict[str, Any]) -> Mapping:
    """The mapping of a file, forth or back."""
    if options["invert"]:
        read = mapping_file.invert(read, {key: entry.shape for key, entry in target.entries.items()})
    if options["at"] is not None:
        read = replace(read, at=options["at"])
    weights = ckpt.state_dict(read.at)
    return mapping_file.for_target(read, target, {key: tensor.shape for key, tensor in weights.tensors.items()})


def _show(mapping: Mapping, options: dict[str, Any]) -> None:
    """The report, the mapping file and the page, as far as they are asked for."""
    if options["save_mapping"]:
        mapping_file.save(mapping, options["save_mapping"], overwrite=options["overwrite"])
    if options["html"]:
        write_page(mapping_page(mapping), options["html"], overwrite=options["overwrite"])
    if not options["as_json"] and not options["quiet"]:
        width = max(shutil.get_terminal_size((120, 40)).columns, 60)
        click.echo(mapping_text(mapping, everything=options["verbose"], width=width))


def _refusal(mapping: Mapping, options: dict[str, Any]) -> Doubtful | None:
    """Why this may not be written, or None."""
    guesses, gaps = (list(options[name]) or None for name in ("accept_guesses", "partial"))
    try:
        _require_proof(mapping)
        require_accepted(mapping, guesses, gaps, _command())
    except Doubtful as doubt:
        return doubt
    return None


def _require_proof(mapping: Mapping) -> None:
    if mapping.proof is not None and not mapping.proof.get("equal"):
        raise Doubtful(
            f"not proved: {mapping.proof.get('text')}",
            where=mapping.target,
            evidence=[
                *(
                    ["--input 'float32[2,3,64,64]' gives the inputs, if there are some for both"]
                    if str(mapping.proof.get("text")).startswith("nothing could be compared")
                    else []
                ),
                "nothing was written; as matching has it, unproved, it is written by:",
            ],
            hint=_command(without=("--prove", "--reference")),
        )


#: Words of Python that are none of JSON.
_PYTHON = {"True": True, "False": False, "None": None, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _kwargs(texts: Sequence[str], option: str) -> dict[str, Any]:
    out = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise RuleError(f"{printable(text)!r} is not NAME=VALUE", where=option, hint=f"{option} classes=10")
        try:
            out[name] = read_json(value)
        except Malformed:
            out[name] = _PYTHON.get(value, value)
        if isinstance(out[name], list):
            out[name] = tuple(out[name])
    return out


def _write(made: Checkpoint, out: str, options: dict[str, Any]) -> Any:
    format_ = options["format_"]
    if format_ is None and Path(out).suffix.lower() != ".safetensors":
        format_ = "torch-zip"
    plan = formats.plan(made, out, format=format_, allow_loss=options["allow_loss"])
    with progress_bar(Path(out).name, plan.nbytes, wanted=not options["quiet"]) as progress:
        formats.write(plan, overwrite=options["overwrite"], progress=progress)
    return plan


def _command(without: Sequence[str] = (), swapped: dict[str, str] | None = None) -> str:
    """The command as it was typed, to be shown with what would accept the rest added.

    Args:
        without: options that are left out, with their values.
        swapped: words that take the place of others.
    """
    words: list[str] = []
    dropped = False
    for word in click.get_current_context().find_root().obj:
        if dropped and without:
            dropped = False
            continue
        name, equals, _ = word.partition("=")
        if name in without:
            dropped = not equals and name != "--prove"
            continue
        words.append((swapped or {}).get(word, word))
    if "--" in words:  # what is added is to be an option again
        at = words.index("--")
        words[at:] = [f"./{word}" if word.startswith("-") else word for word in words[at + 1 :]]
    return "ckptool " + " ".join(map(shell_quote, words))
