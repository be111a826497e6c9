"""What a diagnosis is made of: findings, with commands that help, and a cure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ...records import record
from .fits import Fit


@record(frozen=True, slots=True)
class Finding:
    """Something that was found.

    Attributes:
        name: what kind of thing, in a word, the same for all files ("wrapped", "device").
        what: what was found, in a sentence.
        trouble: it would be in the way of `model.load_state_dict(torch.load(FILE))` on a machine without a GPU, or
            is damage or a danger. Other findings are worth knowing.
        commands: (command, what for) that help with this.
        actions: what else helps.
    """

    name: str
    what: str
    trouble: bool = True
    commands: list[tuple[str, str]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a file, or behind a message.

    Attributes:
        path: the file, or "".
        kind: what the file is, in a phrase.
        findings: what was found, the most serious first.
        cure: the commands that make the file load, in order; empty if there are none or none is needed.
        fit: how it fits the model, if one was given.
        checked: what was looked at and is as it should be, a sentence each; empty if the file does not open.
    """

    path: str
    kind: str
    findings: list[Finding]
    cure: list[str]
    fit: Fit | None = None
    checked: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether no problem was found."""
        return not any(one.trouble for one in self.findings) and (self.fit is None or self.fit.fits)

    def as_json(self) -> dict[str, Any]:
        """The document that `ckptool doctor --json` prints."""
        return {"healthy": self.healthy, **asdict(self)}
