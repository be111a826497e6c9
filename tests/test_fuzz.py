"""Some mutants of every format, always the same ones. `make fuzz` asks of as many as there is time for."""

import subprocess
import sys
from pathlib import Path

import pytest
from programs import unwatched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is watched is told by /proc")

FUZZ = Path(__file__).parent / "fuzz"
SAMPLES = sorted(path for path in (FUZZ / "samples").iterdir() if path.name != "README.md")
#: Of each family of formats, and always the same ones, which find what is broken anew. `make fuzz` asks of others.
MUTANTS = 60
DIFFERENCES = 20


def run(*words):
    """A module of the fuzzing."""
    return run_program("-m", *words)


def run_program(*words):
    """Python, in a process of its own: what it watches there cannot be left unwatched again."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command, cwd=FUZZ.parents[1], env=unwatched(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def seeds(torch, tmp_path_factory):
    pytest.importorskip("safetensors")
    folder = tmp_path_factory.mktemp("fuzz")
    return "--seeds", folder / "seeds", "--findings", folder / "findings"


def test_mutants_of_every_format_are_read_or_refused_with_a_clear_line(seeds):
    told = run("tests.fuzz", *seeds, "run", "all", "--mutants", MUTANTS)
    assert told.count(f"{MUTANTS} mutants") == 14
    assert f"hdf5: {MUTANTS // 30} mutants" in told
    assert "FINDING" not in told
    assert "VALID" not in told


def test_where_others_take_a_mutant_too_they_find_the_same_tensors(seeds):
    families = "zip legacy safetensors sharded".split()
    told = run("tests.fuzz.differential", *families, *seeds, "--mutants", DIFFERENCES)
    assert told.count(" files; both take ") == len(families)


def test_nothing_that_was_found_once_is_found_again():
    assert run("tests.fuzz", "files", *SAMPLES) == ""


PROGRAM = """
import random, sys
from pathlib import Path
from tests.fuzz import judge

judge.MOST_SECONDS, judge.MOST_MEGABYTES = 1, 64

class Careless(judge.Judge):
    def _ask(self, path, rng, everything):
        self._try("open", lambda: self.careless(path))

def hang(path):
    while True:
        pass

folder = Path(sys.argv[1])
asks = Careless(folder / "work", torch=False)
CARELESS = {
    "write": lambda path: path.with_suffix(".new").write_text(""),
    "import": lambda path: __import__("colorsys"),
    "run": lambda path: eval("1"),
    "start": lambda path: __import__("os").system("true"),
    "remove": lambda path: path.unlink(),
    "raise": lambda path: {}["x"],
    "take": lambda path: len(b"x" * (100 << 20)),
    "hang": hang,
    "leave": lambda path: (asks.temporary / "left").write_text(""),
    "read": lambda path: path.read_bytes(),
}
for name, asks.careless in CARELESS.items():
    (folder / "in").write_text("")
    print(name, *[one.asked for one in asks.ask(folder / "in", random.Random(0))])
"""

NOTICED = """
write open
import import
run compile exec
start os.system
remove os.remove
raise open
take memory
hang time
leave leftovers
read
"""


@pytest.mark.same_without_torch
def test_the_judge_notices_what_must_not_happen(tmp_path):
    assert run_program("-c", PROGRAM, tmp_path).strip() == NOTICED.strip()
