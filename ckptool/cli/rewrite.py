"""The commands that rewrite a checkpoint. `convert` is the engine; the others are its everyday short forms.

Passes run in one order, whatever the order typed: extract, clean, unwrap, strip, rename, add, select, drop, to-dense,
dequantize, map-location.
So patterns of `--rename` see keys without wrappers and prefixes, and those of `--select` and `--drop` see the keys that
will be written.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from .. import formats, passes
from ..checkpoint import Checkpoint
from ..errors import RuleError, Unreadable, printable
from ..files import shell_quote
from ..keys import Rename, parse_rules
from ..writing import check_backup
from .options import writing_options
from .output import print_receipt, progress_bar


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes that a command asks for."""

    extract: bool = False
    unwrap: bool = False
    strip_prefix: str | None = None
    strip_first: bool = False
    rename: Sequence[str] = ()
    rules: str | None = None
    add_prefix: str | None = None
    select: Sequence[str] = ()
    drop: Sequence[str] = ()
    map_location: Sequence[str] = ()
    to_dense: bool = False
    dequantize: bool = False
    clean: bool = False

    def run(self, ckpt: Checkpoint, at: str | None, missing: passes.Missing) -> Checkpoint:
        """The passes in their order, without `map_location`, which touches no key."""
        if self.extract:
            ckpt, at = passes.extract(ckpt, at=at), None
        if self.clean:
            ckpt = passes.clean(ckpt)
        if self.unwrap:
            ckpt = passes.unwrap(ckpt, at=at, missing=missing)
        if self.strip_prefix is not None or self.strip_first:
            prefix = "module." if self.strip_prefix is None else self.strip_prefix
            ckpt = passes.strip_prefix(ckpt, prefix, first=self.strip_first, at=at, missing=missing)
        rules: list[str | Rename] = [*self.rename, *(_rules_from(self.rules) if self.rules else ())]
        if rules:
            ckpt = passes.rename(ckpt, rules, at=at, missing=missing)
        if self.add_prefix is not None:
            ckpt = passes.add_prefix(ckpt, self.add_prefix, at=at)
        if self.select:
            ckpt = passes.select(ckpt, self.select, at=at, missing=missing)
        if self.drop:
            ckpt = passes.drop(ckpt, self.drop, at=at, missing=missing)
        if self.to_dense:
            ckpt = passes.to_dense(ckpt, missing=missing)
        if self.dequantize:
            ckpt = passes.dequantize(ckpt, missing=missing)
        return ckpt


def _rules_from(path: str) -> list[Rename]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(1 << 24)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        raise Unreadable(str(reason).lower(), where=path) from None
    rules = parse_rules(text, path)
    if not rules:
        raise RuleError("holds no rule", where=path, hint="one rule OLD=NEW a line")
    return rules


def rewrite(
    wanted: Passes,
    command: str,
    options: dict[str, Any],
    *,
    max_shard_size: str | None = None,
    variant: str | None = None,
    opener: Callable[[str], Checkpoint] | None = None,
) -> None:
    """Open, pass, plan, write, and say what was done."""
    gc.disable()  # what is built here is needed to the end: a fifth of the time of a file with many tensors
    source, target = options["source"], _target(options)
    overwrite = options["overwrite"] or options["in_place"]
    missing: passes.Missing = "ok" if options["if_present"] else "error"
    opened = (opener or formats.open)(source)
    if options["at"] is not None:
        opened.state_dict(options["at"])  # it is there, whether or not a pass needs it
    if options["in_place"] and not options["format_"]:
        options["format_"] = opened.format
    ckpt = wanted.run(opened, options["at"], missing)
    renamed = _renamed(opened, ckpt) if options["verbose"] else []
    if wanted.map_location:
        ckpt = passes.map_location(ckpt, _explain_redirection(wanted.map_location), missing=missing)
    chosen = formats.target_format(ckpt, target, options["format_"], formats.split_of(max_shard_size, variant))
    if options["at"] is not None and not chosen.pickles and not wanted.extract:
        ckpt = passes.extract(ckpt, at=options["at"])  # it holds one set of tensors, and these were named
    plan = formats.plan(
        ckpt,
        target,
        format=options["format_"],
        allow_loss=options["allow_loss"],
        keep_objects=options["keep_objects"],
        for_torch=options["for_torch"],
        max_shard_size=max_shard_size,
        variant=variant,
    )
    if formats.check(plan, overwrite=overwrite):
        check_backup(target, options["backup"])
    notes: list[str] = []
    if not options["dry_run"]:
        with progress_bar(Path(target).name, plan.nbytes, wanted=not options["quiet"]) as progress:
            notes = formats.write(plan, overwrite=overwrite, backup=options["backup"], progress=progress)
    print_receipt(
        plan,
        source,
        renamed,
        notes,
        command=command,
        as_json=options["as_json"],
        quiet=options["quiet"],
        dry_run=options["dry_run"],
    )


