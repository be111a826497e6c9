"""Locations ("cpu", "cuda:1"): torch's words for where a storage was, rules that change them, and where else they hide.

Rules are applied at once, not one after the other, so `0->1, 1->0` swaps. Tags that torch can restore are those of
`torch.serialization` in 2.13.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RuleError, printable
from ..inert.tags import TAG
from ..keys import outline
from ..records import record
from ..tree import ABSENT, Object, Paths, Walked, holds_tensors_alone, walk

#: A text that is a device, where it stands for itself ("cuda:1" in a Namespace).
_MENTION = re.compile(r"(?:cuda|mps|xpu|hpu|mtia|npu|xla|privateuseone)(?::\d+)?\Z")
#: A key under which the state of a random number generator is kept, in lower case.
_GENERATOR = re.compile(r"(?<![a-z])rngs?(?![a-z])|random_state|manual_seed")

Rules = str | Sequence[str] | Mapping[Any, Any]


@record(frozen=True, slots=True)
class LocationRule:
    """Storages at SOURCE go to TARGET. A source of None is every storage, `cuda:*` any device of a kind."""

    source: str | None
    target: str

    def takes(self, location: str) -> bool:
        """Whether the rule speaks of LOCATION."""
        if self.source is None:
            return True
        if self.source.endswith(":*"):
            return location == self.source[:-2] or location.startswith(self.source[:-1])
        return location == self.source


def parse_rules(rules: Rules) -> list[LocationRule]:
    """Rules from torch's words: "cpu", "cuda:1->cuda:0", "cuda:1=cuda:0", "cuda:*=cpu", several, or a dict.

    Raises:
        RuleError: a word that is no location, or two rules for the same location.
    """
    if isinstance(rules, Mapping):
        parsed = [LocationRule(_location(source, source=True), _location(target)) for source, target in rules.items()]
    else:
        texts = [rules] if isinstance(rules, str) or not isinstance(rules, Sequence) else rules
        parsed = [_parse(part.strip()) for text in texts for part in str(text).split(",") if part.strip()]
    if not parsed:
        raise RuleError("no location is given", where="--map-location", hint="--map-location cpu")
    doubled = [source for source, n in Counter(rule.source for rule in parsed).items() if n > 1]
    if doubled:
        named = doubled[0] or "every location"
        raise RuleError(f"two rules for {named}; which one is meant?", where="--map-location")
    return parsed


def _parse(text: str) -> LocationRule:
    arrow = "->" if "->" in text else "="
    source, found, target = text.partition(arrow)
    if not found:
        return LocationRule(None, _location(source))
    return LocationRule(_location(source, source=True), _location(target))


def _location(word: object, *, source: bool = False) -> str:
    """One location in the spelling of torch's tags. Devices without a number keep it so ("cuda", "mps")."""
    text = str(word).strip().lower()
    if text.isdigit():  # a bare number is a GPU, as in torch.device(1)
        text = f"cuda:{text}"
    match = TAG.match(text)
    if match is None or (match[2] == "*" and not source):
        hint = None
        if text.startswith("gpu"):
            number = text[3:].lstrip(":")
            hint = f"torch calls it cuda{number and ':' + number}" if number.isdigit() or not number else None
        elif text.endswith("-"):
            hint = "quote the rule, or write it with '=': --map-location cuda:1=cuda:0"
        raise RuleError(
            f"'{printable(str(word), 40)}' is not a location; torch's words are cpu, cuda:0, mps, xpu:0 and the like",
            where="--map-location",
            hint=hint,
        )
    kind, number = match[1], match[2]
    if number is None or kind == "cpu":  # torch writes 'cpu' alone and cannot restore 'cpu:0'
        return kind
    return f"{kind}:{number if number == '*' else int(number)}"


def new_location(location: str, rules: Sequence[LocationRule]) -> str | None:
    """Where a storage at LOCATION goes, or None if no rule speaks of it. The most exact rule counts."""
    for exact in (lambda r: r.source == location, lambda r: r.source is not None, lambda r: True):
        for rule in rules:
            if exact(rule) and rule.takes(location):
                return rule.target
    return None


def kept_on_cpu(path: str) -> bool:
    """Whether a CPU tensor at PATH must stay there: random number generator states, and the `step` of Adam.

    torch refuses either on a GPU ("RNG state must be a torch.ByteTensor", "state_steps should not be CUDA tensors").
    """
    parts = path.lower().split("/")
    in_optimizer = any("optim" in part for part in parts) or ("state" in parts and len(parts) > 1)
    return any(map(_GENERATOR.search, parts)) or (in_optimizer and parts[-1] == "step")


def some_kept_on_cpu(above: str, keys: Sequence[str]) -> bool:
    """Whether `kept_on_cpu` may hold of one of KEYS, the paths of which begin with ABOVE: one look at all of them."""
    text = f"{above}{outline(keys)}".lower()
    return "\nstep\n" in text or _GENERATOR.search(text) is not None


def mentions(root: Any, walked: Walked | None = None) -> list[tuple[str, str]]:
    """Other places in the tree where a device is written down: (path, text). A rewrite lists them and leaves them.

    torch.device objects, generators, arguments of device tensors, and texts such as "cuda:1". WALKED: the nodes of the
    tree, if somebody has walked it already.
    """
    found: list[tuple[str, str]] = []
    paths = Paths()
    listed_whole: dict[int, Any] = {}  # trails of objects whose arguments are listed with them, by their ids
    for trail, node in walk(root, holds_tensors_alone) if walked is None else walked:
        if isinstance(node, str):
            argument_of = trail[0][0] if trail and trail[0] and trail[0][1] == "@args" else ABSENT
            if _MENTION.match(node) and id(argument_of) not in listed_whole:
                found.append((paths.of(trail), str(node)))
        elif isinstance(node, Object) and str(node.callee) in ("torch.device", "torch._C.Generator"):
            args = node.args if isinstance(node.args, tuple) else ()
            listed_whole[id(trail)] = trail
            if args and isinstance(args[0], str) and not args[0].startswith("cpu"):
                index = f":{args[1]}" if len(args) > 1 else ""
                found.append((paths.of(trail), f"{node.class_name}({args[0]}{index})"))
        elif trail is not None and trail[1] in ("device_ids", "output_device") and node is not None:
            found.append((paths.of(trail), "GPU numbers"))
    return found
