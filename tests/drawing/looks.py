"""What the tests of pages show, on which screens, and how they look at it."""

import json
import re
from pathlib import Path

from ckptool.checkpoint import Checkpoint
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.tensor import LazyTensor, Storage
from ckptool.tree import Dict

HOSTILE = [
    "</script><script>document.title='taken'</script>",
    "<img src=x onerror=document.title='taken'>",
    "{{DATA}}",
    "javascript:alert(1)",
    "a\u2028b\u202e\x1b[31m",
]


def state_dict(keys, numel=16):
    dtype = BY_NAME["float32"]
    entries = []
    for number, key in enumerate(keys):
        storage = Storage(Buffer(bytes(4 * numel)), "cpu", dtype, str(number))
        entries.append((key, LazyTensor(storage, dtype, (numel,), (1,), 0)))
    return Checkpoint(Dict(entries), "torch-zip", Path("model.pth"))


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


CONTRAST = """(selector) => {
  const linear = (n) => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4;
  const of = (colour) => {
    const [r, g, b] = colour.match(/\\d+/g).map((n) => linear(n / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.querySelector(selector));
  const a = of(style.stroke === "none" ? style.color : style.stroke);
  const b = of(getComputedStyle(document.body).backgroundColor);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""

SCREENS = [(390, 844), (768, 1024), (1280, 800), (1920, 1080)]


def is_inside(inner, outer):
    return (
        inner["y"] >= outer["y"] - 1
        and inner["y"] + inner["height"] <= outer["y"] + outer["height"] + 1
        and inner["x"] >= outer["x"] - 1
        and inner["x"] + inner["width"] <= outer["x"] + outer["width"] + 1
    )


FOCUSED = """() => {
  const at = document.activeElement, ring = at.closest(".list") || at;
  const style = getComputedStyle(ring);
  return at === document.body ? null
    : [at.ariaLabel || at.textContent, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 1];
}"""


def tabbed(tab):
    """What the Tab key leads to, in order, as (name, whether a ring shows that it has the focus)."""
    stops = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        stop = tab.evaluate(FOCUSED)
        if stop is None or stop in stops:
            return stops
        stops.append(stop)
    raise AssertionError("the Tab key never leaves the page")
