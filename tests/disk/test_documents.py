"""YAML and JSON from outside: what is plain data is read as PyYAML and json read it, and nothing is a bomb."""

import contextlib
import json
import os
import subprocess
import sys
import threading

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from programs import unwatched

import ckptool
from ckptool.disk import documents
from ckptool.disk.documents import quoted, read_json, read_text, read_yaml, through_json, yaml_text
from ckptool.errors import Malformed, RuleError, Unreadable, in_words
from ckptool.passes import recipes

pytestmark = pytest.mark.same_without_torch

RECIPE = "ckptool: 1\npasses:\n"
MAPPING = "ckptool-mapping: 1\nsource: x\ntarget: Net\nmapping:\n"


# ------------------------------------------------------------------------------------------------------- bombs


def aliases(item, width=10, depth=9):
    """Lists of lists, each of which stands ten times in the next."""
    lines = [f"a0: &a0 {item}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, depth + 1)]
    return "\n".join(lines) + "\n"


def merges(depth=8):
    lines = ["a0: &a0 {k: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, depth + 1)]
    return "\n".join(lines) + "\n"


def inline(depth=8):
    """The same inside of one list, as a value of a pass."""
    text = "[x, x]"
    for n in range(depth):
        text = f"[&a{n} {text}{f', *a{n}' * 9}]"
    return text


def doubling(rule, times=40):
    return RECIPE + f"- rename: {rule}\n" * times


#: Name -> (what reads it, the file). Each is refused with one second of CPU time and 150 MB, by its own reader.
BOMBS = {
    "aliases in a recipe": ("recipe", aliases("[x]") + RECIPE + "- select: *a9\n"),
    "aliases in one pass": ("recipe", RECIPE + f"- select: {inline()}\n"),
    "merge keys in a recipe": ("recipe", merges() + RECIPE),
    "base 60": ("recipe", RECIPE + "- select: 1" + ":59" * 300_000 + "\n"),
    "base 60 on one line": ("recipe", RECIPE + "- select: 1" + ":59" * 400_000 + "\n"),
    "digits": ("recipe", RECIPE + "- select: " + "9" * 1_000_000 + "\n"),
    "lists in each other": ("recipe", "[" * 200_000),
    "dicts in each other": ("recipe", "{a: " * 200_000),
    "blocks in each other": ("recipe", "".join(" " * n + "a:\n" for n in range(1400))),
    "keys in each other": ("recipe", "? " * 400_000),
    "directives": ("recipe", "".join(f"%TAG !a{n}! tag:x:\n" for n in range(40_000)) + "--- 1\n"),
    "documents": ("recipe", "--- 1\n" * 150_000),
    "items": ("recipe", "[\n" + "a,\n" * 340_000 + "]"),
    "a recipe too large": ("recipe", RECIPE + "- unwrap\n" * 2_000_000),
    "passes": ("recipe", RECIPE + "- unwrap\n" * 100_000),
    "a pass of many texts": ("recipe", RECIPE + "- drop: [" + "a, " * 100_000 + "]\n"),
    "keys that double": ("run", doubling("'{...}={1}.{1}'")),
    "keys that double by an expression": ("run", doubling(r"'re:^(.*)$=\1.\1'")),
    "keys that grow at every place": ("run", RECIPE + "- rename: ['re:(?=(.*))=" + r"\1" * 2000 + "']\n"),
    "a name of a million holes": ("run", RECIPE + "- rename: '{...}=" + "{1}." * 200_000 + "a'\n"),
    "prefixes": ("run", RECIPE + f"- add-prefix: {'p' * 10_000}\n" * 99),
    "many rules": ("rules", "".join(f"a{n}=b\n" for n in range(100_000))),
    "a rules file too large": ("rules", "a=b\n" * 5_000_000),
    **{
        f"aliases as the {name} of a mapping": ("mapping", aliases("[x]") + text)
        for name, text in {
            "version": "ckptool-mapping: *a9\n",
            "source": "ckptool-mapping: 1\nsource: *a9\n",
            "value": MAPPING + "  a: *a9\n",
            "keys left": "ckptool-mapping: 1\nleft: *a9\n",
        }.items()
    },
    "merge keys in a mapping": ("mapping", merges() + MAPPING),
    "ranges left": ("mapping", "ckptool-mapping: 1\nleft:\n" + "".join(f"- 'a{n}.{{0..99999}}'\n" for n in range(8))),
    "ranges of many lines": ("mapping", MAPPING + "".join(f"  'a{n}.{{0..99999}}': b\n" for n in range(60))),
    "a long range": ("mapping", MAPPING + "  'a.{0..999999999}': b\n"),
    "ranges in one key": ("mapping", MAPPING + "  '" + "{0..9}." * 100_000 + "a': b\n"),
    "ranges of one number": ("mapping", MAPPING + "  '" + "{1}." * 100_000 + "{0..99999}': b\n"),
    "a long key for many": ("mapping", MAPPING + "  '" + "k" * 900_000 + ".{0..99999}': b\n"),
    "a long expression for many": ("mapping", MAPPING + "  'a.{0..9999}': stack(" + "k, " * 9999 + "k)\n"),
    "holes": ("mapping", MAPPING + "  'a.{0..99999}': '" + "{}" * 9999 + "'\n"),
    "calls in each other": ("mapping", MAPPING + "  a: " + "transpose(" * 50_000 + "w" + ")" * 50_000 + "\n"),
    "calls that do not end": ("mapping", MAPPING + "  a: " + "transpose(" * 90_000 + "\n"),
    "brackets": ("mapping", MAPPING + "  a: " + "(" * 900_000 + "\n"),
    "commas": ("mapping", MAPPING + "  a: add(w" + "," * 900_000 + ")\n"),
    "a quote that does not end": ("mapping", MAPPING + "  a: '\"" + "\\x" * 400_000 + "'\n"),
    "a mapping too large": ("mapping", MAPPING + "  a: b\n" * 5_000_000),
    "lists of JSON in each other": ("json", "[" * 5_000_000),
    "objects of JSON in each other": ("json", '{"a":' * 1_000_000),
    "digits of JSON": ("json", "[" + "9" * 5_000_000 + "]"),
    "zero": ("recipe", "/dev/zero"),
    "zero as a mapping": ("mapping", "/dev/zero"),
    "zero as rules": ("rules", "/dev/zero"),
}

PROGRAM = r"""
import json, os, resource, sys
import numpy, yaml
from ckptool.passes import recipes
from ckptool.checkpoint import Checkpoint
from ckptool.inert.in_memory import from_plain
from ckptool.cli.rewrite import _rules_from
from ckptool.disk.documents import read_json
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.errors import CheckpointError
from ckptool.porting import mapping_file
from ckptool.tensor import LazyTensor, Storage

FLOAT = BY_NAME["float32"]
one = LazyTensor(Storage(Buffer(bytes(8)), "cpu", FLOAT), FLOAT, (2,), (1,))
weights = Checkpoint(from_plain({f"layers.{n}.weight": one for n in range(1000)}))
READERS = {
    "recipe": recipes.read,
    "run": lambda path: recipes.run(weights, recipes.read(path)),
    "rules": _rules_from,
    "mapping": mapping_file.read,
    "json": lambda path: read_json(open(path, "rb").read()),
}
size = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
for name, kind, path in json.load(open(sys.argv[1])):
    print(json.dumps(name), flush=True)
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (4, 5))  # an idle machine needs 0.8 s at most
        resource.setrlimit(resource.RLIMIT_AS, (size + (150 << 20),) * 2)
        try:
            READERS[kind](path)
            said = "read it"
        except CheckpointError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException as error:
            said = f"crashed: {type(error).__name__}"
        print(json.dumps(said), flush=True)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        print(json.dumps(f"killed: {status}"), flush=True)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What became of each bomb."""
    if not sys.platform.startswith("linux"):
        pytest.skip("limits of memory and time are those of Linux")
    folder = tmp_path_factory.mktemp("bombs")
    listed = []
    for number, (name, (kind, text)) in enumerate(BOMBS.items()):
        path = folder / str(number)
        if text.startswith("/dev/"):
            path.symlink_to(text)
        else:
            path.write_text(text)
        listed.append((name, kind, str(path)))
    (folder / "listed.json").write_text(json.dumps(listed))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder / "listed.json")],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env=unwatched(),
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(lines[::2], lines[1::2], strict=True))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_seconds_and_150_megabytes(outcomes, name):
    said = outcomes[name]
    assert said.startswith(("RuleError: ", "Malformed: ")), said
    assert len(said) < 1500, said


