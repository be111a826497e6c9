"""The topics of questions, so that a later rule can answer a question, whichever rule asked."""

from __future__ import annotations

from enum import Enum


class Topic(Enum):
    """The topic of a question, so that a later rule can answer the question; the text says what the question is about,
    and what answers it.
    """

    ORDER = "which of several look-alikes it is, by orders; answered if no swap fits"
    PARTS = "which of several equal blocks it is in; answered if no swap fits"
    #: Excluding the swaps of single layers does not answer it.
    COUNT = "from which end blocks are counted"
    #: Its rows are outputs (as in torch.nn.Linear) or inputs.
    TURNED = "whether a matrix is transposed"
    LAYOUT = "how a projection stores its parts; answered if the model joins them again"
    OTHER = "all else; answered by the user or a proof"
    #: A fact about a key, not a question: there is nothing to answer.
    LEFT = "why a key has no source"


__all__ = ["Topic"]
