"""What the configuration of an adapter says: `adapter_config.json` of peft, or notes in the header of the weights.

Patterns in it are regular expressions from a file that may come from anybody, so those that could take exponential time
are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from ..checkpoint import Checkpoint
from ..disk.documents import read_json
from ..errors import CannotCarry, CheckpointError, Malformed, in_words, printable
from ..passes.side_files import read_side_file
from ..records import record

NAME = "adapter_config.json"
#: Families that can be merged.
FAMILIES = ("LORA", "LOHA", "LOKR", "IA3", "TRAINABLE_TOKENS")
#: Settings that change what merging means, in ways that are not known here.
_UNKNOWN = """layer_replication alora_invocation_tokens use_qalora use_bdlora arrow_config kasa_config
monteclora_config""".split()
#: Initialisations that leave the base model as it was. Others (PiSSA, OLoRA, CorDA, LoftQ …) change it before training.
_HARMLESS = (True, False, None, "gaussian", "eva", "orthogonal")
#: Names that patterns are tried on: with two repetitions, that takes time with the third power of the length.
_LONGEST = 300
_NOTES = "lora_adapter_metadata"
_PLAIN_PATTERN = re.compile(r"[\w.\\*+?^$|()\[\]:-]{0,400}\Z")
_NESTED = re.compile(r"\)\s*[*+{?]|[*+]\s*[*+{]")


@record(frozen=True, slots=True)
class Settings:
    """What an adapter says of itself.

    Attributes:
        family: peft's type ("LORA"), "" where nothing says.
        values: all settings.
        where: the file that says so, for messages.
        own: whether it is a configuration of peft. Without one, a layer without an alpha of its own has a scale of 1.
    """

    family: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    where: str = ""
    own: bool = False

    def flag(self, name: str) -> bool:
        """Whether a setting is on."""
        return self.values.get(name) is True

    def texts(self, name: str) -> list[str]:
        """A setting that is a list of texts, or one text."""
        found = self.values.get(name)
        listed = found if isinstance(found, list) else [found]
        return [one for one in listed if isinstance(one, str)]

    def rank(self, module: str) -> float | None:
        """The rank of a module."""
        return self._of(module, "r", "rank_pattern")

    def alpha(self, module: str) -> float | None:
        """The alpha of a module."""
        return self._of(module, "lora_alpha" if "lora_alpha" in self.values else "alpha", "alpha_pattern")

    def scale(self, module: str, rank: int | None, alpha: float | None = None) -> float:
        """By what the change of a module is multiplied.

        Args:
            module: its name, which patterns see.
            rank: that of its factors; None where they do not tell.
            alpha: what is stored beside the factors, if something is.
        """
        if alpha is None and not self.own and self.alpha(module) is None:
            return 1.0
        alpha = self.alpha(module) if alpha is None else alpha
        rank_said = self.rank(module)
        used = rank if rank is not None else rank_said
        if alpha is None or not used or not math.isfinite(alpha):
            what = f"says neither the rank nor the alpha of {printable(module, 80)}"
            raise Malformed(what, where=self.where)
        return alpha / math.sqrt(used) if self.flag("use_rslora") else alpha / used

    def _of(self, module: str, name: str, patterns: str) -> float | None:
        """A number for a module: that of the first pattern that fits its end, else that of all."""
        special = self.values.get(patterns)
        for pattern, value in special.items() if isinstance(special, dict) and len(module) < _LONGEST else ():
            if _compiled(pattern, self.where).match(module):
                return _number(value, patterns, self.where)
        return _number(self.values.get(name), name, self.where)

    def matches_feedforward(self, module: str) -> bool:
        """Whether IA3 multiplies the inputs of a module."""
        found = self.values.get("feedforward_modules")
        if isinstance(found, str):
            return _compiled(found, self.where, whole=True).match(module) is not None
        return any(module.endswith(name) for name in self.texts("feedforward_modules"))


def _number(value: Any, name: str, where: str) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9):
        return value
    raise Malformed(f"gives {name} the value {in_words(value)}, which is not a number", where=where)


def _compiled(pattern: str, where: str, *, whole: bool = False) -> re.Pattern[str]:
    """The regular expression that peft makes of a pattern."""
    try:
        if not _PLAIN_PATTERN.match(pattern) or _NESTED.search(pattern) or _may_take_long(pattern):
            raise re.error("not plain")
        return re.compile(rf"({pattern})\Z" if whole else rf"(.*\.)?({pattern})$")
    except re.error:
        raise CannotCarry(f"has the pattern {in_words(pattern)}, which ckptool does not support", where=where) from None


def _may_take_long(pattern: str) -> bool:
    """Whether matching may go many ways: more than two repetitions, or several optional parts or choices."""
    optional, choices = len(re.findall(r"\?(?!:)", pattern)), pattern.count("(") if "|" in pattern else 0
    return len(re.findall(r"[*+]", pattern)) > 2 or optional > 4 or choices > 4


def settings_of(ckpt: Checkpoint) -> Settings:
    """What an adapter says of itself, in `adapter_config.json` beside it or in its header.

    Raises:
        Malformed: the configuration is no JSON, or says what it cannot mean.
    """
    where = str(ckpt.folder.path / NAME if ckpt.folder else ckpt.path.parent / NAME) if ckpt.path else NAME
    try:
        found = read_side_file(ckpt, NAME)
    except CheckpointError as error:
        error.where = where
        raise
    if found is not None:
        family = found.get("peft_type")
        return Settings(family.upper() if isinstance(family, str) else "", found, where, own=True)
    noted = ckpt.metadata.get(_NOTES)
    if noted is not None:
        flat = read_json(noted, ckpt.where, f"{_NOTES} in its header")
        return Settings("LORA", flat if isinstance(flat, dict) else {}, ckpt.where)
    return Settings("", {}, ckpt.where)


def for_component(settings: Settings, component: str) -> Settings:
    """The settings of one part of a pipeline, which diffusers writes as "unet.r" and the like."""
    head = f"{component}."
    own = {name[len(head) :]: value for name, value in settings.values.items() if name.startswith(head)}
    return Settings(settings.family, own, settings.where, own=True) if own else settings


def require_mergeable(settings: Settings) -> None:
    """Refuse what cannot be merged, or not by what the adapter alone says.

    Raises:
        CannotCarry: its family, or one of its settings, is none that is known.
    """
    if settings.own and settings.family not in FAMILIES:
        known = ", ".join(FAMILIES)
        what = f"is an adapter of the family {in_words(settings.values.get('peft_type'))}; {known} are merged"
        raise CannotCarry(what, where=settings.where)
    for name in _UNKNOWN:
        if settings.values.get(name):
            value = in_words(settings.values[name])
            raise CannotCarry(f"sets {name} to {value}, which is not merged here", where=settings.where)
    how = settings.values.get("init_lora_weights")
    if not isinstance(how, str | bool | None) or how not in _HARMLESS:
        hint = "save it from peft with path_initial_model_for_weight_conversion, which makes a plain LoRA of it"
        what = f"began with init_lora_weights {in_words(how)}, which changes the base model before training"
        raise CannotCarry(what, where=settings.where, hint=hint)


def listed_places(values: Sequence[Any], where: str) -> tuple[int, ...]:
    """Places of tokens, as numbers.

    Raises:
        Malformed: they are none.
    """
    if not all(type(one) is int and one >= 0 for one in values) or len(set(values)) != len(values):
        raise Malformed("lists trainable_token_indices that are not places of tokens", where=where)
    return tuple(values)
