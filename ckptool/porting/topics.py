"""What questions are about, so that a later rule can answer one, whichever rule asked."""

from __future__ import annotations

from enum import Enum


class Topic(Enum):
    """What a question is about; the text says what answers it."""

    ORDER = "which of several it is, by orders; answered where no swap fits"
    PARTS = "which of equal parts it is in; answered where no swap fits"
    #: A swap of single layers says nothing about it.
    COUNT = "from which end parts are counted"
    #: With its inputs or its outputs first.
    TURNED = "how a matrix stands"
    LAYOUT = "how parts stand in a projection; answered where it is put together again"
    OTHER = "all else; the user or a proof answers"


__all__ = ["Topic"]
