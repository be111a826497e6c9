"""The pages of reports in a real browser: they load, search, zoom and filter, and run nothing that is in a file."""

import json
import os
import re
import shutil

import pytest

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.dtypes import BY_NAME
from ckptool.files import Buffer
from ckptool.reports.inspect import describe
from ckptool.reports.page import inspect_page, pairs_page
from ckptool.tensor import LazyTensor, Storage
from ckptool.tree import Dict

HOSTILE = [
    "</script><script>document.title='taken'</script>",
    "<img src=x onerror=document.title='taken'>",
    "{{DATA}}",
    "javascript:alert(1)",
    "a\u2028b\u202e\x1b[31m",
]
LINKS = [
    {"left": "conv1.weight", "right": "stem.weight", "status": "mapped", "details": [["evidence", "name and shape"]]},
    {"left": "fc.weight", "right": "head.weight", "status": "guessed", "details": [["rivals", "fc2.weight"]]},
    {"left": None, "right": HOSTILE[0], "status": "unmapped", "details": []},
    {"left": HOSTILE[1], "right": None, "status": "unused", "details": []},
]


def state_dict(keys, numel=16):
    dtype = BY_NAME["float32"]
    entries = []
    for number, key in enumerate(keys):
        storage = Storage(Buffer(bytes(4 * numel)), "cpu", dtype, str(number))
        entries.append((key, LazyTensor(storage, dtype, (numel,), (1,), 0)))
    return Checkpoint(Dict(entries), "torch-zip", "model.pth")


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_data_of_a_page_can_be_read_back_whatever_the_keys_are():
    page = inspect_page([describe(state_dict(HOSTILE))])
    assert page.count("</script>") == 2  # the two that the page itself has
    paths = data_of(page)["files"][0]["tensors"]["path"]
    assert [".".join(path) for path in paths[:4]] == HOSTILE[:4]
    assert "\x1b" not in page


def test_a_page_asks_for_nothing_outside_of_itself():
    page = inspect_page([describe(state_dict(["a.weight"]))])
    assert "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="?https?:', page)


def test_tied_tensors_count_once():
    ckpt = state_dict(["a.weight"])
    ckpt.root.entries.append(("b.weight", ckpt.root.entries[0][1]))
    assert data_of(inspect_page([describe(ckpt)]))["files"][0]["tensors"]["own"] == [64, 0]


def test_the_command_writes_the_page_beside_its_text(tmp_path, capfd):
    from ckptool.cli import main

    ckptool.save(state_dict(["a.weight"]), tmp_path / "a.pth")
    with pytest.raises(SystemExit) as left:
        main(["inspect", str(tmp_path / "a.pth"), "--html", str(tmp_path / "a.html")])
    assert left.value.code == 0
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    said = capfd.readouterr()
    assert "weight [16]" in said.out
    assert said.err == f"wrote {tmp_path / 'a.html'}\n"


