"""What something costs, in a measure that a busy machine does not change."""

import sys


def calls(function):
    """How many functions FUNCTION calls, in Python and in C, and all that these call."""
    count = 0

    def one(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(one)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
