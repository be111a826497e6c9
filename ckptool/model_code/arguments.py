"""Arguments for the code that makes a model: configuration objects from JSON, and values that the file states.

A class often takes one object with all settings: a dataclass, a configuration of transformers, a Namespace. On the
command line it is a JSON object. It is converted to the class in the argument's annotation, if possible.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..disk.paths import is_file, shell_quote
from ..errors import RuleError, printable
from ..keys import closest

#: Names of arguments that are configurations.
_CONFIGS = ("cfg", "config", "conf", "args", "opt", "opts", "hparams", "params", "model_args")


def converted(found: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return KWARGS, the arguments of a user for the class or function FOUND, with dicts converted to configuration
    classes (`_kinds`): to the class in the argument's annotation, or, for the argument `config` of a class of
    transformers, to its `config_class`.

    For example, a dict for the argument `config: Config` becomes `Config(**dict)`. Values that are no dicts, and dicts
    for arguments without such a class, stay.
    Raises:
        RuleError: an entry of the dict is no field of the configuration class, which is a dataclass; or the class
            raises an exception for these entries.
    """
    if not any(isinstance(value, dict) for value in kwargs.values()):
        return dict(kwargs)
    kinds = _kinds(found)
    return {
        name: _made(kinds[name], name, value) if isinstance(value, dict) and name in kinds else value
        for name, value in kwargs.items()
    }


def _kinds(found: Any) -> dict[str, type]:
    """Return argument -> configuration class, for the arguments of FOUND, a class or a function, that have one in their
    annotation (see `_class_of`).

    Of a class, the annotations of its `__init__` count, also of an inherited one. If one annotation cannot be resolved
    (it names nothing that is there), those that are written as texts are left out, all of them. If the attribute
    `config_class` of FOUND is a class, as in transformers, that is the class of the argument `config`, unless the
    annotation of this argument has one.
    """
    function = found
    if isinstance(found, type):
        function = next((vars(one)["__init__"] for one in found.__mro__ if "__init__" in vars(one)), found)
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # names that are not there when it runs
        hints = dict(getattr(function, "__annotations__", {}))
    kinds = {name: kind for name, hint in hints.items() if (kind := _class_of(hint)) is not None}
    own = getattr(found, "config_class", None)  # of transformers
    if isinstance(own, type):
        kinds.setdefault("config", own)
    return kinds


def _class_of(hint: Any) -> type | None:
    """Return the class that the annotation HINT names: HINT itself, or `Class` for `Optional[Class]`. None if HINT is
    no class (a text, `list[int]`), if it is a union of several classes, or if the class is from `builtins`, `typing` or
    `argparse`.
    """
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [one for one in typing.get_args(hint) if one is not type(None)]
        hint = inner[0] if len(inner) == 1 else None
    return hint if isinstance(hint, type) and hint.__module__ not in ("builtins", "typing", "argparse") else None


def _made(kind: type, name: str, value: dict[str, Any]) -> Any:
    """Return an instance of the class KIND, made of the dict VALUE that a user gave for the argument NAME.

    Raises:
        RuleError: KIND is a dataclass without one of these entries, or raises an exception for them.
    """
    if dataclasses.is_dataclass(kind):
        fields = [field.name for field in dataclasses.fields(kind) if field.init]
        unknown = [key for key in value if key not in fields]
        if unknown:
            near = closest(unknown[0], fields, 1)
            raise RuleError(
                f"{printable(kind.__name__)} has no {printable(unknown[0])!r}",
                where=f"--kwargs {name}",
                evidence=[f"it has {', '.join(printable(field) for field in fields[:20])}"],
                hint=f"did you mean {near[0]!r}?" if near else None,
            )
    try:
        return kind(**value)
    except Exception as error:
        raise RuleError(
            f"{printable(kind.__name__)} does not take it: {type(error).__name__}: {printable(str(error), 200)}",
            where=f"--kwargs {name}",
            evidence=[f"{kind.__name__}{_signature(kind)}"],
        ) from error


def _signature(found: Any) -> str:
    try:
        return str(inspect.signature(found))
    except (TypeError, ValueError):
        return "(…)"