# -- in a browser


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium. `make test-page` requires one; elsewhere these tests say that it is missing."""
    required = os.environ.get("CKPTOOL_REQUIRE_BROWSER") == "1"
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if not program or sync_playwright is None:
        message = "no Chromium or no Playwright: run `make test-page`"
        pytest.fail(message) if required else pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open a page as a file. The test fails if its script fails or it asks for anything."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    tab = context.new_page()
    trouble = []
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    tab.on("request", lambda request: trouble.append(request.url) if not request.url.startswith("file:") else None)

    def show(page):
        (tmp_path / "page.html").write_text(page, encoding="utf-8")
        tab.goto((tmp_path / "page.html").as_uri())
        return tab

    yield show
    context.close()
    assert trouble == []


def keys(layers):
    return [f"layers.{n}.{part}.weight" for n in range(layers) for part in ("attn.q", "attn.k", "mlp.up")]


def rows(tab):
    return tab.locator(".row .name").all_inner_texts()


def test_a_page_loads_and_lists_the_modules(show):
    tab = show(inspect_page([describe(state_dict(keys(4)))]))
    assert tab.title() == "model.pth"
    assert "12 tensors" in tab.locator("#summary").inner_text()
    assert "layers" in rows(tab)


def test_searching_finds_tensors_by_parts_of_key_shape_and_type(show):
    tab = show(inspect_page([describe(state_dict(keys(40)))]))
    tab.get_by_label("Search tensors").fill("7.attn float32 [16]")
    assert rows(tab) == [f"layers.{n}.attn.{part}.weight" for n in (7, 17, 27, 37) for part in "qk"]
    assert tab.get_by_role("status").inner_text() == "8 matches"


def test_a_click_in_the_treemap_zooms_in_and_escape_zooms_out(show):
    tab = show(inspect_page([describe(state_dict([*keys(2), "head.weight"]))]))
    crumbs = tab.get_by_label("Place in the treemap").get_by_role("button")
    assert crumbs.all_inner_texts() == ["model.pth"]
    tab.locator("canvas").click(position={"x": 60, "y": 60})
    assert crumbs.all_inner_texts() == ["model.pth", "layers"]
    tab.keyboard.press("Escape")
    assert crumbs.all_inner_texts() == ["model.pth"]


def test_the_tree_can_be_walked_with_the_keyboard_and_is_told_to_screen_readers(show):
    tab = show(inspect_page([describe(state_dict(keys(3)))]))
    tree = tab.get_by_role("tree", name="Tensors")
    tree.focus()
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown"):
        tab.keyboard.press(key)
    selected = tab.locator(".row[aria-selected=true]")
    assert selected.get_attribute("role") == "treeitem"
    assert tree.get_attribute("aria-activedescendant") == selected.get_attribute("id")
    assert "attn" in selected.inner_text() or "layers" in tab.locator(".details").inner_text()
    assert tab.locator(".row[aria-expanded=true]").count() >= 2


def test_hostile_keys_stay_text(show):
    tab = show(inspect_page([describe(state_dict(HOSTILE))]))
    tab.get_by_label("Search tensors").fill("onerror")
    assert rows(tab) == [HOSTILE[1]]
    tab.locator(".row").first.click()
    assert tab.title() == "model.pth"
    assert tab.locator("img").count() == 0


def test_fifty_thousand_tensors_draw_only_the_rows_that_can_be_seen(show):
    tab = show(
        inspect_page([describe(state_dict([f"layers.{n // 10}.part{n % 10}.weight" for n in range(50_000)], 1))])
    )
    tab.get_by_label("Search tensors").fill("weight")
    assert tab.get_by_role("status").inner_text() == "50,000 matches"
    assert tab.locator(".row").count() < 100
    tab.locator(".list").evaluate("box => box.scrollTop = box.scrollHeight")
    tab.wait_for_function("document.querySelector('.rows').lastChild.textContent.includes('layers.4999')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_colours_of_the_system(show, scheme):
    tab = show(inspect_page([describe(state_dict(keys(2)))]))
    tab.emulate_media(color_scheme=scheme)
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]


def test_pairs_are_joined_by_lines_of_their_status_and_can_be_filtered(show):
    tab = show(pairs_page("a.pth -> Net", "a.pth", "Net", LINKS, summary="1 of 4 mapped"))
    assert tab.locator(".row").count() == 4
    tab.locator(".row svg.guessed").click()
    assert "fc2.weight" in tab.locator(".details").inner_text()
    tab.get_by_role("button", name="mapped 1", exact=True).click()
    assert tab.locator(".row").count() == 3
    assert tab.locator(".row svg.mapped").count() == 0
    tab.get_by_label("Search entries").fill("head")
    assert tab.locator(".row").count() == 1
    assert tab.title() == "a.pth -> Net"


def test_the_page_of_a_comparison_shows_what_differs(show, tmp_path):
    from ckptool.reports.diff_text import diff_page

    ckptool.save(state_dict(["same.weight", *HOSTILE[:2], "gone.weight"]), tmp_path / "a.pth")
    ckptool.save(state_dict(["same.weight", *HOSTILE[:2], "new.weight"]), tmp_path / "b.pth")
    tab = show(diff_page(ckptool.diff(tmp_path / "a.pth", tmp_path / "b.pth")))
    assert tab.locator(".row").count() == 5
    assert tab.locator("img").count() == 0
    tab.get_by_role("button", name="equal 3", exact=True).click()
    assert tab.locator(".row").count() == 2
    assert "different" in tab.locator("#summary").inner_text()


def test_statistics_are_shown_with_a_histogram(show, tmp_path):
    from dataclasses import asdict

    from ckptool.reports.inspect import inspect, statistics_of

    ckptool.save(state_dict(["w"]), tmp_path / "a.pth")
    seen = inspect(tmp_path / "a.pth")
    tab = show(inspect_page([seen], [[asdict(one) for one in statistics_of(tmp_path / "a.pth", seen)]]))
    tab.get_by_label("Search tensors").fill("w")
    tab.locator(".row").first.click()
    assert "zeros" in tab.locator(".details").inner_text()
    assert tab.locator(".histogram i").count() == 40
