"""What something costs, in measures that a busy machine does not change."""

import sys
import threading


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


def lines(function):
    """How many lines FUNCTION runs and all that it calls; each turn of a loop counts, also within one line."""
    count = 0

    def one(frame, event, arg):
        nonlocal count
        count += 1
        return one

    before = sys.gettrace()
    sys.settrace(one)
    threading.settrace(one)
    try:
        function()
    finally:
        sys.settrace(before)
        threading.settrace(before)
    return count
