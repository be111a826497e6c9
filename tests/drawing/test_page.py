"""The pages of reports in a real browser: they load, search, zoom and filter, and run nothing that is in a file."""

import functools
import re

import pytest
from looks import CONTRAST, HOSTILE, SCREENS, data_of, is_inside, state_dict, tabbed

import ckptool
from ckptool.drawing.page import pairs_page
from ckptool.reports.inspect import describe
from ckptool.reports.inspect_page import inspect_page

LINKS = [
    {"left": "conv1.weight", "right": "stem.weight", "status": "mapped", "details": [["evidence", "name and shape"]]},
    {"left": "fc.weight", "right": "head.weight", "status": "guessed", "details": [["rivals", "fc2.weight"]]},
    {"left": None, "right": HOSTILE[0], "status": "unmapped", "details": []},
    {"left": HOSTILE[1], "right": None, "status": "unused", "details": []},
]


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
    assert are_ends(rows(tab)[0], HOSTILE[1])
    assert tab.locator(".row").get_attribute("title") == HOSTILE[1]
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


def test_paper_is_white_also_where_the_screen_is_dark(show):
    tab = show(inspect_page([describe(state_dict(keys(2)))]))
    tab.emulate_media(color_scheme="dark", media="print")
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
    assert tab.evaluate(CONTRAST, ".row .name") > 4.5


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
    from ckptool.reports.comparing.diff_text import diff_page

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


# -- the keyboard, and what it looks like


def chosen(tab):
    return tab.locator(".row[aria-selected=true]").inner_text()


def test_from_the_search_the_arrows_lead_into_what_was_found(show):
    tab = show(inspect_page([describe(state_dict(keys(12)))]))
    tab.keyboard.press("/")
    tab.keyboard.type("layers.7 attn")
    tab.keyboard.press("ArrowDown")
    assert "layers.7.attn.q.weight" in chosen(tab)
    tab.keyboard.press("ArrowDown")
    assert "layers / 7 / attn / k / weight" in tab.locator(".details").inner_text()
    tab.get_by_label("Search tensors").focus()
    tab.keyboard.press("Escape")
    assert tab.get_by_label("Search tensors").input_value() == ""


def test_left_leads_up_and_right_leads_down(show):
    tab = show(inspect_page([describe(state_dict(keys(3)))]))
    tab.get_by_role("tree", name="Tensors").focus()
    for key, expected in [
        ("Home", "model.pth"), ("ArrowRight", "layers"), ("ArrowRight", "0"), ("ArrowRight", "attn"),
        ("ArrowRight", "attn"), ("ArrowRight", "q"), ("ArrowLeft", "attn"), ("ArrowLeft", "attn"), ("ArrowLeft", "0"),
    ]:  # fmt: skip
        tab.keyboard.press(key)
        name = tab.locator(".row[aria-selected=true] .name").inner_text()
        assert name == expected, key


def test_a_tied_tensor_is_said_to_be_tied(show):
    ckpt = state_dict(["embed.weight"])
    ckpt.root.entries.append(("head.weight", ckpt.root.entries[0][1]))
    tab = show(inspect_page([describe(ckpt)]))
    tab.get_by_label("Search tensors").fill("head")
    assert tab.locator(".row .size").inner_text() == "tied"
    tab.locator(".row").click()
    assert "tied to another tensor" in tab.locator(".details").inner_text()


def are_ends(shown, key):
    """Whether SHOWN is KEY without its middle."""
    head, _, tail = shown.partition("…")
    return key.startswith(head) and key.endswith(tail) and len(head) + len(tail) < len(key)


def test_of_a_long_key_both_ends_are_shown(show):
    key = ".".join(["layers.17", *["a_long_component"] * 9, "weight"])
    tab = show(inspect_page([describe(state_dict([key]))]))
    tab.get_by_label("Search tensors").fill("weight")
    (shown,) = rows(tab)
    assert shown.startswith("layers.17")
    assert are_ends(shown, key)
    assert tab.locator(".row").get_attribute("title") == key


def test_a_link_to_a_tensor_chooses_it(show):
    tab = show(inspect_page([describe(state_dict(["a.weight", "b.c/d.weight"]))]))
    tab.get_by_label("Search tensors").fill("b.c")
    tab.locator(".row").first.click()
    assert tab.evaluate("location.hash").startswith("#b")
    tab.reload()
    assert tab.locator(".row[aria-selected=true]").get_attribute("title") == "b.c/d.weight"


