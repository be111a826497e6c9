"""What code does with the rows that it looks up in a table, such as a word embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..call import ADDS, LOOKS, MULTIPLIES, TURNS, UNCHANGED, Call
from ..signature import Facts
from .multiplied import number_in
from .use import Uses
from .views_of_parameters import VIEWS

#: Functions of rows of one_hot whose results are such rows, or columns; `view` and `reshape` if the rows stay whole.
_KEEPS_ONES = VIEWS | {"type_as"}


class Tables:
    """Follows rows of tables until code changes them.

    Args:
        uses: gets `rows` and `times` of facts.
    """

    def __init__(self, uses: Uses) -> None:
        self._uses = uses
        self._rows: dict[int, str] = {}  # id of a tensor -> the table whose rows it is
        self._scaled_rows: dict[int, str] = {}  # the same of rows that were multiplied or turned
        self._one_hot: set[int] = set()  # tensors that are one in one place of each row, and zero elsewhere

    def table_of(self, value: Any) -> str | None:
        """Return the key of the table whose rows the tensor VALUE holds, or None."""
        return self._rows.get(id(value))

    def has_factor_of(self, value: Any) -> bool:
        """Return whether a number that the tensor VALUE is multiplied by counts as one of a table: VALUE is rows of a
        table, or such rows after they were multiplied, or after their dimensions were put in another order.
        """
        return id(value) in self._rows or id(value) in self._scaled_rows

    def is_one_hot(self, value: Any) -> bool:
        """Return whether the tensor VALUE is one in one place of each row, and zero elsewhere: `one_hot` made it, or it
        is a view or a copy of such a tensor.
        """
        return id(value) in self._one_hot

    def see(self, call: Call, keys: Mapping[int, str]) -> None:
        """Note that the result of CALL holds rows of a table, if CALL looks them up (`embedding`), or takes such rows
        and changes no number (`dropout`, `to`) but to zero (`masked_fill`). Also note that the result is one-hot, if
        CALL makes such rows (`one_hot`), or takes some and changes no number. KEYS has id of a parameter or buffer ->
        its key.

        If CALL does something else with rows, that is noted in the facts of the table (`_with_rows`), the first time
        only. If rows that were multiplied by a number, or whose dimensions were put in another order, are multiplied by
        another number, `times` of the table becomes the product of the two.
        """
        rows = call.name in _KEEPS_ONES and id(call.first) in self._one_hot
        whole = call.name not in ("view", "reshape") or call.result.shape[-1:] == call.first.shape[-1:]
        if call.name == "one_hot" or (rows and whole):
            self._one_hot.add(id(call.result))
        if call.name == "embedding" and len(call.args) > 1 and id(call.args[1]) in keys:
            self._rows[id(call.result)] = keys[id(call.args[1])]
        for one in call.args[:2]:
            table, scaled = self._rows.get(id(one)), self._scaled_rows.get(id(one))
            if table in self._uses and (call.name in UNCHANGED or _puts_zeros(call)):
                self._rows[id(call.result)] = table
            elif table in self._uses:
                is_first = self._uses[table].facts.rows == ""
                self._with_rows(call.name, call.args, self._uses[table].facts)
                if is_first and call.name in MULTIPLIES | TURNS:  # of a table that is looked up again, the first time
                    self._rows.pop(id(call.result), None)  # multiplied where it stands
                    self._scaled_rows[id(call.result)] = table
            elif scaled in self._uses and (call.name in UNCHANGED | TURNS or _puts_zeros(call)):
                self._scaled_rows[id(call.result)] = scaled
            elif scaled in self._uses and call.name in MULTIPLIES:  # once more
                facts, number = self._uses[scaled].facts, number_in(call.name, call.args, MULTIPLIES, 1.0)
                if facts.times is not None and number is not None:
                    facts.times *= number
                    self._scaled_rows[id(call.result)] = scaled

    def _with_rows(self, name: str, args: Any, facts: Facts) -> None:
        """Note in `rows` of FACTS, the facts of an embedding table, that the function NAME with the arguments ARGS
        takes rows of it: "added" if NAME adds, else NAME. Nothing changes if `rows` is set already, or if NAME only
        reads a property.

        If NAME multiplies, `times` becomes the number in ARGS; None if there is no number, or if `times` was None.
        """
        if name in MULTIPLIES and facts.rows == "":  # to multiply the rows is to multiply the table
            number = number_in(name, args, MULTIPLIES, 1.0)
            facts.times = None if None in (number, facts.times) else number
        if facts.rows == "" and name not in LOOKS:
            facts.rows = "added" if name in ADDS else name


def _puts_zeros(call: Call) -> bool:
    """Return whether CALL puts zeros in some places of a tensor and changes nothing else: it masks out tokens, whatever
    the others are multiplied by before or after.
    """
    fills = call.name in ("masked_fill", "masked_fill_")
    return fills and any(value == 0 for value in call.values if isinstance(value, int | float))


__all__ = ["Tables"]
