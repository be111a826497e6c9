"""The processes that torchrun started for one command, and how they talk: over the key-value store of the launcher.

Only small texts go through it, as JSON: what each rank plans, what it has finished, why it failed. Nothing is
unpickled, and no tensor is sent: files are what the ranks share. A process group of torch is not needed, so a rank that
dies leaves nobody in a collective that never ends: whoever waits looks every few milliseconds whether another rank has
failed, and a rank that has not been heard of for a minute counts as failed.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from ..errors import CheckpointError, RuleError, counted, printable
from .launcher import is_launched, store_of_launcher, tell_launcher
from .texts import Texts

_T = TypeVar("_T")

#: Seconds in which all ranks have to say that they are there, and after which one that says nothing counts as failed.
MEETING = 60.0
SILENCE = 60.0
#: Seconds between two looks at the other ranks, for the thread that does it and for one that waits for an answer.
_LOOK = 0.5
_SHORTEST, _LONGEST = 0.001, 0.05
_MOST_NAMED = 6
#: Seconds in which the rank that failed says so to the user, before the others end.
_HEAR_OUT = 20.0
#: What stands in place of a sign of life when a rank has left.
_LEFT = "left"


class RankFailed(CheckpointError, RuntimeError):
    """Another rank failed, or died, so this one ends as well.

    Attributes:
        rank: which.
        is_said: whether that rank says so itself.
    """

    def __init__(self, rank: int, text: str, *, is_said: bool) -> None:
        super().__init__(text)
        self.rank = rank
        self.is_said = is_said


class Group:
    """The ranks of one command.

    Attributes:
        rank: the number of this process, from 0.
        size: how many there are.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        """Nobody is waited for before `meet`.

        Args:
            store: a `torch.distributed.Store` that all ranks reach and nobody else uses.
            rank, size: as above.
        """
        self.rank, self.size = rank, size
        self._texts = Texts(store, self._gone)
        self._asked = 0
        self._lock = threading.Lock()
        self._done = 0  # bytes that the others do not know of
        self._posts: list[Any] = []
        self._sent = 0
        self._taken = [0] * size
        self._progress: Callable[[int], None] | None = None
        self._take: Callable[[int, Any], None] | None = None
        self._failure: BaseException | None = None
        self._talks: bool | None = None  # whether this rank tells the user what failed; None if nothing did
        self._leaving = threading.Event()
        self._threads: list[threading.Thread] = []

    # -- meeting

    @classmethod
    def of_launcher(cls, words: list[str], environment: Mapping[str, str] | None = None) -> Group | None:
        """The group of the torchrun that started this process; None if none did.

        Args:
            words: the command, which is the same on all ranks.
            environment: in place of that of this process.

        Raises:
            CheckpointError: the ranks do not find each other, or do not belong together.
        """
        if not is_launched(environment):
            return None
        hint = f"to work in one process: env -u TORCHELASTIC_RUN_ID {' '.join(['ckptool', *words[:1]])} …"
        store, rank, size = store_of_launcher(environment, MEETING, hint)
        group = cls(store, rank, size)
        group.meet({"size": size, "words": words}, hint)
        return group

    @classmethod
    def of_process_group(cls) -> Group:
        """The ranks of the process group that torch's `init_process_group` made. All of them have to ask.

        Raises:
            CheckpointError: there is none, or the ranks do not find each other.
        """
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise RuleError("there is no process group", hint="torch.distributed.init_process_group() comes first")
        store = dist.PrefixStore("ckptool", dist.distributed_c10d._get_default_store())
        group = cls(store, dist.get_rank(), dist.get_world_size())
        group.meet({"size": group.size}, "every rank of the process group has to call this")
        return group

    def meet(self, hello: dict[str, Any], hint: str) -> None:
        """Wait until every rank is there and says the same HELLO.

        The store may hold what an earlier attempt of the launcher left. So rank 0 calls out a new name for this run,
        each rank answers to every name that it hears, and rank 0 lists the answers to its own.

        Raises:
            CheckpointError: one does not come, or says something else.
        """
        until = time.monotonic() + MEETING
        own = {**hello, "host": socket.gethostname(), "own": uuid.uuid4().hex}
        self._texts.run = self._call(own, until, hint) if self.leads else self._answer(own, until, hint)
        for work in (self._beat, self._watch):
            self._threads.append(threading.Thread(target=work, name=f"ranks{work.__name__}", daemon=True))
            self._threads[-1].start()

    def _call(self, own: dict[str, Any], until: float, hint: str) -> str:
        """Rank 0: the name of this run, once all have answered."""
        run = f"{own['own']}/"
        self._texts.set("call", run)
        answers = {0: own}
        pause = _SHORTEST
        while len(answers) < self.size:
            for rank in range(1, self.size):
                if rank not in answers and f"{run}hello/{rank}" in self._texts:
                    answers[rank] = self._texts.get(f"{run}hello/{rank}")
                    what = self._stranger(rank, answers[rank], own)
                    if what:
                        self._texts.set(f"{run}refused", what)
                        raise _on_all(CheckpointError(what, hint="start all nodes with the same command line"))
            pause = self._pause(pause, until, set(range(self.size)) - answers.keys(), hint)
        self._texts.set(f"{run}met", [answers[rank]["own"] for rank in range(self.size)])
        return run

    def _answer(self, own: dict[str, Any], until: float, hint: str) -> str:
        """Any other rank: the name of this run, once rank 0 has listed the answer of this one."""
        heard: set[str] = set()
        pause = _SHORTEST
        while True:
            run = self._texts.get("call") if "call" in self._texts else None
            if run is not None and run not in heard:
                heard.add(run)
                self._texts.set(f"{run}hello/{self.rank}", own)
            for one in heard:
                if f"{one}met" in self._texts and own["own"] in self._texts.get(f"{one}met"):
                    return one
            if run is not None and f"{run}refused" in self._texts:
                raise _on_all(CheckpointError(self._texts.get(f"{run}refused")))
            pause = self._pause(pause, until, {0}, hint)

    def _pause(self, pause: float, until: float, missing: set[int], hint: str) -> float:
        """Wait a little for MISSING ranks, and give how long to wait the next time."""
        if missing and time.monotonic() > until:
            named = ", ".join(map(str, sorted(missing)[:_MOST_NAMED]))
            raise CheckpointError(
                f"rank {self.rank} of {self.size} waited {MEETING:g} s for {counted(len(missing), 'rank')} "
                f"that did not come: {named}",
                hint=hint,
            )
        time.sleep(pause)
        return min(2 * pause, _LONGEST)

    def _stranger(self, rank: int, theirs: dict[str, Any], mine: dict[str, Any]) -> str:
        """What is wrong with the answer of a rank, "" if nothing is."""
        if theirs.get("size") != mine.get("size"):
            return f"rank {rank} was started as one of {theirs.get('size')}, rank 0 as one of {mine.get('size')}"
        if any(theirs.get(name) != mine[name] for name in mine if name not in ("host", "own")):
            return f"rank {rank} on {printable(str(theirs.get('host')), 60)} was started with another command"
        return ""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes the index, gives the target its name, and talks to the user."""
        return self.rank == 0

    # -- agreeing

    def exchange(self, value: Any) -> list[Any]:
        """Give every rank the VALUE of every rank, by rank. All ranks have to call it, as often as each other.

        Args:
            value: plain data, as JSON has it.

        Raises:
            RankFailed: another rank failed meanwhile.
        """
        self._asked += 1
        number = self._asked
        if not self.leads:
            self._texts.set(f"value/{number}/{self.rank}", value)
            return list(self._wait_for(f"all/{number}", 0))
        values = [value, *(self._wait_for(f"value/{number}/{rank}", rank) for rank in range(1, self.size))]
        self._texts.set(f"all/{number}", values)
        for rank in range(1, self.size):
            self._texts.delete(f"value/{number}/{rank}")
        if number > 1:  # everybody has asked for this one, so all have had the last
            self._texts.delete(f"all/{number - 1}")
        return list(json.loads(json.dumps(values)))  # as the others get it: tuples are lists

    def agree(self, work: Callable[[], _T], told: Callable[[_T], Any] = lambda _: None) -> tuple[_T, list[Any]]:
        """Do the same WORK on every rank, and go on only if it succeeds on all.

        Args:
            work: what to do; it may raise a `CheckpointError`.
            told: what the other ranks should know of its result, as plain data.

        Returns:
            What WORK gave here, and what every rank told.

        Raises:
            CheckpointError: what WORK raised: on all ranks alike, or, if only some failed, what the first of them said,
                with its number and host.
        """
        caught: CheckpointError | None = None
        try:
            made = work()
            answer: dict[str, Any] = {"told": told(made)}
        except CheckpointError as error:
            caught = error
            answer = {"error": [error.where, error.what, list(error.evidence), error.hint]}
        answer["host"] = socket.gethostname()
        answers = self.exchange(answer)
        failed = [rank for rank, one in enumerate(answers) if "error" in one]
        if not failed:
            return made, [one["told"] for one in answers]
        first = failed[0]
        where, what, evidence, hint = answers[first]["error"]
        if len(failed) == self.size and all(one["error"] == answers[0]["error"] for one in answers) and caught:
            caught.on_all_ranks = True
            raise caught
        well = self.size - len(failed)
        more = [f"{counted(well, 'other rank does', 'other ranks do')} not have this problem"] if well else []
        host = printable(str(answers[first]["host"]), 60)
        refused = CheckpointError(
            f"{f'{printable(where)}: ' if where else ''}{what}",
            where=f"rank {first} on {host}",
            evidence=[*evidence, *more],
            hint=hint,
        )
        refused.on_all_ranks = True
        raise refused

    def led(self, work: Callable[[], _T], told: Callable[[_T], Any] = lambda _: None) -> tuple[_T | None, Any]:
        """Let rank 0 do WORK, and go on only if it succeeds.

        Returns:
            What WORK gave, on rank 0, and what rank 0 told of it, as plain data.

        Raises:
            CheckpointError: what WORK raised, on rank 0.
            RankFailed: rank 0 failed; it says so itself.
        """
        if not self.leads:
            answer = self.exchange(None)[0]
            if "failed" in answer:
                raise RankFailed(0, answer["failed"], is_said=True)
            return None, answer["told"]
        try:
            made = work()
            answer = {"told": told(made)}
        except CheckpointError as error:
            self.exchange({"failed": f"rank 0 failed: {printable(str(error).split(chr(10))[0], 300)}"})
            error.on_all_ranks = True  # they know
            raise
        return made, self.exchange(answer)[0]["told"]

    # -- telling rank 0 on the way

    def advance(self, nbytes: int) -> None:
        """Count bytes that were worked through, and end here if another rank has failed."""
        with self._lock:
            self._done += nbytes
        self.check()

    def post(self, value: Any) -> None:
        """Tell rank 0 something that it should write down. It arrives within a second, in order."""
        with self._lock:
            self._posts.append(value)

    @contextlib.contextmanager
    def following(
        self, progress: Callable[[int], None] | None = None, take: Callable[[int, Any], None] | None = None
    ) -> Any:
        """Let rank 0 follow the others: PROGRESS gets bytes, TAKE the rank and value of each post, from a thread.

        At the end of the block everything has arrived. All ranks have to enter it; only rank 0 gives functions.
        """
        self._progress, self._take = progress, take
        try:
            yield
            self._tell()
            counts = self.exchange(self._sent)
            if self.leads:
                self._collect()
                for rank, count in enumerate(counts):
                    while self._taken[rank] < count:
                        self._collect()
                        self.check()
        finally:
            with self._lock:
                self._progress = self._take = None

    def _tell(self) -> None:
        """Send what has come up since the last time; rank 0 keeps its own."""
        with self._lock:
            done, self._done = self._done, 0
            posts, self._posts = self._posts, []
            progress, take = self._progress, self._take
            if self.leads:
                for value in posts if take else ():
                    take(0, value)  # type: ignore[misc]
            else:
                for value in posts:
                    self._texts.set(f"post/{self.rank}/{self._sent}", value)
                    self._sent += 1
                if done:
                    self._texts.add("bytes", done)
            if self.leads and progress and done:
                progress(done)

    def _collect(self) -> None:
        """Take what the others have sent to rank 0."""
        with self._lock:
            if self._progress is not None:
                total = self._texts.add("bytes", 0)
                self._progress(total - self._reported)
                self._reported = total
            for rank in range(1, self.size):
                while (name := f"post/{rank}/{self._taken[rank]}") in self._texts:
                    value = self._texts.get(name)
                    self._texts.delete(name)
                    self._taken[rank] += 1
                    if self._take is not None:
                        self._take(rank, value)

    _reported = 0

    # -- failing

    def check(self) -> None:
        """End here if another rank has failed, or what `following` calls on this one.

        Raises:
            RankFailed: one has.
        """
        if self._failure is not None:
            raise self._failure

    def fail(self, error: BaseException) -> bool:
        """Tell the others that this rank ends with ERROR. Returns whether this rank should say so to the user.

        Of several that fail at once, one does; where all fail for the same reason, rank 0.
        """
        if isinstance(error, RankFailed):
            self._talks = not error.is_said and (self.leads or error.rank == 0)
            return self._talks
        tell_launcher(error)
        if isinstance(error, CheckpointError) and error.on_all_ranks:
            self._talks = self.leads
            return self.leads
        self._talks = True
        by_signal = not isinstance(error, Exception)
        text = "was ended by a signal" if by_signal else f"failed: {printable(str(error).split(chr(10))[0], 300)}"
        content = {"rank": self.rank, "text": f"rank {self.rank} {text}", "is_said": not by_signal}
        with contextlib.suppress(Exception):
            first = self._texts.set_first("failed", content)
            self._talks = by_signal or first["rank"] == self.rank
        return bool(self._talks)

    def reason(self) -> str:
        """Why another rank failed, if one did: a launcher that ends all does not say so."""
        with contextlib.suppress(Exception):
            if "failed" in self._texts and (said := self._texts.get("failed"))["rank"] != self.rank and said["is_said"]:
                return str(said["text"])
        return ""

    def close(self) -> None:
        """Leave the group: the other ranks no longer expect a sign of life.

        A rank that failed and talks to the user has done so by now. The others wait for that: a launcher that sees them
        end would end the one that talks.
        """
        if self._talks:
            self._quietly(lambda: self._texts.set("said", True))
        elif self._talks is not None:
            until = time.monotonic() + _HEAR_OUT
            while time.monotonic() < until and not self._quietly(lambda: "said" in self._texts):
                time.sleep(_LONGEST)
        self._leaving.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(4 * _LOOK)
        self._quietly(lambda: self._texts.set(f"beat/{self.rank}", _LEFT))

    def _quietly(self, ask: Callable[[], Any]) -> Any:
        """Ask the store, which may be gone."""
        with contextlib.suppress(Exception):
            return ask()
        return True

    def _raise_if_failed(self) -> None:
        if self._failure is None and self._talks is None and "failed" in self._texts:
            said = self._texts.get("failed")
            if said["rank"] != self.rank:
                self._failure = RankFailed(said["rank"], printable(said["text"], 400), is_said=said["is_said"])
        self.check()

    def _beat(self) -> None:
        """Show that this rank lives, whatever the others and its disks do."""
        turn = 0
        while not self._leaving.wait(_LOOK):
            turn += 1
            with contextlib.suppress(Exception):  # the other thread says that the store is gone
                self._texts.set(f"beat/{self.rank}", str(turn))

    def _watch(self) -> None:
        """Pass on what this rank has done, and look for ranks that failed or fell silent."""
        heard = dict.fromkeys(range(1, self.size) if self.leads else (0,), ("", 0))
        while not self._leaving.wait(_LOOK):
            try:
                self._tell()
                if self.leads:
                    self._collect()
                self._raise_if_failed()
                for rank, (before, looks) in list(heard.items()):
                    beat = self._beat_of(rank)
                    if beat == _LEFT:
                        del heard[rank]
                    elif beat != before:
                        heard[rank] = beat, 0
                    elif (looks + 1) * _LOOK > SILENCE:  # looks, not seconds: a machine may have been asleep
                        text = f"rank {rank} has not been heard of for {SILENCE:g} s"
                        self._failure = RankFailed(rank, text, is_said=False)
                        self._texts.set_first("failed", {"rank": rank, "text": text, "is_said": False})
                    else:
                        heard[rank] = before, looks + 1
            except RankFailed as error:
                self._failure = error
                return
            except RuntimeError as error:  # the store is gone, and with it every way to agree
                if not self._leaving.is_set():
                    text = f"the launcher can no longer be reached ({printable(str(error), 120)})"
                    self._failure = RankFailed(self.rank, text, is_said=False)
                return
            except BaseException as error:  # of a function that follows the others: of this rank, whoever calls it
                self._failure = error
                return

    # -- the store

    def _gone(self, error: RuntimeError) -> NoReturn:
        self.check()
        what = "the launcher can no longer be reached: one of its processes has ended"
        raise RankFailed(self.rank, what, is_said=False) from error

    def _wait_for(self, name: str, rank: int) -> Any:
        """What a rank sets under NAME."""
        pause = _SHORTEST
        while name not in self._texts:
            self.check()
            if pause == _LONGEST and self._beat_of(rank) == _LEFT and name not in self._texts:
                self._raise_if_failed()
                raise RankFailed(rank, f"rank {rank} has ended", is_said=False)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)
        return self._texts.get(name)

    def _beat_of(self, rank: int) -> str:
        name = f"beat/{rank}"
        return str(self._texts.get(name)) if name in self._texts else ""


def _on_all(error: CheckpointError) -> CheckpointError:
    """ERROR, which all ranks raise."""
    error.on_all_ranks = True
    return error
