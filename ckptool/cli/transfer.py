"""`ckptool transfer`."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import formats, porting
from ..checkpoint import Checkpoint
from ..disk.addresses import as_path
from ..disk.files import is_file
from ..disk.folders import check_folder
from ..disk.paths import beside
from ..disk.targets import check_target, is_same_file
from ..drawing.sizes import size_text
from ..errors import Doubtful, RuleError, counted, printable, require
from ..formats.opening import require_whole
from ..formats.trainers.alone import alone
from ..model_code import user_code
from ..passes import recipes
from ..porting import family_files, mapping_file
from ..porting.applying import apply, open_source
from ..porting.explaining import explained
from ..porting.family import Family
from ..porting.mapping import Mapping
from ..porting.mapping_text import mapping_page, mapping_text
from ..porting.refusal import require_accepted, require_proof
from .documents import print_json
from .options import FileName, SideOutput, matching_options, output_option, parts_option
from .output import check_side_outputs, damage, progress_bar, say_error, status_line, terminal_width, write_page
from .typed import ALL, WithPatterns, command_as_typed, keyword_arguments

if TYPE_CHECKING:
    from ..model_code.building import ModelSource


@click.command(cls=WithPatterns)
@click.argument("source", type=FileName(), metavar="SRC")
@click.argument("model", type=FileName(), metavar="[MODEL.py[:NAME]]", required=False)
@output_option("-o", "--output", type=FileName(), metavar="OUT", help="The file to write (SRC.NAME.pth if left out).")
@output_option("-t", "--to", "format_", metavar="FORMAT", help="Format to write (see `ckptool formats`).")
@output_option("--overwrite", is_flag=True, help="Replace OUT and REPORT if they exist.")
@output_option("--partial-file", is_flag=True, help="Use one shard of several on its own.")
@output_option("-n", "--dry-run", is_flag=True, help="Match and report, but write nothing.")
@output_option("--at", metavar="PATH", help="Where the weights are in the file (`state_dict`, `models/0`).")
@click.option("--kwargs", multiple=True, metavar="NAME=VALUE", help="An argument for the class or factory of MODEL.py.")
@click.option(
    "--accept-guesses",
    is_flag=False,
    flag_value=ALL,
    multiple=True,
    metavar="[PATTERN]",
    help="Accept guesses: all, or those that match.",
)
@click.option(
    "--partial",
    is_flag=False,
    flag_value=ALL,
    multiple=True,
    metavar="[PATTERN]",
    help="Keep the model's initial values for keys without a source: all, or those that match.",
)
@parts_option
@matching_options
@output_option(
    "--cast", metavar="TYPE", help="Cast floating point tensors: bf16, fp16, fp32 … (see `ckptool convert`)."
)
@output_option("--map-location", "-m", multiple=True, metavar="RULE", help="Change devices (see `ckptool remap`).")
@output_option("--allow-loss", is_flag=True, help="Write even if the format cannot store everything.")
@output_option("--html", type=SideOutput("page"), metavar="REPORT", help="Also write the report as a web page.")
@output_option("--open", "show", is_flag=True, help="Open that page in the browser.")
@output_option("--explain", multiple=True, metavar="KEY", help="Explain how KEY was matched; write nothing.")
@output_option("--json", "as_json", is_flag=True, help="Print the mapping as JSON.")
@output_option("-q", "--quiet", is_flag=True, help="Print no report and no progress bar.")
@output_option("-v", "--verbose", is_flag=True, help="Print one line for every key, with its evidence.")
def transfer(source: str, model: str | None, **options: Any) -> int:
    """Port weights into different model code: find which tensor goes where, and write a state dict for the model.

    This imports and runs MODEL.py. If a match is a guess or a key has no source, nothing is written unless you accept
    it. With --mapping, no model code is needed: `ckptool mappings` lists the built-in mappings.

    \b
    ckptool transfer vgg19.pth model.py
    ckptool transfer vgg19.pth model.py:Net --kwargs classes=10 -o net.pth
    ckptool transfer resnet18.pth model.py --partial 'head.*'
    ckptool transfer llama.pth model.py --source-model llama.py --prove
    ckptool transfer v1-5.ckpt --mapping ldm-unet-to-diffusers -o unet.safetensors
    """
    _check_options(options, model)
    if model is not None:
        _check_order(source, model)
    options["dry_run"] |= bool(options["explain"])
    check_side_outputs()
    # what is wrong with it is said before any code is run; it is read once, since it may be a pipe
    read = family_files.named(options["mapping_file"]) if options["mapping_file"] else None
    if model is not None:
        require("running a model's code", "torch", extra="torch")
    out = options["output"]
    if out is not None:
        _check_target(out, source, options)
    ckpt = open_source(source)
    if options["partial_file"]:
        ckpt = alone(ckpt)
    else:
        require_whole(ckpt, lambda folder: command_as_typed(swapped={source: folder}))
    if model is not None and not options["quiet"]:
        named = [code for code in (model, options["source_model"]) if code]
        for code in named:
            user_code.require_code(user_code.split(code)[0])
        codes = [_named_code(code) for code in named]
        click.echo(f"running the code of {' and '.join(codes)}", err=True)
    found = None
    if model is None:
        assert read is not None
        told = {name: options[name] for name in ("at", "invert")}
        mapping: Mapping = porting.apply_mapping(
            ckpt, read, numbers=_numbers(options), leave=options["allow_loss"], **told
        )
        name = Path(options["mapping_file"]).stem
    else:
        proves = bool(options["prove"] or options["reference"])
        with (
            contextlib.redirect_stdout(sys.stderr),  # what the user's code prints is no part of the report
            status_line("proof" if proves else "matching", wanted=not options["quiet"]) as say,
        ):
            from ..model_code.building import find_model

            sets = ckpt.state_dicts()
            held = max(sets, key=lambda one: one.parameters).tensors if sets else {}
            weights = {key: tensor.shape for key, tensor in held.items()}
            arguments = keyword_arguments(options["kwargs"], "--kwargs")
            with _telling_of_a_long_import(model, wanted=not options["quiet"]):
                found = find_model(model, arguments, weights=weights)
            mapping = _mapping(ckpt, found, read, options, say)
        name = re.sub(r"[^A-Za-z0-9_]", "_", mapping.target)
    out = out or f"{Path(source).stem}.{name}.pth"
    _check_target(out, source, options)
    for option in ("html", "save_mapping", "emit"):
        if options[option] and is_same_file(options[option], out):
            raise RuleError("is the file of weights that is written", where=options[option], hint="choose another name")
    if options["explain"]:
        _explain(replace(mapping, source=source), options)
        return 0
    refusal = _refusal(mapping, source, options)
    if mapping.proof is not None and not mapping.proof.get("equal"):
        options["emit"] = None  # code that makes wrong weights looks like any other
    _show(replace(mapping, source=source), options, ckpt.state_dict(mapping.at).path if options["emit"] else "")
    plan = None
    if refusal is None and not options["dry_run"]:
        with contextlib.redirect_stdout(sys.stderr):
            made = apply(mapping, ckpt, None if found is None else partial(_initial_values, found))
        steps = [recipes.Step(name, value) for name in ("cast", "map-location") if (value := _step(name, options))]
        plan = _write(recipes.run(made, steps)[0], out, options)
    if options["as_json"]:
        written = {"output": None} if plan is None else {"output": str(out), "written": plan.as_json()}
        print_json("transfer", {**mapping.as_json(), **written})
    if refusal is not None:
        say_error(refusal)
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


def _step(name: str, options: dict[str, Any]) -> Any:
    value = options[name.replace("-", "_")]
    return list(value) if isinstance(value, tuple) else value


def _named_code(text: str) -> str:
    """Code as it was named, with its file where the name does not tell."""
    file = user_code.file_of(text)
    return printable(text, 100) + (f" ({printable(str(file))})" if file else "")


#: Seconds that importing a model's code may take before a line tells so.
_LONG = 2.0


@contextlib.contextmanager
def _telling_of_a_long_import(code: str, *, wanted: bool) -> Iterator[None]:
    """Say how long the import of a model's code took if it took long, and of which package it imported most."""
    began, before = time.monotonic(), {*sys.modules}
    yield
    took = time.monotonic() - began
    if wanted and took > _LONG:
        most = Counter(name.partition(".")[0] for name in sys.modules.keys() - before).most_common(1)
        of = f": it imports {counted(most[0][1], 'module')} of {printable(most[0][0], 60)}" if most else ""
        click.echo(f"importing {printable(code, 100)} took {took:.0f} s{of}", err=True)


