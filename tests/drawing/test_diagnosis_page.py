"""The page of `doctor` in a real browser: it says all that the text says, on every screen, and no key runs in it."""

import functools
import re

import pytest
from looks import CONTRAST, HOSTILE, SCREENS, data_of, state_dict, tabbed

import ckptool
from ckptool.reports.diagnosis.advice import explain
from ckptool.reports.diagnosis.doctor import doctor
from ckptool.reports.diagnosis.doctor_page import doctor_page
from ckptool.reports.diagnosis.doctor_text import doctor_text
from ckptool.reports.diagnosis.finding import Diagnosis, Finding
from ckptool.reports.diagnosis.fits import Fit
from ckptool.tree import Dict

MESSAGE = 'Missing key(s) in state_dict: "fc.weight". Unexpected key(s) in state_dict: "module.fc.weight".'


@pytest.fixture(params=["plain", "wrapped", "under a key", "cut short", "no checkpoint", "hostile"])
def diagnosis(request, tmp_path):
    """What doctor finds in files of several kinds."""
    path = tmp_path / "a.pth"
    keys = {"wrapped": ["module.a.weight", "module.b.weight"], "hostile": [f"module.{key}" for key in HOSTILE]}
    ckpt = state_dict(keys.get(request.param, ["a.weight", "b.weight"]), 4000)
    if request.param in ("under a key", "hostile"):
        ckpt.root.entries[:] = [("state_dict", Dict(list(ckpt.root.entries))), (HOSTILE[0], 3)]
    ckptool.save(ckpt, path)
    if request.param == "cut short":
        path.write_bytes(path.read_bytes()[:-3000])
    if request.param == "no checkpoint":
        path.write_text("<!doctype html><title>Sign in</title>")
    return doctor(path)


@functools.cache
def large():
    """A file with two kinds of problems that does not fit its model in 20,003 keys."""
    names = [f"model.layers.{n // 330}.block_sparse_moe.experts.{n // 3 % 110}.w{n % 3}.weight" for n in range(20_000)]
    commands = [
        ("ckptool convert runs/2026-11-24/last.ckpt runs/2026-11-24/last-fixed.ckpt --extract --unwrap", ""),
        ("ckptool doctor runs/2026-11-24/last-fixed.ckpt", ""),
    ]
    found = [
        Finding("wrapped", "the model was wrapped when it was saved: 'module.' is in 20,000 of 20,000 keys"),
        Finding("device", "3 storages were saved on cuda:1; torch.load fails without it", actions=["or find a GPU"]),
        Finding("beside", "beside the weights: " + "optimizer, " * 30, False, [(commands[0][0], "to keep the rest")]),
    ]
    fit = Fit(
        "last.ckpt", "net.py:Net", False, names[:10_000], [*names[10_000:], *HOSTILE[:2]],
        [("head.weight", [1000, 512], [10, 512])], (0, 20_000), (0, 9), [],
    )  # fmt: skip
    cure = [command for command, _ in commands]
    return doctor_page(Diagnosis("last.ckpt", "torch-zip, 9 parameters", found, cure, fit, ["it is whole"]))


def test_the_page_says_all_that_the_text_says(show, diagnosis):
    said = " ".join(show(doctor_page(diagnosis)).locator("body").inner_text().split())
    path, rest = diagnosis.path, doctor_text(diagnosis, everything=True, width=10**6).splitlines()
    assert path in said
    for line in rest[0].removeprefix(f"{path}: ").rstrip(")").split(" (", 1) + rest[1:]:
        words = " ".join(re.sub(r"^\s*(\d+\. |- )?|:$", "", line).split())  # numbers are of the style
        assert words.lower() in said.lower()


def test_what_is_in_a_file_stays_text(show, diagnosis):
    tab = show(doctor_page(diagnosis))
    assert tab.title() == diagnosis.path
    assert tab.locator("img").count() == 0


def test_a_file_that_does_not_open_is_said_to_be_unchecked(show, diagnosis):
    tab = show(doctor_page(diagnosis))
    headings = [text.strip("# \u00a0") for text in tab.locator("h2").all_inner_texts()]
    assert headings[-1] == ("Checked, without a problem" if diagnosis.checked else "Not checked")
    unopened = {one.name for one in diagnosis.findings} & {"unreadable", "damaged"}
    assert bool(diagnosis.checked) != bool(unopened)