def test_the_histogram_stands_first_with_its_axis(show):
    numbers = {"elements": 4, "min": -1.0, "max": 3.0, "mean": 1.0, "std": 1.0, "zeros": 0, "nan": 2, "infinite": 0}
    stats = [[{**numbers, "histogram": [1, 0, 2, 1]}]]
    tab = show(inspect_page([describe(state_dict(["a"]))], stats))
    tab.locator(".row").last.click()
    assert tab.locator(".details > :first-child").get_attribute("class") == "histogram"
    axis = tab.locator(".axis").inner_text().split()
    assert (axis[0], axis[-1]) == ("-1", "3")
    assert tab.locator(".counted").inner_text() == "0 zeros, 2 NaN, 0 infinite"
    assert tab.locator(".odd").inner_text() == "2 NaN"


def test_tensors_are_ordered_and_coloured_as_wished(show):
    ckpt = state_dict(["z.attn.weight", "a.mlp.weight"])
    tab = show(inspect_page([describe(ckpt)]))
    assert [name for name in rows(tab) if name in "az"] == ["z", "a"]
    tab.get_by_label("Order").select_option("by name")
    assert [name for name in rows(tab) if name in "az"] == ["a", "z"]
    tab.get_by_label("Colour by").select_option("kind")
    assert {"attention", "MLP"} <= set(tab.locator(".key").inner_text().split())


# -- on every screen


@functools.cache
def large_page(kind):
    """A page of 20,000 tensors: `inspect` with statistics of each, or the pairs of a comparison with a long command."""
    names = [f"model.layers.{n // 330}.block_sparse_moe.experts.{n // 3 % 110}.w{n % 3}.weight" for n in range(20_000)]
    if kind == "inspect":
        numbers = {
            "elements": 9,
            "min": -1.25,
            "max": 3.5,
            "mean": 1.0,
            "std": 1.0,
            "zeros": 2,
            "nan": 1,
            "infinite": 0,
        }
        stats = {**numbers, "histogram": [0, 1, 2, 3, 2] * 8}
        return inspect_page([describe(state_dict(names, 1))], [[stats] * len(names)])
    links = [
        {"left": name, "right": name.replace("block_sparse_moe", "moe"), "status": "moved", "details": [("x", "y")]}
        for name in names
    ]
    commands = [("ckptool rename a.pth b.pth --rename block_sparse_moe=moe --rename w1=up", "to rename them, run")]
    return pairs_page("a.pth | b.pth", "a.pth", "b.pth", [*LINKS, *links], summary="different", commands=commands)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SCREENS)
@pytest.mark.parametrize("kind", ["inspect", "pairs"])
def test_20_000_tensors_can_be_read_on_every_screen(show, kind, size, scheme):
    tab = show(large_page(kind))
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": size[0], "height": size[1]})
    tab.get_by_role("searchbox").fill("experts.7 w2")
    tab.locator(".row").nth(2).click()
    screen = {"x": 0, "y": 0, "width": size[0], "height": size[1]}
    assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    for part in (".list", ".details", "header", "#notes"):
        assert is_inside(tab.locator(part).bounding_box(), screen), part
    assert tab.locator(".list").bounding_box()["height"] > (0.15 if kind == "inspect" else 0.28) * size[1]
    names = tab.locator(".row .name:nth-child(-n+2)").all_inner_texts()
    keys = tab.locator(".row").evaluate_all("rows => rows.map(row => row.title || row.ariaLabel)")
    assert len(set(keys)) > 5
    assert len(set(names)) >= len(set(keys))  # what has another key looks different
    for text in (
        ".row .name",
        ".soft",
        ".details dt",
        ".details dd",
        "select" if kind == "inspect" else ".command button",
    ):
        assert tab.evaluate(CONTRAST, text) > 4.5, text
    if kind == "inspect":
        for part in (".histogram", ".axis", ".counted"):
            assert is_inside(tab.locator(part).bounding_box(), tab.locator(".details").bounding_box()), part


def test_the_tab_key_leads_through_the_page_in_order_and_shows_where_it_is(show):
    stops = tabbed(show(large_page("inspect")))
    assert [name for name, _ in stops] == ["model.pth", "Colour by", "Search tensors", "Order", "Tensors"]
    assert all(seen for _, seen in stops)
    stops = tabbed(show(large_page("pairs")))
    names = [name for name, _ in stops]
    assert names[0] == "Copy: ckptool rename a.pth b.pth --rename block_sparse_moe=moe --rename w1=up"
    assert [*names[1:3], names[-1]] == ["Search entries", "only problems 3", "Pairs"]
    assert all(seen for _, seen in stops)