def _numbers(options: dict[str, Any]) -> dict[str, int]:
    """What --number says."""
    found = {}
    for text in options["numbers"]:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[1-9][0-9]{0,8}", value):
            what = f"{printable(text)!r} is not NAME=N, N from 1 on"
            raise RuleError(what, where="--number", hint="--number heads=32")
        found[name] = int(value)
    return found


#: Options that say something of the model, and mean nothing without one.
_OF_MODELS = {"kwargs": "--kwargs", "source_model": "--source-model", "prove": "--prove", "reference": "--reference"}


def _check_options(options: dict[str, Any], model: str | None) -> None:
    if model is None and not options["mapping_file"]:
        raise click.UsageError("Missing argument 'MODEL.py[:NAME]' (or --mapping: `ckptool mappings` lists some).")
    if model is None and (needless := next((said for name, said in _OF_MODELS.items() if options[name]), None)):
        raise click.UsageError(f"{needless} needs MODEL.py.")
    if options["numbers"] and not options["mapping_file"]:
        raise click.UsageError("--number belongs to --mapping.")
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
            hint=command_as_typed(swapped=swapped),
        )


def _initial_values(found: ModelSource, keys: Sequence[str]) -> Any:
    from ..model_code.building import initial_values

    return initial_values(found, keys)


