"""Passes on plain dicts of tensors, as torch.load returns them: what is given as a dict comes back as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from ..checkpoint import Checkpoint
from ..inert.in_memory import from_plain, to_plain

Missing = Literal["error", "ok"]
#: A checkpoint, or a plain dict of tensors; a pass returns what it was given.
AnyCheckpoint = TypeVar("AnyCheckpoint", Checkpoint, dict[str, Any])
_Options = ParamSpec("_Options")


class _Pass(Protocol[_Options]):
    """A pass that gives a Checkpoint for a Checkpoint and a dict for a dict."""

    @overload
    def __call__(self, ckpt: Checkpoint, *args: _Options.args, **options: _Options.kwargs) -> Checkpoint: ...
    @overload
    def __call__(self, ckpt: Mapping[str, Any], *args: _Options.args, **options: _Options.kwargs) -> dict[str, Any]: ...


def on_plain_dicts_too(pass_: Callable[Concatenate[Checkpoint, _Options], Checkpoint]) -> _Pass[_Options]:
    """Let a pass that works on a Checkpoint take a plain dict as well."""

    @wraps(pass_)
    def either(ckpt: Any, *args: _Options.args, **options: _Options.kwargs) -> Any:
        if isinstance(ckpt, Checkpoint):
            return pass_(ckpt, *args, **options)
        if not isinstance(ckpt, Mapping):
            raise TypeError(f"a pass takes a Checkpoint or a dict of tensors, not {type(ckpt).__name__}")
        return to_plain(pass_(Checkpoint(from_plain(ckpt)), *args, **options).root)

    return either