# -------------------------------------------------------------------------------------------------------- YAML


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "document.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


#: A text that is more than plain data -> what is said, and of which line.
REFUSED = {
    "a: 1\nb: &x 2\n": "line 2 has the anchor &x",
    "- a\n- *x\n": "line 2 has the alias *x",
    "a: 1\n<<: {b: 2}\n": "line 2 has the merge key <<",
    "\n\na: !!str 1\n": "line 3 has the tag tag:yaml.org,2002:str",
    "- ! a\n": "line 1 has the tag !",
    "%YAML 1.1\n---\na\n": "line 1 begins with '%'",
    "a: 1\n---\nb: 2\n": "line 2 begins a second document",
    "a: 1\nb: 2\na: 3\n": "line 3 has the key a a second time",
    "[[[[[[[[[x]]]]]]]]]": "line 1 is more than 8 lists and dicts deep",
    "[a, b]: c\n": "line 1 has a list or a dict for a key",
    "a: b\n1: c\n": "line 2 has the key 1, which is not text",
    "~: c\n": "line 1 has the key ~, which is not text",
    "- 1:30\n": "line 1 has 1:30, which YAML takes for a number",
    "- 1:30.5\n": "line 1 has 1:30.5, which YAML takes for a number",
    "- 0x1f\n": "line 1 has 0x1f, which YAML takes for a number",
    "- 0b11\n": "line 1 has 0b11, which YAML takes for a number",
    "- 010\n": "line 1 has 010, which YAML takes for a number",
    "- 1_000\n": "line 1 has 1_000, which YAML takes for a number",
    f"- {'9' * 5000}\n": "which YAML takes for a number",
    "- .inf\n": "line 1 has .inf, which YAML takes for a number",
    "- 2001-01-31\n": "line 1 has 2001-01-31, which YAML takes for a date",
    "- 2001-99-99\n": "line 1 has 2001-99-99, which YAML takes for a date",
    "- =\n": "line 1 has =, which YAML takes for something else",
    "a: 1\n- b\n": "line 2 is not valid YAML",
    "a:\n\t- b\n": "line 2 is not valid YAML",
    "a: \x07\n": "line 1 has a character that YAML does not allow",
    'a:\n- "\\ud83d"\n': "line 2 ",  # libyaml says "is not valid YAML"
    "a: b\n" * (1 << 18): "has more than 1,048,576 characters",
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_what_is_more_than_plain_data_is_refused_with_its_line(written, text):
    with pytest.raises(RuleError) as caught:
        read_yaml(written(text))
    assert caught.value.where.endswith("document.yaml")
    assert REFUSED[text] in caught.value.what
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("text", ["yes", "no", "on", "1", "1.5", "~", "", "0x10", "1:30", "2001-01-31", "=", "1e400"])
def test_where_texts_are_wanted_a_scalar_is_the_text_that_stands_there(written, text):
    assert read_yaml(written(f"a: {text}\n{text or 'b'}: c\n"), texts=True) == {"a": text, text or "b": "c"}


def test_of_two_lines_of_texts_for_one_key_the_last_counts_but_not_at_the_root(written):
    assert read_yaml(written("doubts:\n  a: b\n  c: d\n  a: e\n"), texts=True) == {"doubts": {"a": "e", "c": "d"}}
    with pytest.raises(RuleError, match="line 3 has the key doubts a second time"):
        read_yaml(written("doubts:\n  a: b\ndoubts:\n  c: d\n"), texts=True)


def test_a_line_has_a_limit_of_its_own(written):
    path = written("a: b\n" + "x" * (1 << 20) + "y\n")
    with pytest.raises(Malformed, match="line 2 has 1,048,577 characters; 1,048,576 is the limit"):
        read_yaml(path, Malformed, largest=documents.LARGEST_LIST)


def test_what_is_no_text_is_unreadable(written, tmp_path):
    for raw in (b"\xff\xfe", "a: b".encode("utf-16")):
        with pytest.raises(Unreadable, match="is not a text file"):
            read_yaml(written(raw))
    for path in (tmp_path, tmp_path / "none", "a\0b"):
        with pytest.raises(Unreadable):
            read_yaml(path)


PIECES = [
    *"-?:,[]{}#&*!|>'\"%@`~=<\\ \n\té\U0001f600\x85\u2028\ufeff",
    *["a", "b: c", "- ", "  ", "\n- ", "\n  ", ": ", "---\n", "...\n", "<<: ", "&a ", "*a", "!!str ", "%TAG ", "\r\n"],
    *"yes null 1 -1 1.5 1. .5 1e3 1.0e+3 0x1f 017 1_0 1:30 1:30.5 2001-01-31 2001-99-99 .inf .nan".split(),
    *["'it''s'", '"\\x41"', '"\\ud800"'],
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def types_of(value):
    """VALUE with the types of everything in it: 1 is not True, nor 1.0."""
    if isinstance(value, dict):
        return {key: types_of(item) for key, item in value.items()}
    kind = str if isinstance(value, str) else type(value)  # a text may know its line
    return [types_of(item) for item in value] if isinstance(value, list) else (kind, value)


def read_or_none(text, loader):
    try:
        return types_of(yaml.load(text, loader))
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, AttributeError):  # a date that is none, for one
        return None


@pytest.mark.parametrize("libyaml", [True, False])
@given(text=TEXTS)
def test_a_text_is_read_as_safe_load_reads_it_or_refused(tmp_path_factory, libyaml, text):
    path = tmp_path_factory.getbasetemp() / "random.yaml"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patched:
        if not libyaml:
            patched.delattr(yaml, "CSafeLoader", raising=False)
        for texts, name in ((False, "SafeLoader"), (True, "BaseLoader")):
            loader = getattr(yaml, f"C{name}", None) if libyaml else None
            try:
                found = types_of(read_yaml(path, texts=texts))
            except RuleError:
                continue
            assert found == read_or_none(text, loader or getattr(yaml, name))


SCALARS = st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text() | st.floats(-1e4, 1e4, width=16)
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


@given(value=PLAIN, style=st.sampled_from([None, "'", '"']), flow=st.sampled_from([None, True, False]))
def test_plain_data_come_back_as_they_were_dumped(tmp_path_factory, value, style, flow):
    text = yaml.safe_dump(value, default_style=None if style is None else style, default_flow_style=flow)
    if style is not None and "!!" in text:
        return  # a quoted number has a tag, which is refused
    path = tmp_path_factory.getbasetemp() / "plain.yaml"
    path.write_bytes(text.encode())
    try:
        found = read_yaml(path)
    except RuleError as error:
        found, refused = value, error.what
    else:
        refused = "deep"
    assert types_of(found) == types_of(value)
    assert any(word in refused for word in ("deep", "takes for", "not text", "half a character"))


@given(st.text())
def test_a_quoted_text_is_the_same_for_yaml_and_where_it_can_be_for_json(text):
    made = quoted(text)
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert yaml.safe_load(made) == text
        assert made.isascii() or all(c.isascii() or c.isprintable() for c in made)
        if "\\U" not in made:
            assert json.loads(made) == text


# ----------------------------------------------------------------------------------------------------- recipes


def values_of(kind):
    texts = st.text(min_size=1)
    return {
        "flag": st.just(True),
        "which": st.sampled_from([True, "ema", "raw"]),
        "ties": st.sampled_from(["keep", "drop", "clone"]),
        "text": st.text(),
        "texts": texts | st.lists(texts, min_size=1, max_size=5),
        "cast": texts | st.fixed_dictionaries({"to": texts}, optional={"keep": texts | st.lists(texts, max_size=5)}),
    }[kind]


STEPS = st.lists(
    st.sampled_from(list(recipes.PASSES)).flatmap(
        lambda name: st.builds(recipes.Step, st.just(name), values_of(recipes.PASSES[name].kind))
    ),
    max_size=8,
)


@given(STEPS)
def test_a_recipe_reads_back_as_it_was_written(tmp_path_factory, steps):
    path = tmp_path_factory.getbasetemp() / "recipe.yaml"
    path.write_bytes(recipes.text(steps).encode())
    assert recipes.read(path) == steps


def test_a_recipe_that_could_not_be_read_is_not_written():
    for value in ("a\ud800", "x" * (1 << 20)):
        with pytest.raises(RuleError):
            recipes.text([recipes.Step("strip-prefix", value)])
    with pytest.raises(RuleError, match="101 passes; 100 is the limit"):
        recipes.text([recipes.Step("unwrap")] * 101)
    with pytest.raises(RuleError, match="10,001 texts; 10,000 is the limit"):
        recipes.text([recipes.Step("drop", ["a"] * 10_001)])


def test_a_list_that_two_passes_share_is_written_twice(tmp_path):
    shared = ["a", "b"]
    steps = [recipes.Step("select", shared), recipes.Step("drop", shared)]
    (tmp_path / "r.yaml").write_text(recipes.text(steps))
    assert "*" not in recipes.text(steps)
    assert recipes.read(tmp_path / "r.yaml") == steps


# -------------------------------------------------------------------------------------------------------- pipes


def piped(data):
    """The name of a pipe into which DATA is written, as `<(command)` makes one, and who writes."""
    reading, writing = os.pipe()

    def feed():
        with contextlib.suppress(BrokenPipeError):
            for part in data:
                os.write(writing, part)
        os.close(writing)

    writer = threading.Thread(target=feed)
    writer.start()
    return f"/dev/fd/{reading}", reading, writer


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="a name for an open file is needed")
def test_a_pipe_is_read_as_a_file_is():
    name, reading, writer = piped([RECIPE.encode(), b"- unwrap\n", b"- drop: [a]\n"])
    assert recipes.read(name) == [recipes.Step("unwrap"), recipes.Step("drop", ["a"])]
    writer.join()
    os.close(reading)


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="a name for an open file is needed")
def test_a_pipe_without_end_is_refused_at_the_limit():
    name, reading, writer = piped(b"# and so on\n" * 1000 for _ in iter(int, 1))
    with pytest.raises(RuleError, match="has more than 1,048,576 characters"):
        read_text(name)
    os.close(reading)
    writer.join()


