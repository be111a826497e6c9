"""Options that several commands share; each means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import click

from ..errors import RuleError, printable
from .help import Option

_Command = TypeVar("_Command", bound=Callable[..., Any])


class FileName(click.ParamType[str]):
    """A path as it was typed. Files are opened in one place, which says in one voice what is wrong with them."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse two words. `-`: a checkpoint is read and written at many places, which a pipe does not allow. An empty
        one: it would name the current folder.
        """
        if value == "":
            what = "the name of a file is empty; a variable of the shell may be unset"
            where = max(param.opts, key=len) if isinstance(param, click.Option) else ""
            raise RuleError(what, where=where, hint="name a file; . is the current folder")
        if value == "-":
            what = "stdin and stdout are not supported, since a checkpoint is read and written at many places"
            raise RuleError(what, where="-", hint="name a file; ./- is the file of that name")
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Let the shell complete file names."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class SideOutput(FileName):
    """A page, recipe, mapping or manifest that a command writes beside a checkpoint."""

    def __init__(self, kind: str, *, same_is_fine: bool = False) -> None:
        self.kind = kind
        #: A file that holds just what will be written may exist; whether it does is known when it is written.
        self.same_is_fine = same_is_fine


#: Under which heading help shows an option.
output_option = partial(click.option, cls=Option, heading="Output")
_matching = partial(click.option, cls=Option, heading="Matching")
_proof = partial(click.option, cls=Option, heading="Proof")

_OUTPUT: tuple[Callable[[Any], Any], ...] = (
    output_option("-o", "--output", type=FileName(), metavar="OUT", help="The file to write: another way to name OUT."),
    output_option("-t", "--to", "format_", metavar="FORMAT", help="Format to write (see `ckptool formats`)."),
    output_option(
        "--for", "for_torch", metavar="TORCH", help="Refuse output that this version cannot load (torch==1.6)."
    ),
    output_option("--backup", metavar="SUFFIX", help="Keep the old OUT, with SUFFIX added to its name."),
    output_option("--overwrite", is_flag=True, help="Replace OUT if it exists."),
    output_option("-n", "--dry-run", is_flag=True, help="Show what would be written, but write nothing."),
    output_option("--at", metavar="PATH", help="Where the weights are in the file (`state_dict`, `models/0`)."),
    output_option("--if-present", is_flag=True, help="Write the file even if a rule matches nothing."),
    output_option("--allow-loss", is_flag=True, help="Write even if content is lost or damaged."),
    output_option("--partial-file", is_flag=True, help="Use one shard, or the file of one rank, on its own."),
    output_option("--keep-objects", is_flag=True, help="Keep objects that may run code when the file is loaded."),
    output_option(
        "--save-recipe",
        type=SideOutput("recipe"),
        metavar="FILE",
        help="Save what this command does to a file, for --recipe.",
    ),
    output_option("--json", "as_json", is_flag=True, help="Print the receipt as JSON."),
    output_option("--json-lines", "as_lines", is_flag=True, help="Print one line of JSON per file, when it is done."),
    output_option("-q", "--quiet", is_flag=True, help="Print no receipt and no progress bar."),
    output_option("-v", "--verbose", is_flag=True, help="Also list every key that changes."),
)

_JSON = (
    output_option("--json", "as_json", is_flag=True, help="Print one document of JSON."),
    output_option("--json-lines", "as_lines", is_flag=True, help="Print one line of JSON per file, when it is done."),
)

#: How `transfer` finds what goes where, and proves it.
_MATCHING: tuple[Callable[[Any], Any], ...] = (
    _matching(
        "--hint", "hints", multiple=True, metavar="OLD=NEW", help="A name in the source, and its name in the model."
    ),
    _matching(
        "--by",
        type=click.Choice(["evidence", "position"]),
        default="evidence",
        help="position: match tensors by their order only.",
    ),
    _matching("--first", type=click.IntRange(1), metavar="N", help="With --by position: fill only N tensors."),
    _matching(
        "--start",
        type=click.IntRange(0),
        default=0,
        metavar="K",
        help="With --by position: skip K tensors of the source.",
    ),
    _matching(
        "--mapping",
        "mapping_file",
        type=FileName(),
        metavar="NAME|FILE",
        help="Use a mapping instead of matching: a file, or one of `ckptool mappings`.",
    ),
    _matching(
        "--input-channels",
        type=click.Choice(["repeat", "sum", "mean", "zeros", "first"]),
        help="How to fill a first layer with a different number of input channels.",
    ),
    _matching("--invert", is_flag=True, help="Apply --mapping in the opposite direction."),
    _matching(
        "--number",
        "numbers",
        multiple=True,
        metavar="NAME=N",
        help="A number that --mapping needs and the weights do not show (heads=32).",
    ),
    _matching(
        "--save-mapping",
        type=SideOutput("mapping", same_is_fine=True),
        metavar="FILE",
        help="Save the mapping as YAML, to read, edit and reuse.",
    ),
    click.option(
        "--emit",
        type=SideOutput("converter", same_is_fine=True),
        metavar="FILE.py",
        help="Write the port as Python code that needs only torch: convert(state_dict).",
    ),
    _proof(
        "--source-model",
        metavar="SRC.py[:NAME]",
        help="The code of the source model, for its order and for --prove.",
    ),
    _proof("--source-kwargs", multiple=True, metavar="NAME=VALUE", help="An argument for --source-model."),
    _proof(
        "--prove/--no-prove",
        default=None,
        help="Run both models on the same inputs, compare, and resolve guesses. Without either option, this is tried "
        "if --source-model is given and both models have at most 50 million values.",
    ),
    _proof(
        "--reference", type=FileName(), metavar="FILE", help="Saved inputs and outputs of the source, to compare with."
    ),
    _proof(
        "--patience",
        type=click.FloatRange(0),
        default=300.0,
        metavar="SECONDS",
        help="Time limit of a proof (300).",
    ),
    _proof(
        "--input",
        "inputs",
        multiple=True,
        metavar="SPEC",
        help="Example input: 'float32[2,3,64,64]', 'int64[2,12]<100'.",
    ),
    _proof(
        "--source-input",
        "source_inputs",
        multiple=True,
        metavar="SPEC",
        help="Example input of the source model, if it differs from --input.",
    ),
)

_WRITING: tuple[Callable[[Any], Any], ...] = (
    click.argument("paths", type=FileName(), metavar="IN [OUT]", nargs=-1, required=True),
    output_option("--in-place", is_flag=True, help="Replace IN when the new file is complete; takes several files."),
    output_option(
        "--patch",
        is_flag=True,
        help="With --in-place: overwrite only the bytes that change; other programs may see a half-done file.",
    ),
    output_option("--out-dir", type=FileName(), metavar="DIR", help="Write each IN into DIR under its own name."),
    output_option(
        "-r", "--recursive", is_flag=True, help="With --in-place or --out-dir: take all checkpoints in folders."
    ),
    *_OUTPUT,
)


@contextmanager
def _parts_in(path: str) -> Iterator[None]:
    """Join the parts of ranks as the file at PATH says, and say so if no folder of ranks was opened."""
    from ..disk.documents import read_yaml
    from ..formats.opening import with_parts

    with with_parts(read_yaml(path), path) as said:
        yield
    if said.passed and not said.taken:
        what = "no input is a folder in which each rank of a run wrote a file"
        click.echo(f"note: --parts {printable(path)} had no effect: {what}", err=True)


def _take_parts(ctx: click.Context, _: click.Parameter, path: str | None) -> str | None:
    """Let every folder that the command opens be put together as a file says."""
    if path is not None:
        ctx.with_resource(_parts_in(path))
    return path


def parts_option(command: _Command) -> _Command:
    """--parts, of every command that opens folders of ranks."""
    return click.option(
        "--parts",
        type=FileName(),
        metavar="FILE",
        callback=_take_parts,
        expose_value=False,
        help="How to join the parts of ranks: a rule a line, for example `*.q_proj.weight: 0`.",
    )(command)


def json_options(command: _Command) -> _Command:
    """--json and --json-lines, of a command that reports on several files."""
    for decorate in reversed(_JSON):
        command = decorate(command)
    return command


def writing_options(command: _Command) -> _Command:
    """IN, OUT and the options of every command that writes a checkpoint."""
    for decorate in reversed(_WRITING):
        command = decorate(command)
    return command


def output_options(command: _Command) -> _Command:
    """The same for a command with inputs of its own: neither IN and OUT nor --in-place."""
    for decorate in reversed(_OUTPUT):
        command = decorate(command)
    return command


def matching_options(command: _Command) -> _Command:
    """How `transfer` finds what goes where, and proves it."""
    for decorate in reversed(_MATCHING):
        command = decorate(command)
    return command