def _mapping(
    ckpt: Checkpoint,
    found: ModelSource,
    read: Mapping | Family | None,
    options: dict[str, Any],
    say: Callable[[str], None] | None,
) -> Mapping:
    """What `ckptool.transfer` finds, with these options, or makes of the mapping that was READ."""
    from ..model_code.building import find_model

    code = None
    if options["source_model"]:
        arguments = keyword_arguments(options["source_kwargs"], "--source-kwargs")
        with _telling_of_a_long_import(options["source_model"], wanted=not options["quiet"]):
            code = find_model(options["source_model"], arguments)
    if options["prove"] or options["reference"]:
        gc.enable()  # models that run leave much behind
    same = ("at", "hints", "input_channels", "invert", "by", "first", "start", "prove", "reference", "patience")
    return porting.transfer(
        ckpt,
        found,
        mapping=read,
        source_model=code,
        inputs=options["inputs"] or None,
        source_inputs=options["source_inputs"] or None,
        progress=say,
        numbers=_numbers(options),
        **{name: options[name] for name in same},
    )


def _show(mapping: Mapping, options: dict[str, Any], weights_at: str) -> None:
    """The report, the mapping file, the code and the page, as far as they are asked for."""
    if options["save_mapping"]:
        mapping_file.save(mapping, options["save_mapping"], overwrite=options["overwrite"])
    if options["emit"]:
        from ..porting.emitting import emit

        emit(mapping, options["emit"], command_as_typed(), at=weights_at, overwrite=options["overwrite"])
    if options["html"]:
        write_page(mapping_page(mapping), options["html"], overwrite=options["overwrite"], show=options["show"])
    if not options["as_json"] and not options["quiet"]:
        width = terminal_width()
        click.echo(mapping_text(mapping, everything=options["verbose"], width=width))


def _explain(mapping: Mapping, options: dict[str, Any]) -> None:
    """The way of each key that is asked about."""
    width = terminal_width()
    texts = {key: explained(mapping, key, width) for key in options["explain"]}
    if options["as_json"]:
        print_json("transfer", {"explained": {key: text.splitlines() for key, text in texts.items()}})
    else:
        click.echo("\n\n".join(texts.values()))


def _refusal(mapping: Mapping, source: str, options: dict[str, Any]) -> Doubtful | None:
    """Why this may not be written, or None."""
    guesses, gaps = (list(options[name]) for name in ("accept_guesses", "partial"))
    try:
        unproved = f"{command_as_typed(without=('--prove', '--reference'))} --no-prove"
        to_look = command_as_typed(without=("--prove", "--reference", "--save-mapping", "-n", "--dry-run"))
        require_proof(mapping, unproved, f"{to_look} -n --save-mapping {beside(source, 'mapping', '.yaml')}")
        require_accepted(mapping, guesses, gaps, command_as_typed(without=("--html",)))  # the page is there now
    except Doubtful as doubt:
        return doubt
    return None


def _write(made: Checkpoint, out: str, options: dict[str, Any]) -> Any:
    format_ = options["format_"]
    if format_ is None and Path(out).suffix.lower() != ".safetensors":
        format_ = "torch-zip"
    plan = formats.plan(made, out, format=format_, allow_loss=options["allow_loss"])
    with progress_bar(Path(out).name, plan.nbytes, wanted=not options["quiet"]) as progress:
        formats.write(plan, overwrite=options["overwrite"], progress=progress)
    return plan