@pytest.mark.parametrize("key", ["Enter", " "])
def test_a_filter_is_switched_by_the_keyboard(show, key):
    tab = show(large_page("pairs"))
    moved = tab.get_by_role("button", name="moved 20,000", exact=True)
    moved.focus()
    tab.keyboard.press(key)
    assert moved.get_attribute("aria-pressed") == "false"
    assert tab.get_by_role("status").inner_text() == "4 of 20,004"


@pytest.mark.parametrize("key", ["Enter", " "])
def test_a_module_is_opened_by_the_keyboard(show, key):
    tab = show(large_page("inspect"))
    tree = tab.get_by_role("tree", name="Tensors")
    tree.focus()
    for press in ("Home", "ArrowDown", "ArrowDown", "ArrowDown", key):
        tab.keyboard.press(press)
    assert tab.locator(".row[aria-selected=true]").get_attribute("title") == "model.layers.0"
    if key == " ":
        assert tab.locator(".row[aria-selected=true]").get_attribute("aria-expanded") == "true"
    else:
        crumbs = tab.get_by_label("Place in the treemap").get_by_role("button")
        assert crumbs.all_inner_texts() == ["model.pth", "model", "layers", "0"]


def test_a_tensor_without_a_finite_value_has_no_histogram(show):
    numbers = dict.fromkeys(["min", "max", "mean", "std"]) | {"elements": 4, "zeros": 0, "nan": 4, "infinite": 0}
    tab = show(inspect_page([describe(state_dict(["a"]))], [[{**numbers, "histogram": []}]]))
    tab.locator(".row").last.click()
    assert tab.locator(".histogram").count() == 0
    assert tab.locator(".counted").inner_text() == "0 zeros, 4 NaN, 0 infinite"


def test_every_brace_of_the_style_has_its_partner():
    """A browser drops a rule after a brace too many, and nests what follows a brace too few, without a word."""
    page = inspect_page([describe(state_dict(["a"]))])
    depth = 0
    for brace in re.findall(r"[{}]", re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]):
        depth += 1 if brace == "{" else -1
        assert 0 <= depth <= 2
    assert depth == 0


def test_commands_stand_apart_and_can_be_copied(show):
    tab = show(pairs_page("diff", "a", "b", LINKS, commands=[("ckptool diff a b --detect-renames", "to find renames")]))
    assert tab.locator(".command code").inner_text() == "ckptool diff a b --detect-renames"
    tab.get_by_role("button", name="Copy").click()


def test_all_rows_are_printed(show):
    tab = show(inspect_page([describe(state_dict([f"layers.{n}.weight" for n in range(400)], 1))]))
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator(".row").count() >= 400
    assert tab.locator(".rest").inner_text() == ""


def test_a_print_says_how_many_rows_it_leaves_out(show):
    tab = show(large_page("pairs"))
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    assert tab.locator(".row").count() == 5000
    assert tab.locator(".rest").inner_text() == "… 15,004 more rows are not printed: search or filter, then print."


# -- transfer


MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))
        self.out = torch.nn.Linear(8, 8)
        self.left, self.right = torch.nn.Linear(8, 3), torch.nn.Linear(8, 3)
        self.fresh = torch.nn.Conv1d(2, 2, 3)

    def forward(self, x):
        return self.left(x), self.right(x)
