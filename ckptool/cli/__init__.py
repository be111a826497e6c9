"""The command line. `main` is the one place where exceptions become text and exit codes.

Exit codes: 0 yes, or done as asked; 1 no (differs, damaged, does not fit); 2 could not do it, also for a file that
cannot be read; 130 interrupted; 141 the reader of a pipe went away; 143 terminated.

Commands live in the modules of this package and are imported when they are called, so that `ckptool --help` costs what
Python and click cost.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import click

from .. import __version__
from ..disk.paths import is_there, reason, shell_path
from ..drawing import styles
from ..errors import CheckpointError, Malformed, OutputExists, counted, printable
from ..starting import ENDING
from .help import COLOR, Context

#: Files of one folder of which each has a line that says what was read from it.
_MANY = 3

#: What people come for -> command -> module of this package, and what the command does in a line.
_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Look": {
        "inspect": ("inspect", "Show what is in a checkpoint, without running it."),
        "diff": ("diff", "Compare two checkpoints: keys, shapes, types, values."),
        "verify": ("verify", "Check every byte against checksums, rules and references."),
        "scan": ("scan", "Show what unpickling a file would import and call."),
    },
    "Fix": {
        "doctor": ("doctor", "Find what is wrong with a file, and show the command that fixes it."),
        "repair": ("repair", "Rebuild a damaged file, or save the tensors that are intact."),
        "clean": ("rewrite", "Make a file that torch.load(weights_only=True) accepts."),
    },
    "Change": {
        "convert": ("rewrite", "Convert between formats; edit keys, types and devices on the way."),
        "strip-prefix": ("rewrite", "Remove a prefix such as `module.` from every key."),
        "add-prefix": ("rewrite", "Add a prefix such as `module.` to every key."),
        "rename": ("rewrite", "Rename keys with rules such as OLD=NEW."),
        "remap": ("rewrite", "Change the devices of tensors, for example cuda:1 to cpu."),
        "extract-weights": ("rewrite", "Extract only the weights, even from a whole pickled model."),
        "slim": ("rewrite", "Keep only the weights, raw or averaged (EMA)."),
        "average": ("rewrite", "Average the weights of several checkpoints."),
        "merge-lora": ("merge", "Merge LoRA and similar adapters into their base model."),
    },
    "Port": {
        "transfer": ("transfer", "Port weights into a different implementation of the model."),
        "mappings": ("mappings", "List the built-in mappings between libraries."),
    },
    "Make": {
        "train": ("train", "Train a small model (DataParallel, DDP, FSDP) and save it."),
    },
    "About ckptool": {
        "formats": ("formats", "List the formats that ckptool reads and writes."),
        "completion": ("completion", "Print the completion script for your shell."),
    },
}
_COMMANDS = {name: told for commands in _GROUPS.values() for name, told in commands.items()}

#: Names of other tools -> the command that does the same here.
_SYNONYMS = {
    "ls": "inspect",
    "info": "inspect",
    "show": "inspect",
    "list": "inspect",
    "tree": "inspect",
    "cat": "inspect",
    "stat": "inspect",
    "stats": "inspect",
    "compare": "diff",
    "cmp": "diff",
    "check": "verify",
    "validate": "verify",
    "audit": "scan",
    "fix": "doctor",
    "diagnose": "doctor",
    "explain": "doctor",
    "load": "inspect",
    "open": "inspect",
    "port": "transfer",
    "map": "transfer",
    "prefix": "add-prefix",
    "unwrap": "strip-prefix",
    "save": "convert",
    "cast": "convert",
    "quantize": "convert",
    "dequantize": "convert",
    "merge": "average",
    "lora": "merge-lora",
    "extract": "extract-weights",
    "shard": "convert",
    "split": "convert",
}


#: Commands that say themselves what can be saved of a damaged file.
_OF_DAMAGE = ("doctor", "repair")


class _Commands(click.Group):
    """A group whose commands are imported when they are needed."""

    context_class = Context

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """--version, --color, --help."""
        *own, last = super().get_params(ctx)
        return [*own, COLOR, last]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f".{_COMMANDS[cmd_name][0]}", __name__)
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        _unwind_on_signals()
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # for which click would print an empty line
            raise _Interrupted from None
        except CheckpointError as error:
            if (
                isinstance(error, Malformed)
                and error.where in (ctx.obj or ())
                and ctx.invoked_subcommand not in _OF_DAMAGE
            ):
                import_module("..reports.diagnosis.rescue", __name__).point_to_rescue(error, error.where)
            if error.hint and ctx.invoked_subcommand in _COMMANDS:
                typed = import_module(".typed", __name__)
                if isinstance(error, OutputExists):
                    error.hint = typed.with_free_name(error.hint, str(error.where))
                elif command := self.get_command(ctx, ctx.invoked_subcommand):
                    error.hint = typed.with_command(error.hint, command, str(error.where))
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            if args[0] == "help":
                ctx.fail(f"Help is an option: `ckptool {' '.join([*args[1:2], '--help'])}`.")
            if is_there(args[0]):
                what = f"'{printable(args[0], 100)}' is a file or folder, not a command."
                ctx.fail(f"{what} Did you mean `ckptool inspect {shell_path(args[0])}`?")
            import difflib

            near = [name for name in _COMMANDS if name.startswith(args[0])]
            near = near or [_SYNONYMS[name] for name in (args[0].lower(),) if name in _SYNONYMS]
            near = near or difflib.get_close_matches(args[0], _COMMANDS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0][:40]}'.{hint}")
        ctx.obj = tuple(args)  # as typed, for hints that repeat the command with something added
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in _GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:15}", summary) for name, (_, summary) in commands.items()])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="ckptool never runs anything inside a checkpoint. `ckptool COMMAND --help` shows examples.",
)
@click.version_option(__version__, prog_name="ckptool", message="%(prog)s %(version)s")
def cli() -> None:
    """Open any PyTorch checkpoint, change it, and write it back at the speed of a file copy."""


class _Terminated(BaseException):
    """SIGTERM or SIGHUP arrived; unwinding removes temporary files."""


class _Interrupted(BaseException):
    """SIGINT arrived."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    gc.disable()  # what commands build is needed to the end: a fifth of the time of a file with many tensors
    _begin_to_count()
    try:
        status = _run(argv)
        _say_traffic(sys.argv[1:] if argv is None else argv)
        if argv is None:
            _leave(status)
        sys.exit(status)
    except (KeyboardInterrupt, _Interrupted, _Terminated) as error:
        if argv is None:
            _ignore_signals()
        word, status = ("terminated", 143) if isinstance(error, _Terminated) else ("interrupted", 130)
        reason = getattr(error, "reason", "")
        _say(f"{f'{reason}; ' if reason else ''}{word}; {_done_before(error)}", status)
        if argv is None:
            _leave(status)
        sys.exit(status)
    finally:
        if argv is not None:  # the process goes on
            gc.enable()
            _give_signals_back()