# -------------------------------------------------------------------------------------------------------- JSON

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_json_is_read_as_it_was_written(value):
    assert types_of(read_json(json.dumps(value))) == types_of(value)
    assert types_of(read_json(json.dumps(value, ensure_ascii=True).encode())) == types_of(value)


@given(st.text('[]{},:"1e\\a\u00e9 -.tnullrefs') | st.binary())
def test_what_is_no_json_is_malformed_and_nothing_else(raw):
    try:
        found = read_json(raw)
    except Malformed:
        return
    assert types_of(found) == types_of(json.loads(raw))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"[" * 100_000, "its header is not JSON that ckptool reads: more than 64 lists and objects deep"),
        (b"[" * 65 + b"]" * 65, "more than 64 lists and objects deep"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "more than 64 lists and objects deep"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "its header names 'c' twice"),
        (b"[NaN]", "its header is not JSON: NaN is not a JSON number"),
        (b"[" + b"1" * 5000 + b"]", "its header is not JSON"),
        (b"\xff", "its header is not JSON"),
        (b"\xef\xbb\xbf{}", "its header is not JSON"),
    ],
    ids=range(8),
)
def test_json_that_is_more_than_plain_data_is_refused(raw, said):
    with pytest.raises(Malformed) as caught:
        read_json(raw, "x", "its header")
    assert said in caught.value.what
    assert len(caught.value.what) < 250
    assert read_json(b"[" * 64 + b"]" * 64)