"""


@pytest.fixture
def port(tmp_path, monkeypatch):
    """The page of a port with a cut tensor, guesses, a key without a source and one that is left over."""
    torch = pytest.importorskip("torch")
    from ckptool.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(8, 2).state_dict()
    state = {f"attn.{key}": value for key, value in attention.items()}
    state |= {
        f"heads.{n}.{part}": torch.randn(*size) for n in "xy" for part, size in (("weight", (3, 8)), ("bias", (3,)))
    }
    state[HOSTILE[1]] = torch.ones(7, 7)
    torch.save(state, "src.pth")
    with pytest.raises(SystemExit):
        main(["transfer", "src.pth", "net.py:Net", "--html", "port.html"])
    return (tmp_path / "port.html").read_text()


def test_the_page_of_a_port_joins_the_keys_of_both_sides_by_lines_of_their_status(show, port, capsys):
    links = data_of(port)["links"]
    tab = show(port)
    assert tab.locator(".row").count() == len(links)
    assert {link["status"] for link in links} >= {"mapped", "unmapped", "unused"}
    for link in links[:6]:
        line = tab.locator(".row").nth(links.index(link))
        assert line.locator(f"svg.{link['status']} path").count() == 1
        assert (link["left"] or "—") in line.inner_text()
        assert (link["right"] or "—") in line.inner_text()
    whole = tab.locator(".row svg.mapped path[d='M4 12 H136']").count()
    cut = [link for link in links if link.get("via")]
    assert whole == sum(link["status"] == "mapped" and not link.get("via") for link in links)
    assert tab.locator(".row svg text").all_text_contents() == [link["via"] for link in cut]
    assert "slice" in {link["via"] for link in cut}
    assert "keys" in tab.locator("#summary").inner_text()


def test_a_line_of_a_port_can_be_clicked_and_walked_with_the_keyboard(show, port):
    links = data_of(port)["links"]
    at = next(n for n, link in enumerate(links) if link.get("via"))
    tab = show(port)
    assert "Choose a line" in tab.locator(".details").inner_text()
    tab.locator(".row").nth(at).locator("svg").click()
    told = tab.locator(".details").inner_text()
    assert links[at]["right"] in told
    assert "made of" in told
    assert "slice(" in told
    options = tab.get_by_role("listbox", name="Pairs")
    options.focus()
    tab.keyboard.press("End")
    assert "status\nunused" in tab.locator(".details").inner_text()
    selected = tab.get_by_role("option", selected=True)
    assert selected.get_attribute("aria-label") == f"{links[-1]['left']} to nothing: unused"
    assert tab.locator("img").count() == 0  # the last key is hostile
    tab.keyboard.press("Home")
    assert links[0]["right"] in tab.locator(".details").inner_text()


def test_problems_of_a_port_are_one_click_away(show, port):
    links = data_of(port)["links"]
    wrong = [link for link in links if link["status"] in ("guessed", "unmapped", "unused")]
    tab = show(port)
    only = tab.get_by_role("button", name=f"only problems {len(wrong)}", exact=True)
    only.focus()
    tab.keyboard.press("Enter")
    assert tab.locator(".row").count() == len(wrong) < len(links)
    assert only.get_attribute("aria-pressed") == "true"
    assert tab.locator("button.filter[aria-pressed=false]").all_inner_texts()[0].startswith("mapped")
    tab.keyboard.press("/")
    tab.keyboard.type("fresh unmapped")
    assert tab.get_by_role("status").inner_text() == f"2 of {len(links)}"
    tab.keyboard.press("ArrowDown")
    assert "fresh.weight" in chosen(tab)
    tab.get_by_label("Search entries").fill("")
    only.click()
    assert tab.locator(".row").count() == len(links)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_of_lines_can_be_told_from_the_paper(show, port, scheme):
    tab = show(port)
    tab.emulate_media(color_scheme=scheme)
    for status in ("mapped", "unmapped", "unused"):
        assert tab.evaluate(CONTRAST, f".row svg.{status} path") > 4.5  # WCAG 2.2: 3 is enough for lines


def test_names_that_could_turn_the_direction_of_text_are_shown_as_what_they_are():
    page = pairs_page(
        "\u202etitle", "left", "right", [{**LINKS[0], "left": "a\u202eb", "details": [("x", "\x1b[31m")]}]
    )
    assert data_of(page)["links"][0]["left"] == "a\\u202eb"
    assert data_of(page)["links"][0]["details"] == [["x", "\\x1b[31m"]]
    assert data_of(page)["title"] == "\\u202etitle"


def test_fifty_thousand_pairs_are_filtered_at_once(show):
    def pair(n):
        status = "mapped" if n % 100 else "guessed"
        return {"left": f"a.{n}.weight", "right": f"b.{n}.weight", "status": status, "details": []}

    many = [pair(n) for n in range(50_000)]
    tab = show(pairs_page("a to b", "a", "b", many))
    tab.get_by_role("button", name="only problems 500").click()
    assert tab.get_by_role("status").inner_text() == "500 of 50,000"
    assert tab.locator(".row").count() < 100
    tab.get_by_label("Search entries").fill("b.49900")
    assert tab.get_by_role("status").inner_text() == "1 of 50,000"
