import gc
import os
import signal
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("contract", "oracle")

# Timing is no property of the code under test; what CI finds must be found again on the next run.
settings.register_profile(
    "default", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("long", settings.get_profile("default"), max_examples=2000)
# For a second run of laws that a first one has shown: what matters there is that they hold without torch, too.
settings.register_profile("brief", settings.get_profile("ci"), max_examples=8)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "default"))


# nohup and shells in the background let signals be ignored, which the programs that tests start would inherit. What is
# handled here is at its default there, and the suite itself goes on.
for _name in ("SIGINT", "SIGHUP", "SIGTERM"):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) is signal.SIG_IGN:
        signal.signal(getattr(signal, _name), lambda *_: None)


#: Of small tensors sums are faster on one thread, and the processes that share the suite have no more than a core each.
#: torch, numpy and the programs that tests start read it when they are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _synced(descriptor):
    """Instead of `os.fsync`, for a descriptor that is one: no file of a test has to outlive the machine.

    A test of what is synced, and when, puts its own in this place, and counts or fails the calls.
    """
    os.fstat(descriptor)


os.fsync = _synced


def pytest_configure():
    """Let a test that takes all memory fail. Killed, its process would leave the others waiting for ever."""
    if sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (20 << 30, hard))


def pytest_collection_modifyitems(config, items):
    """Leave out what the run without torch need not repeat."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "brief":
        few = few_of_each([item for item in items if item.get_closest_marker("same_without_torch") is None])
        config.hook.pytest_deselected(items=[item for item in items if item not in few])
        items[:] = [item for item in items if item in few]


#: Files whose tests share what ranks saved: the fixture `ranks` of tests/formats.
_WITH_RANKS = ("test_dcp_oracle.py", "test_matrix.py", "test_rank_files.py")


def shared_by(nodeid):
    """What a test shares expensive fixtures with: its file, or more. One worker runs all of that.

    Tests of the zoo and of the documentation share nothing and take long: they fill up whoever is done.
    """
    path = nodeid.partition("::")[0]
    folder, _, name = path.rpartition("/")
    if name in ("test_zoo.py", "test_docs.py"):
        return nodeid
    if folder.endswith("/train"):
        return folder
    return "ranks" if name in _WITH_RANKS else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share the suite out by `shared_by`. The mark `xdist_group` does nothing with pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return shared_by(nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session):
    """Remove data of coverage that cannot be read, before pytest-cov puts all of it together."""
    result = yield
    if getattr(session.config.option, "cov_source", None) and not hasattr(session.config, "workerinput"):
        from half_written import remove

        remove(session.config.rootpath)
    return result


def pytest_collection_finish():
    """Thousands of tests were collected, and stay: nothing of them is garbage that has to be looked for again."""
    gc.collect()
    gc.freeze()


def few_of_each(items, most=3):
    """Of ITEMS at most three parametrizations of each test: the first, one from the middle, and the last.

    For the run without torch. Whether torch is there changes which code runs, and that does not depend on the one of
    two hundred files or options that a test is told; the run with torch takes all of them. Tests that are marked
    `same_without_torch` are of what never asks for it (names, texts, trees, signals, what matching makes of shapes):
    `test_layers.py` shows in which modules torch may be imported.
    """
    each = {}
    for item in items:
        each.setdefault((item.path, getattr(item, "cls", None), getattr(item, "originalname", item.name)), []).append(
            item
        )
    return {
        one
        for ones in each.values()
        for one in (ones if len(ones) <= most else (ones[0], ones[len(ones) // 2], ones[-1]))
    }


@pytest.fixture(scope="session")
def torch():
    """torch, where it is installed. Modules that are all about it begin with importorskip instead."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="session")
def trainer_runs(tmp_path_factory):
    """A folder with the runs of DeepSpeed in `deepspeed/`, and those of Megatron in `megatron/`. Tests read them, and
    change copies.
    """
    folder = tmp_path_factory.mktemp("runs")
    for trainer in ("deepspeed", "megatron"):
        with tarfile.open(Path(__file__).parents[1] / "fixtures" / trainer / "runs.tar.xz") as packed:
            packed.extractall(folder / trainer, filter="data")
    return folder


@pytest.fixture(scope="session")
def forks():
    """Runs modules as programs, in forks of one process that has imported torch; see forked.py."""
    from forked import Forks

    started = Forks()
    yield started
    started.end()


@pytest.fixture
def in_new_python():
    """Run a program in a fresh interpreter and return what it prints; it fails the test if it fails."""
    import subprocess

    from programs import unwatched

    def run(program, *args, **environment):
        command = [sys.executable, "-c", program, *map(str, args)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, env={**unwatched(), **environment}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def bytes_read(monkeypatch):
    """A list to which every read of an input file adds the number of bytes that it took."""
    from ckptool.disk.files import File

    taken = []
    read, read_into = File.read, File.read_into

    def counted(self, offset, length):
        taken.append(length)
        return read(self, offset, length)

    def counted_into(self, buffer, offset):
        taken.append(len(buffer))
        return read_into(self, buffer, offset)

    monkeypatch.setattr(File, "read", counted)
    monkeypatch.setattr(File, "read_into", counted_into)
    return taken
