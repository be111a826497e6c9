"""What the shell offers when Tab is pressed: values of options, out of the files that stand in the command line.

Nothing is fetched, no code is run, and what cannot be read offers nothing.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from ..checkpoint import Checkpoint

#: Keys that are offered at most.
_MOST = 200

#: bash breaks words at `:` and `=`, so the line itself is read, and of a value only what stands behind them is given.
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' type value response
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" COMP_LINE="$COMP_LINE" \\
COMP_POINT="$COMP_POINT" COMP_BREAKS="$COMP_WORDBREAKS" %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """Completion for bash, of words with colons and equals signs in them, too."""

    source_template = _BASH
    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one that it stands in."""
        line = os.environ.get("COMP_LINE")
        if not line:  # a script of an older version
            return super().get_completion_args()
        line = line[: int(os.environ.get("COMP_POINT", len(line)))]
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() or len(words) < 2 else words.pop()
        value = incomplete.partition("=")[2] if incomplete.startswith("--") else incomplete
        breaks = [value.rfind(mark) for mark in ":=" if mark in os.environ.get("COMP_BREAKS", ":=")]
        quoted = line[: len(line) - len(incomplete)][-1:] in ("'", '"')
        self._before = "" if quoted else value[: max(breaks, default=-1) + 1]
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """What stands behind the last break of the word."""
        return f"{item.type},{str(item.value).removeprefix(self._before)}"


def register() -> None:
    """Let click answer bash with this class."""
    add_completion_class(Bash, "bash")


_Offer = Callable[[click.Context, str], Iterable[str]]


def formats(ctx: click.Context, word: str) -> Iterable[str]:
    """The formats that can be written."""
    from ..formats import FOLDERS, FORMATS

    return [*(one.name for one in FORMATS if one.draft), *(one.name for one in FOLDERS if one.draft)]


def dtypes(ctx: click.Context, word: str) -> Iterable[str]:
    """Types that tensors are cast to, by their short names first."""
    from ..passes.casting import COMPLEX, FLOATING

    short = [name for one in FLOATING for name in one.short]
    return [*short, *(one.name for one in (*FLOATING, *COMPLEX))]


def devices(ctx: click.Context, word: str) -> Iterable[str]:
    """cpu, and a rule for each device that the file names."""
    old, equals, _ = word.partition("=")
    if equals:
        return [f"{old}={new}" for new in ("cpu", "cuda:0", "cuda:1", "mps") if new != old]
    found = Counter(storage.location for ckpt in _files(ctx) for storage in ckpt.storages())
    places = [place for place, _ in found.most_common() if place != "cpu"]
    return ["cpu", *(f"{place}=cpu" for place in places), "cuda:0", "cuda:1"]


def state_dicts(ctx: click.Context, word: str) -> Iterable[str]:
    """Where the weights are in the file."""
    return (one.path for ckpt in _files(ctx) for one in ckpt.state_dicts() if one.path)


def keys(ctx: click.Context, word: str) -> Iterable[str]:
    """Beginnings of keys, in whole components: those at which the keys branch next."""
    from ..keys import unwrap

    held = (list(one) for ckpt in _files(ctx) for one in ckpt.state_dicts())
    named = (unwrap(names).values() if ctx.params.get("unwrap") else names for names in held)
    found = [key for names in named for key in names if key.startswith(word)]
    return list(_branches(found, word.count(".") + 1))


def prefixes(ctx: click.Context, word: str) -> Iterable[str]:
    """Beginnings of keys, each with its dot."""
    found = [key for ckpt in _files(ctx) for one in ckpt.state_dicts() for key in one if key.startswith(word)]
    heads = dict.fromkeys(".".join(key.split(".")[: word.count(".") + 1]) + "." for key in found)
    return [head for head in heads if any(key.startswith(head) for key in found)]


def mappings(ctx: click.Context, word: str) -> Iterable[str]:
    """The built-in mappings."""
    from ..porting import family_files

    return [one.name for one in family_files.shipped()]


def models(ctx: click.Context, word: str) -> Iterable[str]:
    """The classes and functions in a file of Python, which is read and not run."""
    path = word.partition(":")[0]
    if not path.endswith(".py") or not Path(path).is_file():
        return []
    body = ast.parse(Path(path).read_bytes()).body
    named = [one.name for one in body if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name[0] != "_"]
    return [path, *(f"{path}:{name}" for name in named)]


def versions(ctx: click.Context, word: str) -> Iterable[str]:
    """Versions of torch that changed what it loads."""
    return ["torch==1.0", "torch==1.5", "torch==1.6", "torch==1.13", "torch==2.0", "torch==2.1", "torch==2.6"]


def places(ctx: click.Context, word: str) -> Iterable[str]:
    """Keys under which scripts expect weights."""
    return ["state_dict", "model", "model_state_dict", "params", "net"]


def optimizers(ctx: click.Context, word: str) -> Iterable[str]:
    """The optimizers of `train`."""
    from ..train.config import OPTIMIZERS

    return OPTIMIZERS


def tasks(ctx: click.Context, word: str) -> Iterable[str]:
    """What `train` learns."""
    from ..train.config import TASKS

    return TASKS


def strategies(ctx: click.Context, word: str) -> Iterable[str]:
    """How `train` spreads a task over devices."""
    from ..train.ways import WAYS

    return WAYS


def saves(ctx: click.Context, word: str) -> Iterable[str]:
    """What `train` saves."""
    from ..train.config import CONTAINERS, SAVES

    before = word.rpartition(",")[0]
    kinds = [f"{before},{kind}" if before else kind for kind in SAVES]
    return [*kinds, *(f"{kind}:{container}" for kind in kinds for container in CONTAINERS if word.startswith(kind))]


def offer(values: _Offer, ctx: click.Context, word: str) -> list[CompletionItem[Any]]:
    """Those of the values that begin as the word that was typed; none if they cannot be told."""
    with suppress(Exception):
        found = dict.fromkeys(value for value in values(ctx, word) if value.startswith(word))
        return [CompletionItem(value) for value in found if not any(map(str.isspace, value))]
    return []


def _files(ctx: click.Context) -> Iterator[Checkpoint]:
    """The checkpoints that were typed, the first few."""
    from .. import formats

    typed: list[str] = []
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if isinstance(param, click.Argument) and param.type.name == "file" and value:
            typed += value if isinstance(value, tuple) else [value]
    typed += ctx.args  # where they stand as long as an option waits for its value
    for path in typed[:2]:
        if Path(path).is_file() or Path(path).is_dir():  # never a URL, nor a pipe, which would wait
            with suppress(Exception):
                yield formats.open(path)


def _branches(found: list[str], depth: int) -> Iterator[str]:
    """The first DEPTH components of keys; where all keys have these in common, as many as they have."""
    while True:
        heads = dict.fromkeys(".".join(key.split(".")[:depth]) for key in found)
        if len(heads) != 1 or next(iter(heads)) in found:
            yield from list(heads)[:_MOST]
            return
        depth += 1