def test_an_error_message_is_explained_without_a_file(show):
    tab = show(doctor_page(None, explain(MESSAGE)))
    assert tab.locator("#message").inner_text().startswith("The file was saved from DataParallel or DDP")
    assert tab.locator(".command code").inner_text() == "ckptool strip-prefix FILE OUT --prefix module."
    assert tab.locator(".verdict").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(320, 640), *SCREENS])
def test_a_diagnosis_can_be_read_on_every_screen(show, size, scheme):
    tab = show(large())
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": size[0], "height": size[1]})
    assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    for part in (".finding", ".command", ".pairs", ".checked"):
        for box in [one.bounding_box() for one in tab.locator(part).all()]:
            assert box["x"] >= 8, part
            assert box["x"] + box["width"] <= size[0] - 8, part
    assert tab.locator(".command code").evaluate_all("all => all.every(one => one.scrollWidth <= one.clientWidth)")
    for text in (".verdict", "#summary", ".finding p", ".anchor", ".soft", ".command button", ".checked", "#fit .bad"):
        assert tab.evaluate(CONTRAST, text) > 4.5, text


@pytest.mark.parametrize("size", [(320, 640), *SCREENS])
def test_20_000_keys_that_do_not_fit_are_searched_within_the_page(show, size):
    tab = show(large())
    tab.set_viewport_size({"width": size[0], "height": size[1]})
    tab.get_by_label("Search entries").fill("experts.7 w2")
    assert 5 < tab.locator(".row").count() < 100
    tab.locator(".row").nth(2).click()
    assert "status" in tab.locator(".details").inner_text()
    above, box = tab.locator("#keys .columns").bounding_box(), tab.locator("#keys .list").bounding_box()
    assert box["y"] >= above["y"] + above["height"]  # nothing lies over another
    assert box["height"] > 0.2 * size[1]
    tab.get_by_label("Search entries").fill("head")
    assert "1000x512 | 10x512" in tab.locator(".row").first.inner_text() or size[0] <= 800
    tab.locator(".row").click()
    assert "shape in the file\n1000x512" in tab.locator(".details").inner_text()


def test_the_tab_key_leads_through_a_diagnosis_in_order_and_shows_where_it_is(show):
    stops = tabbed(show(large()))
    names = [name for name, _ in stops]
    assert names[0] == "Link to: The problems"
    assert names[1].startswith("Link to: the model was wrapped")
    assert (
        names.index("Copy: ckptool doctor runs/2026-11-24/last-fixed.ckpt")
        < names.index("Search entries")
        < names.index("Pairs")
    )
    assert all(seen for _, seen in stops)


def test_a_link_to_a_finding_shows_it(show):
    tab = show(large())
    tab.set_viewport_size({"width": 320, "height": 300})
    tab.goto(f"{tab.url}#beside")
    tab.reload()
    assert 0 <= tab.locator("#beside").bounding_box()["y"] < 300
    assert tab.locator(".finding:target").get_attribute("id") == "beside"


def test_findings_of_one_kind_have_links_of_their_own(show):
    found = [Finding("file", f"{name}: it is cut short") for name in "abc"]
    tab = show(doctor_page(Diagnosis("runs", "a folder", found, [])))
    assert tab.locator(".finding").evaluate_all("all => all.map(one => one.id)") == ["file", "file-2", "file-3"]


@pytest.mark.parametrize("without", ["", "delete Navigator.prototype.clipboard"])
def test_a_command_is_copied_as_it_is_typed(show, without):
    tab = show(large())
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    read = tab.evaluate_handle("() => navigator.clipboard")
    tab.evaluate(without)
    copy = tab.locator("#fix").get_by_role("button", name="Copy").first
    copy.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_function("document.querySelector('#fix button').textContent === 'Copied'")
    assert tab.evaluate("clipboard => clipboard.readText()", read) == data_of(large())["cure"]["commands"][0]


def test_a_diagnosis_is_printed_whole_and_without_buttons(show):
    tab = show(large())
    tab.emulate_media(media="print")
    tab.set_viewport_size({"width": 700, "height": 1000})
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert not any(one.is_visible() for one in tab.locator("button, .anchor, input").all())
    assert tab.locator(".row").count() == 5000
    assert tab.evaluate("document.documentElement.scrollWidth") <= 700
    ends = tab.locator(".list").bounding_box()
    assert tab.locator("#checked").bounding_box()["y"] >= ends["y"] + ends["height"]
