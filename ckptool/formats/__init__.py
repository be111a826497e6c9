"""The formats, and the way from a path to a checkpoint and back: detect, open, plan, save.

Names are loaded when they are first used: a scanner of pickles does not need what reads folders and writes files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazily

#: Name -> the module that holds it.
_HOMES = {
    **dict.fromkeys(("detect", "open", "repair", "salvage"), "opening"),
    **dict.fromkeys(("Plan", "plan", "save", "check", "settled", "write"), "saving"),
    **dict.fromkeys(
        (
            "FOLDERS",
            "FORMATS",
            "WITHOUT_PICKLES",
            "find_format",
            "format_of",
            "named_format",
            "refuse_folder",
            "split_of",
            "target_format",
        ),
        "_choice",
    ),
    **dict.fromkeys(("NothingLeft", "Salvage"), "_salvage"),
}

if TYPE_CHECKING:
    from ._choice import FOLDERS as FOLDERS
    from ._choice import FORMATS as FORMATS
    from ._choice import WITHOUT_PICKLES as WITHOUT_PICKLES
    from ._choice import find_format as find_format
    from ._choice import format_of as format_of
    from ._choice import named_format as named_format
    from ._choice import refuse_folder as refuse_folder
    from ._choice import split_of as split_of
    from ._choice import target_format as target_format
    from ._salvage import NothingLeft as NothingLeft
    from ._salvage import Salvage as Salvage
    from .opening import detect as detect
    from .opening import open as open
    from .opening import repair as repair
    from .opening import salvage as salvage
    from .saving import Plan as Plan
    from .saving import check as check
    from .saving import plan as plan
    from .saving import save as save
    from .saving import settled as settled
    from .saving import write as write


__getattr__ = lazily(__name__, _HOMES, globals())
