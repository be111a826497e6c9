r"""Names of tensors: patterns, renaming rules, prefixes, wrappers, known buffers, and short lists of keys.

A *key* is one dotted name inside a state dict (`layers.0.attn.weight`); what stands between the dots are its
*components*. Everything here works on whole components unless a rule is a regular expression: cutting text
out of the middle of names is how `module.mlp_module.weight` becomes `mlp_weight`.

A *pattern* names the head of a key, up to a dot or the end:

    fc                 fc, fc.weight, but not fc2.weight           (`fc.` means the same)
    layer{}.conv       {} is one component, or a part of one:      layer1.conv.weight
    {...}.gamma        {...} is one or more whole components, as many as fit
    re:\.bias$         a regular expression, found anywhere in the key

A *rename* is `OLD=NEW`, where OLD is a pattern and NEW takes the place of what it matched:
`layer{}=blocks.{}`, `backbone=` (remove), `=backbone` (add), `{}.{}={2}.{1}` (reorder), `re:gamma$=weight`.
"""

from __future__ import annotations

from .listing import Collapsed, CollapsedModules, closest, collapse, collapse_modules, outline
from .patterns import LONGEST_KEY, MOST_CHARACTERS, Pattern, Rename, parse_rules, too_long
from .prefixes import add_prefix, common_prefix, drop_first, first_component, heads, leading, strip_prefix
from .wrappers import AVERAGED_COUNTER, WRAPPERS, Wrapper, find_wrappers, unwrap

__all__ = [
    "AVERAGED_COUNTER",
    "LONGEST_KEY",
    "MOST_CHARACTERS",
    "WRAPPERS",
    "Collapsed",
    "CollapsedModules",
    "Pattern",
    "Rename",
    "Wrapper",
    "add_prefix",
    "closest",
    "collapse",
    "collapse_modules",
    "common_prefix",
    "drop_first",
    "find_wrappers",
    "first_component",
    "heads",
    "leading",
    "outline",
    "parse_rules",
    "strip_prefix",
    "too_long",
    "unwrap",
]
