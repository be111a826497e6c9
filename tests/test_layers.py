"""Who may import whom: the picture of the house, read from the source."""

import ast
import re
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ckptool

pytestmark = pytest.mark.same_without_torch  # the package is read here, not run

PACKAGE = Path(ckptool.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py"))

#: From the ground up: files and folders of the package. Each imports from lower floors only.
FLOORS = [
    ["errors", "garbage", "lazy", "records", "starting"],
    ["ranks"],
    ["disk", "drawing", "dtypes", "keys"],
    ["signs"],
    ["tensor"],
    ["tree"],
    ["inert"],
    ["weights"],
    ["checkpoint"],
    ["torch_bridge"],
    ["sharding"],
    ["formats", "model_code", "passes"],
    ["adapters", "porting", "train"],
    ["reports"],
    ["cli"],
    ["__init__", "__main__"],
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}

#: Third-party package -> the modules that may import it.
HOMES = {
    "torch": {"torch_bridge", "tensor", "sharding", "model_code", "porting/prove", "ranks", "train"},
    "safetensors": {"torch_bridge", "train"},
    "PIL": {"train"},
    "matplotlib": {"train"},
    "click": {"cli"},
    "rich": {"cli"},
    "fsspec": {"disk/stores"},
    "huggingface_hub": {"disk/hub"},
    "yaml": {"disk/documents", "porting/words"},
    "gguf": {"formats/frameworks"},
    "h5py": {"formats/frameworks"},
    "zstandard": {"formats/frameworks"},
    "isal": {"disk/checksums"},
}
#: Where values are computed; imported inside functions, so that starting costs nothing.
NUMERIC = {"numpy", "ml_dtypes"}


@cache
def source_of(module):
    return (PACKAGE / f"{module}.py").read_text("utf-8")


@cache
def imports_of(module):
    """(top-level package or own module, whether it is inside a function, line) for every import of a module."""
    here, found = ["ckptool", *module.split("/")], []
    below = [(ast.parse(source_of(module)), False)]
    while below:
        node, lazy = below.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            found += [(name, lazy, node.lineno) for name in _named(node, here)]
        lazy = lazy or isinstance(node, ast.FunctionDef)
        below += [(child, lazy) for child in ast.iter_child_nodes(node)]
    return found


def _named(node, here):
    """What a statement of import, or a call that stands for one, imports into the module HERE."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if not node.level:
            return [node.module]
        origin = ".".join([*here[: len(here) - node.level], *([node.module] if node.module else [])])
        return [origin] if node.module else [f"{origin}.{alias.name}" for alias in node.names]
    called = node.func.id if isinstance(node.func, ast.Name) else None
    if called not in ("later", "_Table"):
        return []
    said = [word.value for word in node.args if isinstance(word, ast.Constant)]
    if called == "_Table":
        said = ["." + word.rpartition(".")[0] for word in said]
    parts = [(len(word) - len(word.lstrip(".")), word.lstrip(".")) for word in said]
    return [".".join([*here[: len(here) - level], word]) for level, word in parts]


def room_of(dotted):
    """The name on the plan: `formats` for `ckptool.formats.zip.archive`, `__init__` for the package itself."""
    room = dotted.split(".")[1] if "." in dotted else "__init__"
    return room if room in FLOOR else "__init__"


def module_of(dotted):
    """The module that an import of our own loads, or None: `formats/_zip` for `ckptool.formats.zip.archive.read`."""
    path = dotted.split(".")
    if path[0] != "ckptool":
        return None
    inside = ["/".join(path[1 : end + 1]) for end in range(len(path) - 1, 0, -1)]
    return next((name for at in inside for name in (at, f"{at}/__init__") if name in MODULES), "__init__")


def test_the_plan_and_the_house_have_the_same_rooms():
    assert {module.split("/")[0] for module in MODULES} == set(FLOOR)


def imports():
    """(module, what it imports, whether inside a function, where) for every import of the package."""
    return [(m, name, lazy, f"{m}:{line} imports {name}") for m in MODULES for name, lazy, line in imports_of(m)]


def test_imports_go_down_only():
    wrong = []
    for module, name, _, where in imports():
        own = module.split("/")[0]
        other = room_of(name) if name.split(".")[0] == "ckptool" else own
        if other != own and other != "__init__" and FLOOR[other] >= FLOOR[own]:
            wrong.append(f"{where}, which is not below it")
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle():
    """Those that are imported when they are needed count as well."""
    above = {module: {module_of(name) for name, _, _ in imports_of(module)} for module in MODULES}
    TopologicalSorter({module: below - {module, None, "__init__"} for module, below in above.items()}).prepare()


def test_a_private_module_is_imported_by_its_own_package_only():
    for module in MODULES:
        own = module.removesuffix("/__init__") if module.endswith("/__init__") else module.rpartition("/")[0]
        for name, _, line in imports_of(module):
            package, _, last = (module_of(name) or "").rpartition("/")
            assert not last.startswith("_") or last.startswith("__") or package == own, f"{module}:{line}: {name}"


def test_a_folder_can_be_read_at_a_glance():
    folders = Counter(module.rpartition("/")[0] for module in MODULES)
    assert folders.pop("") <= 14
    assert max(folders.values()) <= 30


def test_no_two_modules_have_one_name():
    """But for commands, which are called as what they show."""
    names = Counter(module.rpartition("/")[2] for module in MODULES if not module.startswith("cli/"))
    assert {name for name, count in names.items() if count > 1} == {"__init__"}


def test_passes_and_formats_do_not_know_each_other():
    for module in MODULES:
        own = module.split("/")[0]
        known = {room_of(name) for name, _, _ in imports_of(module) if name.startswith("ckptool.")}
        assert not (own == "passes" and "formats" in known)
        assert not (own == "formats" and "passes" in known)


def at_home(module, package):
    return any(module == home or module.startswith(f"{home}/") for home in HOMES[package])


def test_a_package_is_imported_only_where_it_has_its_home():
    found = [(module, name.split(".")[0], where) for module, name, _, where in imports()]
    assert [where for module, package, where in found if package in HOMES and not at_home(module, package)] == []


def test_numpy_is_imported_inside_functions_only():
    assert [where for _, name, lazy, where in imports() if name.split(".")[0] in NUMERIC and not lazy] == []


def test_no_other_package_is_needed():
    known = {*sys.stdlib_module_names, *HOMES, *NUMERIC, "ckptool"}
    assert [where for _, name, _, where in imports() if name.split(".")[0] not in known] == []


def test_json_is_read_in_one_place():
    """In the room of the disk. Elsewhere only what is no document: a quoted name in an expression, words of ranks."""
    readers = {m for m in MODULES if re.search(r"json\.loads?\(", source_of(m))}
    assert {m for m in readers if not m.startswith("disk/")} == {"porting/expression", "ranks/group", "ranks/texts"}


@pytest.mark.parametrize("name", ["utils", "util", "helpers", "manager", "core", "common", "misc", "base_utils"])
def test_no_module_is_named_for_being_a_heap(name):
    assert not [module for module in MODULES if name in module.split("/")]


PUBLIC_AND_LIGHT = "import sys, ckptool; names = dir(ckptool); print(*sorted({%s} & set(sys.modules)))"


def test_importing_the_package_imports_nothing_heavy(in_new_python):
    heavy = (
        "'torch', 'numpy', 'ml_dtypes', 'click', 'rich', 'yaml', 'safetensors', 'fsspec', 'huggingface_hub',"
        "'ckptool.formats', 'ckptool.passes'"
    )
    assert in_new_python(PUBLIC_AND_LIGHT % heavy) == ""


def test_every_public_name_is_where_it_is_said_to_be():
    for name in ckptool.__all__:
        assert getattr(ckptool, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = ckptool.nonsense


def test_a_scan_loads_nothing_that_writes_files_or_reads_folders(in_new_python):
    loaded = in_new_python("import sys, ckptool.cli.scan; print(*(m for m in sys.modules if m.startswith('ckptool')))")
    assert not {"ckptool.disk.writing", "ckptool.formats.saving", "ckptool.formats.dcp", "ckptool.torch_bridge"} & set(
        loaded.split()
    )