def needed(found: Any, name: str, place: str, missing: Sequence[str]) -> tuple[list[str], str]:
    """Return (evidence lines, hint) for the arguments MISSING from the call of the class or function FOUND, called NAME
    in the file or module PLACE. The first evidence is its signature.

    If the last call NAME(…) with literals in the source file of FOUND (`_call_in`) has all of MISSING, the second
    evidence gives the line of that call and the name of that file, and the hint has the values in this call as options.
    Else the hint has an option `--kwargs ARGUMENT=VALUE` for each of MISSING. VALUE is the first of these that applies:

    - the fields of the dataclass in the argument's annotation (`_fields`);
    - `@config.json`, if the argument has a usual name of a configuration (`cfg`), and that file is beside PLACE or else
      in the current folder;
    - `{}`, if the argument's configuration class (`_kinds`) can be made without arguments; one more evidence says what
      `{}` stands for;
    - `{"NAME": VALUE}` for a usual name of a configuration, `…` for another name.
    """
    evidence = [f"{name}{_signature(found)}"]
    seen = _call_in(found, name)
    if seen is not None and set(missing) <= set(seen[2]):
        path, line, given = seen
        said = f"line {line} of {printable(path.name)} calls it with these"
        return [*evidence, said], " ".join(_option(one, given[one]) for one in missing)
    kinds = _kinds(found)
    beside = next((one for one in (Path(place).parent / "config.json", Path("config.json")) if is_file(one)), None)
    words: list[str] = []
    for one in missing:
        kind = kinds.get(one)
        if kind is not None and dataclasses.is_dataclass(kind):
            words.append(f"--kwargs {one}={shell_quote(_fields(kind))}")
        elif one in _CONFIGS and beside is not None:
            words.append(f"--kwargs {shell_quote(f'{one}=@{beside}')}")
        elif kind is not None and _takes_nothing(kind):
            words.append(f"--kwargs {one}='{{}}'")
            evidence.append(f"{{}} stands for {printable(kind.__name__)}() with its own values")
        else:
            words.append(f"--kwargs {one}=" + ("'{\"NAME\": VALUE}'" if one in _CONFIGS else "…"))
    return evidence, " ".join(words)


def _option(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    return f"--kwargs {shell_quote(f'{name}={text}')}"


def _fields(kind: Any) -> str:
    """Return the fields of the dataclass KIND as a JSON object with their default values; `VALUE` for fields without
    one, or with None. Fields whose default is made by a function, and those that are no arguments, are left out.
    """
    fields = []
    for field in dataclasses.fields(kind):
        if field.init and field.default_factory is dataclasses.MISSING:
            value = None if field.default is dataclasses.MISSING else field.default
            fields.append(f"{json.dumps(field.name)}: {'VALUE' if value is None else json.dumps(value, default=str)}")
    return f"{{{', '.join(fields)}}}"


def _takes_nothing(kind: type) -> bool:
    """Return whether the class KIND can be called without arguments; False if Python does not know its arguments."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)


def _call_in(found: Any, name: str) -> tuple[Path, int, dict[str, Any]] | None:
    """Return (path, line number, argument -> value) of the last call NAME(…) in the source file of FOUND, with the path
    of that file. The call has arguments, and all are literals that FOUND takes; it may lack some that FOUND needs. None
    if there is no such call or no such file.

    `**options` in a call are ignored; calls by a dotted name (`models.NAME(…)`) do not count.
    """
    try:
        path = Path(inspect.getsourcefile(found) or "")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        signature = inspect.signature(found)
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
    for node in sorted(calls, key=lambda one: (one.lineno, one.col_offset), reverse=True):  # walk goes by depth
        if isinstance(node.func, ast.Name) and node.func.id == name:
            try:
                words = {one.arg: ast.literal_eval(one.value) for one in node.keywords if one.arg}
                bound = signature.bind_partial(*map(ast.literal_eval, node.args), **words)
            except (ValueError, TypeError, SyntaxError):
                continue
            if bound.arguments:
                return path, node.lineno, dict(bound.arguments)
    return None
