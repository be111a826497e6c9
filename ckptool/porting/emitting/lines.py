"""Break Python statements into lines that are not too long."""

from __future__ import annotations

from collections.abc import Iterator

#: Columns of a line, as formatters have it unless they are told otherwise.
WIDTH = 88
_OPENING, _CLOSING = "([{", ")]}"


def laid_out(statement: str, indent: int = 0, after: int = 0) -> Iterator[str]:
    """Yield the lines of STATEMENT, the first and the last indented by INDENT. A statement that takes more than 88
    columns with INDENT and AFTER is broken inside of its last call, list, tuple or dict (`_breakable`): each item is on
    a line with a comma, indented by 4 more and broken in the same way if it is too long. A statement without such
    brackets stays whole, however long it is.

    AFTER is the number of characters that will follow on the last line.
    """
    if len(statement) + indent + after <= WIDTH:
        yield " " * indent + statement
        return
    at = _breakable(statement)
    if at is None:
        yield " " * indent + statement
        return
    start, stop = at
    yield " " * indent + statement[: start + 1]
    for item in _items(statement[start + 1 : stop]):
        lines = list(laid_out(item, indent + 4, 1))
        yield from lines[:-1]
        yield f"{lines[-1]},"
    yield " " * indent + statement[stop:]


def _characters(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield (index, character, depth) for each character of TEXT outside of strings; quotes are left out with their
    strings. The depth is the number of brackets `([{` around the character; a bracket has that of the text around its
    pair.
    """
    depth, quote, at = 0, "", 0
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        else:
            depth -= char in _CLOSING
            yield at, char, depth
            depth += char in _OPENING
        at += 1


def _breakable(text: str) -> tuple[int, int] | None:
    """Return (index of the opening bracket, index of the closing one) of the last pair of brackets in TEXT that is not
    empty, not inside another and holds items: a call, a list, a dict, or a tuple with a comma. The index of a tensor
    (`x[0]`) and what only groups a sum, as in `a * (b + c)`, are none. None if there is no such pair.
    """
    found = None
    opened, items = None, True
    for at, char, depth in _characters(text):
        if depth == 1 and char == ",":
            items = True
        elif depth == 0 and char in _OPENING:
            behind = _is_behind_value(text, at)
            opened = None if char == "[" and behind else at
            items = char != "(" or behind
        elif depth == 0 and char in _CLOSING and opened is not None and items and at > opened + 1:
            found = (opened, at)
    return found


def _is_behind_value(text: str, at: int) -> bool:
    """Return whether the bracket at the index AT of TEXT follows a name, a number, a string or another bracket, so that
    it begins a call or an index.
    """
    return at > 0 and (text[at - 1].isalnum() or text[at - 1] in "_)]\"'")


def _items(text: str) -> Iterator[str]:
    """Yield the texts between the commas of TEXT, the inside of a call or a list, without spaces around them. Commas in
    strings and inner brackets do not divide; what is empty after the last comma is left out.
    """
    begin = 0
    for at, char, depth in _characters(text):
        if char == "," and depth == 0:
            yield text[begin:at].strip()
            begin = at + 1
    if text[begin:].strip():
        yield text[begin:].strip()
