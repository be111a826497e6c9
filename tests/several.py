"""Ranks that are threads of one process, over a store in its memory: for tests that need several and start none."""

import threading

from ckptool.ranks import Group


class Store:
    """The part of `torch.distributed.Store` that `Group` uses."""

    def __init__(self):
        self.values = {}
        self.lock = threading.Lock()

    def set(self, name, value):
        with self.lock:
            self.values[name] = value.encode()

    def get(self, name):
        with self.lock:
            return self.values[name]

    def check(self, names):
        with self.lock:
            return all(name in self.values for name in names)

    def add(self, name, amount):
        with self.lock:
            total = int(self.values.get(name, b"0")) + amount
            self.values[name] = str(total).encode()
            return total

    def compare_set(self, name, expected, desired):
        with self.lock:
            now = self.values.get(name)
            if now == expected.encode() or (now is None and not expected):
                self.values[name] = desired.encode()
                return desired.encode()
            return now

    def delete_key(self, name):
        with self.lock:
            return self.values.pop(name, None) is not None


def as_ranks(size, work, store=None, hello=lambda rank: {}):
    """Call WORK with the group of each rank, in threads. Returns what each returned or raised."""
    store = store or Store()
    results = [None] * size

    def one(rank):
        group = Group(store, rank, size)
        try:
            group.meet({"size": size, **hello(rank)}, "hint")
            results[rank] = work(group)
        except BaseException as error:
            group.fail(error)
            results[rank] = error
        finally:
            group.close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return results


def succeeded(results):
    """RESULTS, if none is an exception; else the first of those is raised."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
