"""Match a file with the code that saved it: equal names, except for wrappers and the habits of other libraries.

Files store the model below modules and collections that the code does not have (`module.`, `state_dict/`, `encoder_q.`,
`network_fn_state_dict`). Keras writes paths with slashes, repeats layers and adds `:0` (`conv1/conv1/kernel:0`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile

from ...keys import unwrap
from ..expression import Shape

_STATE = re.compile(r"_?(model_)?state_dict$")


_Path = tuple[str, ...]


#: Key of the code -> prefix of the file -> key of the file below it; None if there are two.
_Found = dict[str, dict[_Path, str | None]]


def named_alike(
    code: Mapping[str, Shape], file: Mapping[str, Shape], optional: frozenset[str] = frozenset(), *, share: float = 1.0
) -> list[dict[str, str]]:
    """Return a list of dicts, key of the code -> key of the file: the two have equal sizes and equal names, that of the
    file below a prefix of at most seven components (`module.encoder`). If no key is found so, the modules around all of
    the code's keys do not count: the file may hold what the code has in a module of its own (`self.net`).

    Args:
        code: keys of the code with their shapes.
        file: keys of the file with their shapes.
        optional: keys of the code that the file may lack.
        share: the share of the other keys that the file needs in these sizes; a head may have another size.
    Returns:
        If prefixes have all keys that are needed: one dict for each of the shortest of them (several if the file holds
        several copies of the model). Else, if each of these keys is below some prefix: one dict, with each key from the
        nearest. Else, if SHARE is less than 1, and a prefix has at least SHARE of the keys: one dict for each of the
        shortest with the most keys. Else []. Optional keys are in a dict where they are found. Several dicts are in the
        order of their prefixes.
    """
    columns = zip(*(_words(key)[:-1] for key in code), strict=False)
    around = sum(1 for _ in takewhile(lambda column: len({*column}) == 1, columns))
    for skipped in (0, around) if around else (0,):
        if ways := [way for way in _ways(code, file, optional, share, skipped) if way]:
            return ways
    return []


def _ways(
    code: Mapping[str, Shape], file: Mapping[str, Shape], optional: frozenset[str], share: float, skipped: int
) -> list[dict[str, str]]:
    """Return the list that `named_alike` returns for these arguments (dicts of key of CODE -> key of FILE), when the
    keys of CODE are compared without their first SKIPPED components, and whole if SKIPPED is 0. A dict in the list may
    be empty.
    """
    found = _below_prefixes(code, file, skipped)
    needed = [key for key in code if key not in optional]
    places = Counter(place for key in needed for place in found[key])
    most = max(places.values(), default=0)
    is_whole = most == len(needed) > 0
    if not is_whole:
        apart = _from_several_places(found, needed)
        if apart or share >= 1 or most < share * len(needed):
            return apart
    near = sorted(place for place, n in places.items() if n == most)
    return [_one_way(found, place) for place in near if len(place) == min(map(len, near))]


def _below_prefixes(code: Mapping[str, Shape], file: Mapping[str, Shape], skipped: int) -> _Found:
    """Return key of CODE -> prefix (components, at most seven) -> key of FILE, for each prefix below which FILE has a
    key with the name and sizes of the key of CODE: `conv1.weight` -> ("encoder",) -> `encoder.conv1.weight`. If there
    are two below one prefix, None is in place of the key of FILE. A key of CODE that FILE does not have has {}.

    Names are compared as `_words` gives them. The name of a key of CODE is the whole key, or, below a prefix where FILE
    does not have this, the key without wrappers around all keys of CODE (`module.`). If SKIPPED is not 0, it is the key
    without so many first components instead.
    """
    ends: dict[_Path, list[tuple[_Path, str]]] = {}
    for key in file:
        words = _words(key)
        for depth in range(min(len(words), 8)):
            ends.setdefault(words[depth:], []).append((words[:depth], key))
    short = unwrap(list(code))
    found: _Found = {}
    for key, shape in code.items():
        below: dict[_Path, str | None] = {}
        names = (_words(key)[skipped:],) if skipped else (_words(key), _words(short[key]))
        for words in dict.fromkeys(names):
            named: dict[_Path, str | None] = {}
            for place, held in ends.get(words, ()):
                if file[held] == shape and held != named.get(place):
                    named[place] = None if place in named else held
            below = named | below
        found[key] = below
    return found


def _one_way(found: _Found, place: _Path) -> dict[str, str]:
    """Return key of the code -> key of the file below the prefix PLACE. A key of the code that is not below PLACE gets
    the only key of the file with its name and sizes below other prefixes (Flax keeps statistics in another collection).
    It is left out if there is none or several, or if there are two below PLACE. FOUND is from `_below_prefixes`.
    """
    way: dict[str, str] = {}
    for key, below in found.items():
        others = {held for held in below.values() if held is not None}
        held = below.get(place, next(iter(others)) if len(others) == 1 else None)
        if held is not None:
            way[key] = held
    return way


def _from_several_places(found: _Found, needed: Sequence[str]) -> list[dict[str, str]]:
    """Return [dict of key of the code -> key of the file below the shortest prefix that has its name and sizes].

    A key of the code is left out if it is below no prefix, if two equally short prefixes have a key for it, or if the
    shortest has two. [] if a key of NEEDED is left out, if two keys of the code would get one key of the file, or if
    the dict is empty. FOUND is from `_below_prefixes`.
    """
    way: dict[str, str] = {}
    for key, below in found.items():
        least = min(map(len, below), default=0)
        nearest = {held for place, held in below.items() if len(place) == least}
        only = nearest.pop() if len(nearest) == 1 else None
        if only is not None:
            way[key] = only
        elif key in needed:
            return []
    return [way] if way and len(set(way.values())) == len(way) else []


def _words(key: str) -> tuple[str, ...]:
    """Return the components of KEY, between dots and slashes: ("conv1", "kernel") for `conv1/conv1/kernel:0`.

    Left out are the number of an output at the end (`:0`); "state_dict" and "model_state_dict" at the end of a
    component; components that are empty then; and the first component behind a slash if it repeats the component before
    the slash, unless it is a number.
    """
    out: list[str] = []
    for path in re.sub(r":\d+$", "", key).split("/"):
        for place, part in enumerate(path.split(".")):
            word = _STATE.sub("", part)
            if word and (place or not out or out[-1] != word or word.isdecimal()):
                out.append(word)
    return tuple(out)


__all__ = ["named_alike"]
