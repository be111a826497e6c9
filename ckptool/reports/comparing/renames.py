"""The command that renames keys as it was seen that they are called elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from ... import keys
from ...disk.files import beside, shell_path, shell_quote
from ...errors import CheckpointError


def alike(one: str, other: str) -> int:
    """How many parts of two names agree from the end."""
    a, b = one.split("."), other.split(".")
    return next((n for n in range(min(len(a), len(b))) if a[-1 - n] != b[-1 - n]), min(len(a), len(b)))


def rename_command(path: str, all_keys: Sequence[str], renamed: dict[str, str]) -> str | None:
    """A command that renames keys as RENAMED says and leaves the others as they are, or None if none was found."""
    if not renamed:
        return None
    file, out = shell_path(path), beside(path, "renamed")
    if len(renamed) == len(all_keys):
        old, new = next(iter(renamed.items()))
        for command, longer, pairs in (
            ("strip-prefix", old, list(renamed.items())),
            ("add-prefix", new, [(n, o) for o, n in renamed.items()]),
        ):
            prefix = longer[: len(longer) - len(pairs[0][1])]
            if prefix.endswith(".") and all(x == prefix + y for x, y in pairs):
                return f"ckptool {command} {file} {out} --prefix {shell_quote(prefix, 200)}"
    unwrapped = keys.unwrap(all_keys)
    if all(new == unwrapped.get(old) for old, new in renamed.items()):
        return f"ckptool convert {file} {out} --unwrap"
    rules: dict[tuple[str, str], None] = {}
    for old, new in renamed.items():
        a, b = old.split("."), new.split(".")
        common = min(alike(old, new), len(a) - 1, len(b) - 1)
        rules[".".join(a[: len(a) - common]), ".".join(b[: len(b) - common])] = None
        if len(rules) > 12:
            return None
    try:
        made = [keys.Rename(old, new) for old, new in sorted(rules, key=lambda rule: -len(rule[0]))]
        applied = {key: next((x for rule in made if (x := rule.apply(key)) is not None), key) for key in all_keys}
    except CheckpointError:
        return None
    if any(applied[key] != renamed.get(key, key) for key in all_keys):
        return None
    texts = " ".join(f"--rename {shell_quote(str(rule), 200)}" for rule in made)
    return f"ckptool rename {file} {out} {texts}"