def _target(options: dict[str, Any]) -> str:
    named = [name for name in (options["target"], options["output"]) if name is not None]
    if options["in_place"]:
        if named:
            raise click.UsageError("--in-place replaces IN; OUT must not be given with it.")
        return str(options["source"])
    if len(named) != 1:
        missing = "Missing OUT, the file to write (or --in-place)."
        raise click.UsageError("OUT is given twice." if named else missing)
    if named[0] == "-":
        raise click.UsageError("Checkpoints are not written to stdout; name a file.")
    return str(named[0])


def _renamed(before: Checkpoint, after: Checkpoint) -> list[tuple[str, str]]:
    """(old key, new key) of the tensors whose key changed."""
    old = {id(t): key for weights in before.state_dicts() for key, t in weights.tensors.items()}
    new = {id(t): key for weights in after.state_dicts() for key, t in weights.tensors.items()}
    return [(old[t], key) for t, key in new.items() if t in old and old[t] != key]


def _explain_redirection(rules: Sequence[str]) -> Sequence[str]:
    """Recognise what a shell makes of an unquoted `cuda:1->cuda:0`: a rule `cuda:1-`, and stdout in a file `cuda:0`."""
    for rule in rules:
        if rule.endswith("-") and "=" not in rule:
            stray = _stdout_file()
            meant = f"{rule[:-1]}={stray or 'cuda:0'}" if stray != rule[:-1] else "cuda:1=cuda:0"
            raise RuleError(
                f"the shell took the '>' of an unquoted rule for itself and passed on {printable(rule)!r}",
                where="--map-location",
                evidence=[f"it made a file named {printable(stray)!r} of what ckptool prints"] if stray else [],
                hint=f"--map-location {shell_quote(printable(meant))}   (or quote the rule)"
                + (f"; then: rm {shell_quote(printable(stray))}" if stray else ""),
            )
    return rules


def _stdout_file() -> str | None:
    """The name of the regular file that stdout goes to, where the system tells (Linux)."""
    try:
        path = Path("/proc/self/fd/1").readlink()
    except OSError:
        return None
    return path.name if path.is_file() else None


@click.command()
@click.option("--prefix", default="module.", show_default=True, help="Whole components at the start of the keys.")
@click.option("--first", is_flag=True, help="Drop the first component of each key, whatever it is.")
@writing_options
def strip_prefix(prefix: str, first: bool, **options: Any) -> None:
    """Remove a prefix from every key.

    \b
    ckptool strip-prefix in.pth out.pth
    ckptool strip-prefix in.pth --in-place --prefix model.
    ckptool strip-prefix in.pth out.pth --first
    """
    rewrite(Passes(strip_prefix=prefix, strip_first=first), "strip-prefix", options)


@click.command()
@click.option("--prefix", default="module.", show_default=True, help="Put before each key.")
@writing_options
def add_prefix(prefix: str, **options: Any) -> None:
    """Put a prefix before every key, as a model wrapped in DataParallel or DDP has it.

    \b
    ckptool add-prefix in.pth out.pth
    ckptool add-prefix in.pth out.pth --prefix backbone.
    """
    rewrite(Passes(add_prefix=prefix), "add-prefix", options)


@click.command()
@click.option("--rename", "rules", multiple=True, metavar="OLD=NEW", help="A rule; the first that fits a key counts.")
@click.option("--rules", "rules_file", metavar="FILE", help="A file with one rule OLD=NEW a line.")
@writing_options
def rename(rules: tuple[str, ...], rules_file: str | None, **options: Any) -> None:
    """Rename keys by rules OLD=NEW.

    OLD matches whole components from the start of a key. {} stands for one component or a part of one, {...} for
    several; an empty NEW removes OLD, an empty OLD puts NEW before every key; re: begins a regular expression.

    \b
    ckptool rename in.pth out.pth --rename backbone=encoder
    ckptool rename in.pth out.pth --rename layers.{}.attn=blocks.{}.attention
    ckptool rename in.pth out.pth --rename {...}.gamma={...}.weight --rename {...}.beta={...}.bias
    ckptool rename in.pth out.pth --rename 're:^layer(\\d+)=stage\\1' --rules more.txt
    """
    if not rules and not rules_file:
        raise click.UsageError("Missing --rename OLD=NEW or --rules FILE.")
    rewrite(Passes(rename=rules, rules=rules_file), "rename", options)