def test_a_value_that_stands_in_many_places_is_counted_before_it_becomes_json():
    value: object = 1
    for _ in range(30):
        value = (value, value)
    deep: object = []
    for _ in range(33):
        deep = [deep]
    circle: list[object] = []
    circle.append(circle)
    for bad in (value, deep, circle, [float("nan")], {"a": {1, 2}}):
        with pytest.raises((TypeError, ValueError)):
            through_json(bad)
    shared = [1, 2]
    assert through_json({"a": (shared, shared), 1: None}) == {"a": [[1, 2], [1, 2]], "1": None}


def test_what_is_written_as_json_can_be_read():
    deep: object = 1
    for _ in range(documents.DEEPEST_JSON // 2):
        deep = [deep]
    assert read_json(json.dumps({"version": 1, "_metadata": {"": {"a": through_json(deep)}}}))


# ---------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a\x1bb", "'a\\x1bb'"),
        (4, "'4'"),
        (False, "'False'"),
        (None, "'None'"),
        (10**5000, "a number of many digits"),
        ([[1] * 100], "a list of 1 item"),
        ((), "a tuple of 0 items"),
        ({"a": 1}, "a dict of 1 entry"),
        (b"abc", "a bytes"),
    ],
    ids=range(9),
)
def test_a_value_is_told_in_few_words_whatever_is_in_it(value, said):
    assert in_words(value) == said


def test_yaml_that_is_written_has_no_half_characters():
    with pytest.raises(RuleError, match="half a character"):
        yaml_text(["a\udc80"], "x")
    assert yaml_text([r"a\udc80"], "x") == "- a\\udc80\n"
    assert ckptool.RuleError is RuleError