def _run(argv: list[str] | None) -> int:
    """Run the command line. Returns its exit code; signals come through."""
    try:
        if "_CKPTOOL_COMPLETE" in os.environ:
            import_module(".offered", __name__).register()
        if _is_launched() and not import_module(".launched", __name__).begin(sys.argv[1:] if argv is None else argv):
            return 0
        code = cli.main(argv, prog_name="ckptool", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, _Interrupted, _Terminated) as error:
        _said_before(error)
        if (launched := sys.modules.get("ckptool.cli.launched")) is not None:
            vars(error)["reason"] = launched.reason()
        raise
    except BrokenPipeError as error:
        _said_before(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that Python does not complain when it flushes at exit
        return 141
    except click.ClickException as error:
        if _said_before(error) is not None:
            _print_failure(argv, error)
            _show_usage(error)
        return 2
    except click.exceptions.Exit as error:
        return error.exit_code
    except CheckpointError as error:
        _print_failure(argv, error)
        return _say_error(error, str(error))
    except OSError as error:
        _print_failure(argv, error)
        place = _place_of(error)
        return _say_error(error, f"{place}: {reason(error)}.") if place else _say_unexpected(error)
    except Exception as error:
        _print_failure(argv, error)
        return _say_unexpected(error)
    finally:
        if (launched := sys.modules.get("ckptool.cli.launched")) is not None:
            launched.end()


def _is_launched() -> bool:
    """Whether torchrun started this process. (What finds the others takes as long to import as `--help` takes.)"""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _said_before(error: BaseException) -> str | None:
    """What stands before the message of an error: the rank, of several processes; None if another one says it."""
    launched = sys.modules.get("ckptool.cli.launched")
    return launched.failed(error) if launched else ""


def _say_error(error: Exception, text: str) -> int:
    """Say what went wrong, unless another process says it."""
    _debug()
    before = _said_before(error)
    return 2 if before is None else _say(before + text, 2)


def _print_failure(argv: list[str] | None, error: Exception) -> None:
    """The document of a command with --json that could do nothing."""
    words = sys.argv[1:] if argv is None else argv
    if "--json" in words or "--json-lines" in words:
        from .documents import print_failure

        with contextlib.suppress(OSError):  # nobody listens
            print_failure(words, _COMMANDS.__contains__, error)


def _show_usage(error: click.ClickException) -> None:
    """Say what is wrong with a command line, below how the command is used. Without a command, that is the help."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        click.echo(error.format_message(), err=True, color=styles.always())
        return
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if ctx is not None:
        more = f"Try `{ctx.command_path} --help`."
        click.echo(f"{ctx.get_usage()}\n{styles.paint(more, 'faint')}\n", err=True, color=styles.always())
    _say(error.format_message().replace("\n\t", " "), 2)  # click lists choices one a line


def _place_of(error: OSError) -> str:
    """What the system could not do something with: a file, or the stream of a report; "" if nothing tells."""
    if error.filename is not None:
        return printable(os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename))
    return "stdout" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO) else ""


def _say_unexpected(error: Exception) -> int:
    """A bug of ours: say so in one line, and keep the traceback for those who ask."""
    text = f"ckptool failed unexpectedly ({type(error).__name__}: {str(error)[:200]!r})."
    return _say_error(error, f"{text}\nHint: CKPTOOL_DEBUG=1 shows where; please report it with that")


def _leave(status: int) -> None:
    """End the process at once. Python would take everything apart first, which costs a third of importing torch."""
    threads = sys.modules.get("threading")
    if threads is None or threads.active_count() == 1:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def _say_traffic(argv: list[str]) -> None:
    """What was read from URLs."""
    remote = sys.modules.get("ckptool.disk.remote")
    if remote is None or not {"-q", "--quiet"}.isdisjoint(argv):
        return
    for what, many, found in _by_folder(remote.TRAFFIC):
        size, received, asked = (sum(getattr(one, name) for one in found) for name in ("size", "received", "requests"))
        files = f" ({many:,} files)" if many > 1 else ""
        requests = counted(asked, "request")
        click.echo(f"read {received:,} of {size:,} bytes in {requests}: {printable(what)}{files}", err=True)


def _by_folder(traffic: Mapping[str, Any]) -> Iterator[tuple[str, int, list[Any]]]:
    """What was read from each URL; many in one folder, or all in one that was listed, are one line."""
    folders: dict[str, list[str]] = {}
    for url, found in traffic.items():
        folders.setdefault(url.rpartition("/")[0] if found.size else url.rstrip("/"), []).append(url)
    for folder, urls in folders.items():
        files = [url for url in urls if traffic[url].size]
        if len(files) > _MANY or (files and len(files) < len(urls)):
            yield files[0] if len(files) == 1 else folder, len(files), [traffic[url] for url in urls]
        else:
            yield from ((url, 1, [traffic[url]]) for url in files)


def _done_before(error: BaseException) -> str:
    """What an interrupted command had written, and where it left the files that it had finished."""
    targets = sys.modules.get("ckptool.disk.targets")
    done = "nothing was changed"
    if targets is not None and targets.written:
        names = ", ".join(printable(path, 200) for path in targets.written)
        done = f"before that, {names} {'was' if len(targets.written) == 1 else 'were'} written"
    left = getattr(error, "left_behind", getattr(error.__cause__ or error.__context__, "left_behind", ""))
    return f"{done}; {left}" if left else done


def _begin_to_count() -> None:
    """Begin to count what the command writes, and what it reads from URLs."""
    if (targets := sys.modules.get("ckptool.disk.targets")) is not None:
        targets.written.clear()
    if (remote := sys.modules.get("ckptool.disk.remote")) is not None:
        remote.TRAFFIC.clear()


def _say(text: str, status: int) -> int:
    with contextlib.suppress(OSError):  # nobody listens, or the disk is full
        click.echo(f"{styles.paint('Error:', 'bad')} {styles.hinted(text)}", err=True, color=styles.always())
    return status


def _debug() -> None:
    if os.environ.get("CKPTOOL_DEBUG") == "1":
        import traceback

        traceback.print_exc()


#: Signal -> what answered it before `_unwind_on_signals`.
_answers: dict[int, Any] = {}


def _unwind_on_signals() -> None:
    """From here on there may be something to take back: temporary files, a bar on the terminal."""
    import signal

    def unwind(signum: int, frame: Any) -> None:
        _set_stopped(True)
        raise KeyboardInterrupt if signum == signal.SIGINT else _Terminated

    _set_stopped(False)
    for name in ENDING:
        number = getattr(signal, name, None)
        before = None if number is None else signal.getsignal(number)
        if number is not None and before not in (signal.SIG_IGN, None):
            with contextlib.suppress(ValueError):  # in a thread of another program, whose business its signals are
                signal.signal(number, unwind)
                _answers.setdefault(number, before)


def _give_signals_back() -> None:
    """Let signals be answered as before: a program that calls `main` goes on."""
    import signal

    while _answers:
        signal.signal(*_answers.popitem())
    _set_stopped(False)


def _set_stopped(stopped: bool) -> None:
    """Tell threads that wait for a server whether the program ends: unwinding waits for them."""
    remote = sys.modules.get("ckptool.disk.remote")
    if remote is not None:
        vars(remote)["stopped"] = stopped


def _ignore_signals() -> None:
    """One is enough."""
    import signal

    for name in ENDING:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