@click.command()
@click.option(
    "--map-location",
    "-m",
    "locations",
    multiple=True,
    required=True,
    metavar="RULE",
    help="cpu, cuda:1=cuda:0, 'cuda:1->cuda:0', cuda:*=cpu; several are applied at once.",
)
@writing_options
def remap(locations: tuple[str, ...], **options: Any) -> None:
    """Change the devices that tensors are tagged with, wherever they are in the file. No GPU is needed.

    \b
    ckptool remap in.pth out.pth --map-location cpu
    ckptool remap in.pth out.pth --map-location cuda:1=cuda:0
    ckptool remap in.pth out.pth --map-location 'cuda:1->cuda:0'
    """
    rewrite(Passes(map_location=locations), "remap", options)


@click.command()
@click.option("--extract", is_flag=True, help="Keep only the weights; leave the rest of the file behind.")
@click.option("--unwrap", is_flag=True, help="Remove wrappers from keys: DataParallel, torch.compile, FSDP …")
@click.option("--strip-prefix", metavar="PREFIX", help="Remove PREFIX from every key.")
@click.option("--strip-first", is_flag=True, help="Drop the first component of each key.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Rename keys (see `ckptool rename`).")
@click.option("--rules", metavar="FILE", help="A file with one rule OLD=NEW a line.")
@click.option("--add-prefix", metavar="PREFIX", help="Put PREFIX before every key.")
@click.option("--select", multiple=True, metavar="PATTERN", help="Keep only the keys that match.")
@click.option("--drop", multiple=True, metavar="PATTERN", help="Leave out the keys that match.")
@click.option("--to-dense", is_flag=True, help="Make dense tensors of sparse ones.")
@click.option("--dequantize", is_flag=True, help="Make float32 tensors of quantized ones.")
@click.option("--map-location", "-m", multiple=True, metavar="RULE", help="Change devices (see `ckptool remap`).")
@click.option("--max-shard-size", metavar="SIZE", help="Write a folder of shards of at most SIZE (5GB, 500MB).")
@click.option("--variant", metavar="WORD", help="A word in the names of shards: fp16.")
@writing_options
def convert(
    extract: bool,
    unwrap: bool,
    strip_prefix: str | None,
    strip_first: bool,
    rename: tuple[str, ...],
    rules: str | None,
    add_prefix: str | None,
    select: tuple[str, ...],
    drop: tuple[str, ...],
    to_dense: bool,
    dequantize: bool,
    map_location: tuple[str, ...],
    max_shard_size: str | None,
    variant: str | None,
    **options: Any,
) -> None:
    """Rewrite a checkpoint in another format, or with other keys and devices, or both.

    The suffix of OUT or -t chooses the format. Passes run in the order in which they are listed here.

    \b
    ckptool convert in.pth out.safetensors
    ckptool convert last.ckpt weights.safetensors --extract --unwrap
    ckptool convert in.pth old.pth -t legacy
    ckptool convert in.pth out.pth --drop fc --map-location cpu
    ckptool convert in.pth folder/ --max-shard-size 5GB
    ckptool convert folder/ out.safetensors
    """
    wanted = Passes(
        extract,
        unwrap,
        strip_prefix,
        strip_first,
        rename,
        rules,
        add_prefix,
        select,
        drop,
        map_location,
        to_dense,
        dequantize,
    )
    rewrite(wanted, "convert", options, max_shard_size=max_shard_size, variant=variant)


@click.command()
@writing_options
def extract_weights(**options: Any) -> None:
    """Take the weights out of a checkpoint, and leave everything else behind.

    Out of a whole pickled model (torch.save(model, …)) the state dict is recovered as model.state_dict() would give it:
    without the class, and without running anything.

    \b
    ckptool extract-weights yolo.pt -o weights.safetensors
    ckptool extract-weights last.ckpt weights.pth
    ckptool extract-weights gan.pt -o generator.safetensors --at generator
    """
    rewrite(Passes(extract=True), "extract-weights", options)


@click.command()
@writing_options
def clean(**options: Any) -> None:
    """Write a copy that torch.load(weights_only=True) loads: tensors and plain data, and nothing else.

    Paths become text; Namespaces, OmegaConf and other objects with attributes become dicts; numpy arrays become
    tensors; whole pickled models become their state dicts; functions and what would have to be run are left out. Each
    change is listed, and nothing in the file is run.

    \b
    ckptool clean last.ckpt clean.ckpt
    ckptool clean yolo.pt clean.pt --dry-run
    """
    rewrite(Passes(clean=True), "clean", options)
