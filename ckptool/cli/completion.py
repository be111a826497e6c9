"""`ckptool completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from . import offered
from .help import Command


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets your shell complete commands, options, files, and the values of options.

    Redirect it to the file that your shell reads: ~/.local/share/bash-completion/completions/ckptool for bash, _ckptool
    in a folder of fpath for zsh, ~/.config/fish/completions/ckptool.fish for fish.

    \b
    ckptool completion bash
    ckptool completion zsh
    ckptool completion fish
    """
    offered.register()
    made = get_completion_class(shell)
    assert made is not None  # click knows these three
    click.echo(made(ctx.find_root().command, {}, "ckptool", "_CKPTOOL_COMPLETE").source())
