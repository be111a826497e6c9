"""The commands that rewrite a checkpoint. `convert` is the engine; the others are its everyday short forms.

Passes run in one order, whatever the order typed: that of `ckptool.passes.recipes`. Those of a recipe run before, as
listed. So patterns of `--rename` see keys without wrappers and prefixes, and those of `--select` and `--drop` see the
keys that will be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from .. import formats
from ..checkpoint import Checkpoint
from ..disk.addresses import is_url
from ..disk.documents import read_text
from ..disk.paths import beside, shell_path, shell_quote
from ..disk.targets import write_side_output
from ..errors import CannotCarry, PartialMatch, RuleError, printable
from ..formats.opening import require_whole
from ..formats.trainers.alone import alone
from ..keys import Rename, parse_rules
from ..passes import recipes
from ..passes.by_key import Missing
from ..passes.optimizers import name_parameters, optimizers_in, without_names
from ..passes.recipes import Step
from ..records import record
from . import launched, many
from .help import Command
from .options import FileName, output_options, parts_option, writing_options
from .output import check_side_outputs, fetching, hush, print_receipt, progress_bar
from .typed import command_as_typed

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _steps(wanted: Mapping[str, Any], rules: str | None = None, keep: Sequence[str] = ()) -> list[Step]:
    """The passes in the order in which they run.

    Args:
        wanted: pass -> its value; one that is False, None or empty is not asked for.
        rules: a file with more rules for `rename`.
        keep: keys that `cast` leaves as they are.
    """
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in wanted.items()}
    if keep and given.get("cast") is None:
        raise click.UsageError("--cast-keep goes with --cast.")
    if keep:
        given["cast"] = {"to": given["cast"], "keep": list(keep)}
    if rules:
        given["rename"] = [*given.get("rename", []), *map(str, _rules_from(rules))]
    if given.get("strip-first"):
        given["strip-prefix"] = None
    _explain_redirection(given.get("map-location") or [])
    return [Step(name, given[name]) for name in recipes.PASSES if given.get(name) not in (False, None, [])]


def _rules_from(path: str) -> list[Rename]:
    rules = parse_rules(read_text(path), path)
    if not rules:
        raise RuleError("holds no rule", where=path, hint="one rule OLD=NEW per line")
    return rules


def rewrite(
    wanted: Sequence[Step],
    command: str,
    options: dict[str, Any],
    *,
    max_shard_size: str | None = None,
    variant: str | None = None,
    recipe: str | None = None,
    opener: Callable[[str], Checkpoint] | None = None,
    model: str | None = None,
    with_optimizer: bool = False,
) -> int:
    """Open (as OPENER does, if it is given, which makes a checkpoint of its own; else WITH_OPTIMIZER or without), pass,
    plan, write, and say what was done; several files one by one.

    Under torchrun all ranks do so together. Each works out the whole plan; rank 0 alone looks at the target.

    Returns:
        The exit code.
    """
    if options.get("patch") and not options["in_place"]:
        raise click.UsageError("--patch goes with --in-place.")
    jobs = many.sort_out(options, as_folder=max_shard_size is not None or variant is not None)
    if jobs is None:
        _target(options)
    if launched.leads():
        check_side_outputs()
    steps = [*(recipes.read(recipe) if recipe else ()), *wanted]
    noted = recipes.text(steps) if options["save_recipe"] is not None else ""
    how = _How(steps, command, max_shard_size, variant, recipe, opener, model, with_optimizer)
    status = 0
    if jobs is not None:
        status = many.run_each(jobs, lambda mine: _one(how, mine), command, options)
    else:
        plan, renamed, notes = _one(how, options)
    if options["save_recipe"] is not None and launched.leads():
        write_side_output("recipe", options["save_recipe"], noted, overwrite=options["overwrite"])
    if jobs is None:
        print_receipt(
            plan,
            options["source"],
            renamed,
            notes,
            command=command,
            as_json=options["as_json"],
            as_lines=options["as_lines"],
            quiet=options["quiet"],
            dry_run=options["dry_run"],
        )
    return status


@record(frozen=True, slots=True)
class _How:
    """What is done to each file of a command (see `rewrite`)."""

    steps: Sequence[Step]
    command: str
    max_shard_size: str | None
    variant: str | None
    recipe: str | None
    opener: Callable[[str], Checkpoint] | None
    model: str | None
    with_optimizer: bool


def _one(how: _How, options: dict[str, Any]) -> many.Done:
    """Rewrite one file."""
    target, ranks = _target(options), launched.ranks()
    overwrite = options["overwrite"] or options["in_place"]
    patch = bool(options.get("patch"))
    hush(target)

    def check() -> None:
        if not options.get("new_folder"):
            try:
                formats.check(plan, overwrite=overwrite, backup=options["backup"], patch=patch)
            except RuleError as error:
                if patch:
                    error.hint = f"{command_as_typed(without=('--patch',))} writes a new file in its place"
                raise

    notes = formats.settled(target) if overwrite and not options["dry_run"] and launched.leads() else []
    plan, renamed = ranks.agree(lambda: _planned(how, options))[0] if ranks else _planned(how, options)
    if ranks:
        ranks.led(check)
    else:
        check()
    if not options["dry_run"]:
        far = is_url(options["source"]) or is_url(target)
        with progress_bar(Path(target).name, plan.nbytes, wanted=not options["quiet"], far=far) as progress:
            notes += formats.write(
                plan, overwrite=overwrite, backup=options["backup"], patch=patch, progress=progress, ranks=ranks
            )
        plan = replace(plan, how="patched where it stands") if patch else plan
    return plan, renamed, notes


def _planned(how: _How, options: dict[str, Any]) -> tuple[formats.Plan, list[tuple[str, str]]]:
    """What is to be written, and, where the receipt lists them, (old key, new key) of the keys that change."""
    target, at = _target(options), options["at"]
    ckpt, renamed = _passed(how, options)  # what was opened goes: there may be a million keys
    split = formats.split_of(how.max_shard_size, how.variant)
    chosen = formats.target_format(ckpt, target, options["format_"], split)
    if at is not None and not chosen.pickles and ckpt.at is None:
        from ..passes import envelopes

        ckpt = envelopes.extract(ckpt, at=at)  # it holds one set of tensors, and these were named
    if chosen.flat and any(step.name == "wrap" for step in how.steps):
        what = f"{chosen.name} holds one flat set of tensors, and no key around them"
        raise RuleError(what, where="--wrap", hint=f"write a .pth file: {beside(target, 'wrapped', '.pth')}")
    if ckpt.ties == "drop" and (chosen.pickles or not chosen.flat):
        what = f"{chosen.name} keeps ties as they are, and has no notes in place of keys"
        raise RuleError(what, where="--ties", hint="--ties drop is for safetensors files and shards")
    if chosen.pickles and any(step.name == "scalars-to-metadata" for step in how.steps):
        what = f"{chosen.name} has no text metadata that torch.load reads, and keeps numbers and texts as they are"
        hint = f"write a .safetensors file: {beside(target, 'with-metadata', '.safetensors')}"
        raise RuleError(what, where="--scalars-to-metadata", hint=hint)
    plan = formats.plan(
        ckpt,
        target,
        format=options["format_"],
        allow_loss=options["allow_loss"],
        keep_objects=options["keep_objects"],
        for_torch=options["for_torch"],
        max_shard_size=how.max_shard_size,
        variant=how.variant,
    )
    return plan, renamed


def _passed(how: _How, options: dict[str, Any]) -> tuple[Checkpoint, list[tuple[str, str]]]:
    """The opened file after all passes, and, for --verbose, (old key, new key) of the keys that changed."""
    source, at = options["source"], options["at"]
    with fetching(source, wanted=not options["quiet"]):
        opened = how.opener(source) if how.opener else formats.open(source, with_optimizer=how.with_optimizer)
    if options["partial_file"]:
        opened = alone(opened)
    elif how.opener is None:
        require_whole(opened, lambda folder: command_as_typed(swapped={str(source): folder}))
    if at is not None:
        opened.state_dict(at)  # it is there, whether or not a pass needs it
    if options["in_place"] and not options["format_"]:
        options["format_"] = opened.format
    unnamed = [one.path for one in optimizers_in(opened.root) if one.names is None] if how.model else []
    if how.model is not None and unnamed:
        from ..model_code.building import parameters_of

        try:
            opened = name_parameters(opened, parameters_of(how.model), at=at)
        except CannotCarry:
            if any(step.name in _LEAVE_OUT for step in how.steps):
                raise
            opened = opened.noting("optimizer: no parameter is left out, so its numbers stay as they are")
    try:
        missing: Missing = "ok" if options["if_present"] else "error"
        ckpt, renamed = recipes.run(opened, how.steps, at=at, missing=missing, tell=options["verbose"])
    except PartialMatch as error:
        if error.instead and how.recipe is None and how.command in ("convert", "strip-prefix"):
            error.hint = _typed_instead(error.instead)
        raise
    return without_names(ckpt, unnamed), renamed


#: Passes after which an optimizer has other parameters. Other names change no number.
_LEAVE_OUT = ("select", "drop", "slim", "extract", "clean", "unwrap")


def _typed_instead(instead: Sequence[str]) -> str:
    """The command as it was typed, with the options INSTEAD of the prefix."""
    typed = command_as_typed(without=("--strip-prefix", "--prefix"), swapped={"strip-prefix": "convert"})
    from ..passes.by_key import told_instead

    return told_instead(" ".join([typed, *(shell_quote(word, 200) for word in instead)]))


def _target(options: dict[str, Any]) -> str:
    named = [name for name in (options["target"], options["output"]) if name is not None]
    if options["in_place"]:
        if named:
            raise click.UsageError("--in-place replaces IN; OUT must not be given with it.")
        return str(options["source"])
    if len(named) != 1:
        missing = "Missing OUT, the file to write (or --in-place)."
        raise click.UsageError("OUT is given twice." if named else missing)
    return str(named[0])


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
                hint=f"--map-location {shell_quote(meant, 200)}   (or quote the rule)"
                + (f"; then: rm {shell_path(stray)}" if stray else ""),
            )
    return rules


def _stdout_file() -> str | None:
    """The name of the regular file that stdout goes to, where the system tells (Linux)."""
    try:
        path = Path("/proc/self/fd/1").readlink()
    except OSError:
        return None
    return path.name if path.is_file() else None


@click.command(cls=Command)
@click.option("--prefix", default="module.", show_default=True, help="The prefix to remove, in whole components.")
@click.option("--first", is_flag=True, help="Remove the first component of every key, whatever it is.")
@writing_options
def strip_prefix(prefix: str, first: bool, **options: Any) -> int:
    """Remove a prefix from every key.

    \b
    ckptool strip-prefix in.pth out.pth
    ckptool strip-prefix in.pth --in-place --prefix model.
    ckptool strip-prefix in.pth out.pth --first
    ckptool strip-prefix ckpts/ --out-dir plain/ -r
    """
    return rewrite(_steps({"strip-prefix": prefix, "strip-first": first}), "strip-prefix", options)


@click.command(cls=Command)
@click.option("--prefix", default="module.", show_default=True, help="The prefix to add to every key.")
@writing_options
def add_prefix(prefix: str, **options: Any) -> int:
    """Add a prefix to every key, like the keys of a model wrapped in DataParallel or DDP.

    \b
    ckptool add-prefix in.pth out.pth
    ckptool add-prefix in.pth out.pth --prefix backbone.
    """
    return rewrite(_steps({"add-prefix": prefix}), "add-prefix", options)


@click.command(cls=Command)
@click.option("--rename", "rules", multiple=True, metavar="OLD=NEW", help="A rule; for each key, the first match wins.")
@click.option("--rules", "rules_file", type=FileName(), metavar="FILE", help="A file with one rule OLD=NEW per line.")
@writing_options
def rename(rules: tuple[str, ...], rules_file: str | None, **options: Any) -> int:
    """Rename keys by rules OLD=NEW.

    OLD matches whole components from the start of a key. {} stands for one component or a part of one, {...} for
    several; an empty NEW removes OLD, an empty OLD puts NEW before every key; re: begins a regular expression.

    \b
    ckptool rename in.pth out.pth --rename backbone=encoder
    ckptool rename in.pth out.pth --rename layers.{}.attn=blocks.{}.attention
    ckptool rename in.pth out.pth --rename {...}.gamma={...}.weight
    ckptool rename in.pth out.pth --rename 're:^layer(\\d+)=stage\\1'
    ckptool rename in.pth out.pth --rules rules.txt
    """
    if not rules and not rules_file:
        raise click.UsageError("Missing --rename OLD=NEW or --rules FILE.")
    return rewrite(_steps({"rename": rules}, rules_file), "rename", options)


@click.command(cls=Command)
@click.option(
    "--map-location",
    "-m",
    "locations",
    multiple=True,
    required=True,
    metavar="RULE",
    help="cpu, cuda:1=cuda:0, 'cuda:1->cuda:0' or cuda:*=cpu; several rules apply at once.",
)
@writing_options
def remap(locations: tuple[str, ...], **options: Any) -> int:
    """Change the devices of all tensors in a file, for example cuda:1 to cpu. No GPU is needed.

    \b
    ckptool remap in.pth out.pth --map-location cpu
    ckptool remap in.pth out.pth --map-location cuda:1=cuda:0
    ckptool remap in.pth out.pth --map-location 'cuda:1->cuda:0'
    ckptool remap a.pth b.pth c.pth --in-place -m cpu
    """
    return rewrite(_steps({"map-location": locations}), "remap", options)


#: Options of `convert` that stand beside those of passes.
_BESIDE = {
    "rename": click.option("--rules", type=FileName(), metavar="FILE", help="A file with one rule OLD=NEW per line."),
    "cast": click.option("--cast-keep", multiple=True, metavar="PATTERN", help="Keys that --cast leaves as they are."),
}


def _pass_options(command: _Command) -> _Command:
    """An option for each pass of the table, in its order."""
    for name, one in reversed(recipes.PASSES.items()):
        if one.help:
            if name in _BESIDE:
                command = _BESIDE[name](command)
            words = [f"--{name}", *([one.letter] if one.letter else [])]
            kind: dict[str, Any] = {"is_flag": True} if one.kind == "flag" else {"metavar": one.metavar}
            kind |= {"type": click.Choice(recipes.TIES)} if one.kind == "ties" else {}
            command = click.option(*words, multiple=one.kind == "texts", help=one.help, **kind)(command)
    return command


@click.command(cls=Command)
@_pass_options
@click.option("--recipe", type=FileName(), metavar="FILE", help="Run the passes of this recipe first.")
@click.option(
    "--model",
    type=FileName(),
    metavar="MODEL.py",
    help="Code of the trained model (it is run), to match the optimizer's numbered states.",
)
@click.option("--with-optimizer", is_flag=True, help="From a folder of rank files, take the optimizer states too.")
@parts_option
@click.option("--max-shard-size", metavar="SIZE", help="Write a folder of shards of at most SIZE (5GB, 500MB).")
@click.option("--variant", metavar="WORD", help="A word in the names of shards: fp16.")
@writing_options
def convert(
    rules: str | None,
    cast_keep: tuple[str, ...],
    recipe: str | None,
    model: str | None,
    with_optimizer: bool,
    max_shard_size: str | None,
    variant: str | None,
    **options: Any,
) -> int:
    """Convert a checkpoint to another format, change its keys, types and devices, or both.

    The suffix of OUT (or -t) chooses the format. Changes are applied in the order in which the options are listed here.

    \b
    ckptool convert in.pth out.safetensors
    ckptool convert last.ckpt weights.safetensors --extract --unwrap
    ckptool convert in.pth old.pth -t legacy
    ckptool convert in.pth out.pth --drop fc --map-location cpu
    ckptool convert in.pth folder/ --max-shard-size 5GB
    ckptool convert folder/ out.safetensors
    ckptool convert in.pth out.safetensors --cast bf16 --cast-keep re:norm
    ckptool convert global_step500/ out.safetensors
    ckptool convert global_step500/ out.pth --with-optimizer
    ckptool convert in.pth out.pth --recipe recipe.yaml
    """
    asked = {name: options.pop(name.replace("-", "_")) for name, one in recipes.PASSES.items() if one.help}
    steps = _steps(asked, rules, cast_keep)
    return rewrite(
        steps,
        "convert",
        options,
        max_shard_size=max_shard_size,
        variant=variant,
        recipe=recipe,
        model=model,
        with_optimizer=with_optimizer,
    )


@click.command(cls=Command)
@writing_options
def extract_weights(**options: Any) -> int:
    """Extract only the weights from a checkpoint.

    From a whole pickled model (torch.save(model, …)), ckptool recovers the state dict that model.state_dict() would
    give. It does not need the class, and runs nothing.

    \b
    ckptool extract-weights yolo.pt -o weights.safetensors
    ckptool extract-weights last.ckpt weights.pth
    ckptool extract-weights gan.pt -o generator.safetensors --at generator
    """
    return rewrite(_steps({"extract": True}), "extract-weights", options)


@click.command(cls=Command)
@writing_options
def clean(**options: Any) -> int:
    """Write a copy that torch.load(weights_only=True) loads: tensors and plain data, and nothing else.

    Paths become text; Namespaces, OmegaConf and other objects with attributes become dicts; numpy arrays become
    tensors; whole pickled models become their state dicts; functions and calls are left out. Each change is listed, and
    nothing in the file is run.

    \b
    ckptool clean last.ckpt clean.ckpt
    ckptool clean yolo.pt clean.pt --dry-run
    """
    return rewrite(_steps({"clean": True}), "clean", options)


@click.command(cls=Command)
@click.option(
    "--weights", type=click.Choice(["ema", "raw"]), help="Which weights to keep: the moving average, or the raw ones."
)
@writing_options
def slim(weights: str | None, **options: Any) -> int:
    """Keep only the weights: if the file has a moving average (EMA), either that or the raw weights.

    ckptool knows where timm, DiT, torchvision, BasicSR, ultralytics, latent diffusion and mmengine (which swaps the
    two) keep the average.

    \b
    ckptool slim last.ckpt weights.safetensors
    ckptool slim epoch_12.pth weights.pth --weights ema
    """
    return rewrite(_steps({"slim": weights or True}), "slim", options)


@click.command(cls=Command)
@click.argument("sources", type=FileName(), metavar="IN…", nargs=-1, required=True)
@click.option("--ratios", metavar="R,R,…", help="Weight of each IN, such as 0.5,0.3,0.2. Default: equal.")
@output_options
def average(sources: tuple[str, ...], ratios: str | None, **options: Any) -> int:
    """Average the weights of several checkpoints of one model.

    Sums are computed in float64 and rounded once to the type of each tensor. Integers (such as num_batches_tracked)
    come from the last file. Only the weights are written.

    \b
    ckptool average epoch8.pth epoch9.pth epoch10.pth -o mean.pth
    ckptool average a.safetensors b.safetensors -o c.pth --ratios 0.7,0.3
    """
    try:
        numbers = None if ratios is None else [float(word) for word in ratios.split(",")]
    except ValueError:
        raise RuleError("is not a list of numbers", where="--ratios", hint="--ratios 0.5,0.3,0.2") from None
    opened = [formats.open(source) for source in sources]
    for one in opened if not options["partial_file"] else ():
        require_whole(one)
    from ..passes import values

    mean = values.average(opened, ratios=numbers, at=options["at"])
    options |= {"source": sources[-1], "target": None, "in_place": False, "at": None}
    return rewrite([], "average", options, opener=lambda _: mean)
