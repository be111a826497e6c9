"""Which module of the base a layer of an adapter means.

Names of peft and diffusers are those of the model, but for components at the beginning, where the base was saved from
inside or outside of a wrapper: what was put before them, or removed, must be the same for all. Names of kohya have
underscores in place of dots, so they are looked up among the base's names written in the same way, from the right; what
fits several modules is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..errors import Ambiguous, printable
from ..tensor import LazyTensor
from .adapter_layers import Layer

#: Components at the beginning of a name that may be missing in the base.
_MOST_DROPPED = 2


class Places:
    """The modules of a base model.

    Args:
        tensors: its tensors by key.
        where: its file, for messages.
    """

    def __init__(self, tensors: Mapping[str, LazyTensor], where: str) -> None:
        self._where = where
        self.tensors = tensors
        self._paths: set[str] = set(tensors)
        self._by_last: dict[str, list[str]] = defaultdict(list)
        self._flat: dict[str, set[str]] | None = None
        for key in tensors:
            path = key
            while "." in path and (path := path.rpartition(".")[0]) not in self._paths:
                self._paths.add(path)
        for path in self._paths:
            self._by_last[path.rpartition(".")[2]].append(path)

    def __contains__(self, path: str) -> bool:
        return path in self._paths

    def find(self, layers: Sequence[Layer]) -> tuple[dict[int, str], str]:
        """The path that each layer has in the base, by its id, and what was done to all names, in words.

        Names of kohya that fit nothing are left out; others may still be in no base.

        Raises:
            Ambiguous: a name fits several.
        """
        found: dict[int, str] = {}
        for layer in layers:
            if layer.flat and (module := self._flattened(layer.name)) is not None:
                found[id(layer)] = module
        dotted = [layer for layer in layers if not layer.flat]
        if not dotted:
            return found, ""
        dropped, put = self._rule(sorted({layer.name for layer in dotted}, key=len, reverse=True))
        for layer in dotted:
            found[id(layer)] = put + ".".join(layer.name.split(".")[dropped:])
        head = ".".join(dotted[0].name.split(".")[:dropped])
        said = [f"without {printable(head, 60)!r}"] if dropped else []
        said += [f"with {printable(put, 60)!r} before them"] if put else []
        return found, " and ".join(said)

    def _rule(self, names: Sequence[str]) -> tuple[int, str]:
        """How many components of all names are dropped, and what is put before them, so that most are in the base."""
        rules: dict[tuple[int, str], int] = {}
        for candidate in [(0, ""), *self._candidates(names[0])]:
            if candidate not in rules:
                rules[candidate] = sum(self._has(name, *candidate) for name in names)
        best = max(rules.values())
        if rules[0, ""] == best:
            return 0, ""
        least = min(dropped for (dropped, _), count in rules.items() if count == best)
        ways = [rule for rule, count in rules.items() if count == best and rule[0] == least]
        if len(ways) > 1:
            raise Ambiguous(
                "fits several parts of the base model:",
                where=self._where,
                evidence=[printable(put + ".".join(names[0].split(".")[n:]), 100) for n, put in ways[:6]],
                hint="take one part of the base out first (ckptool convert BASE PART --select PREFIX)",
            )
        return ways[0]

    def _has(self, name: str, dropped: int, put: str) -> bool:
        parts = name.split(".")[dropped:]
        return bool(parts) and put + ".".join(parts) in self._paths

    def _candidates(self, name: str) -> list[tuple[int, str]]:
        parts = name.split(".")
        found = []
        for dropped in range(max(min(_MOST_DROPPED, len(parts) - 2), 0) + 1):
            rest = ".".join(parts[dropped:])
            there = (path for path in self._by_last[parts[-1]] if f".{path}".endswith(f".{rest}"))
            found += [(dropped, path[: len(path) - len(rest)]) for path in there]
        return found

    def _flattened(self, name: str) -> str | None:
        if self._flat is None:
            self._flat = defaultdict(set)
            for key in self.tensors:
                parts = key.split(".")[:-1]
                for start in range(len(parts)):
                    self._flat["_".join(parts[start:])].add(".".join(parts))
        found = self._flat.get(name, set())
        exact = {module for module in found if module.replace(".", "_") == name}
        found = exact or found
        if len(found) > 1:
            raise Ambiguous(
                f"the layer {printable(name, 100)} fits {len(found)} modules of the base:",
                where=self._where,
                evidence=[printable(module, 100) for module in sorted(found)[:6]],
                hint="take one part of the base out first (ckptool convert BASE PART --select PREFIX)",
            )
        return next(iter(found), None)
