"""How processes agree, and how they end together when one of them cannot go on."""

import time

import pytest
from several import Store, as_ranks, succeeded

from ckptool.errors import CheckpointError, Unreadable
from ckptool.ranks import Group, RankFailed, group, texts


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(group, "MEETING", 1.0)
    monkeypatch.setattr(group, "_LOOK", 0.02)


def test_every_rank_gets_what_every_rank_gave():
    def work(ranks):
        return [ranks.exchange([ranks.rank, number]) for number in range(5)]

    expected = [[[rank, number] for rank in range(4)] for number in range(5)]
    assert succeeded(as_ranks(4, work)) == [expected] * 4


def test_tuples_come_out_as_lists_on_all_ranks():
    assert succeeded(as_ranks(2, lambda ranks: ranks.exchange((1, (2,))))) == [[[1, [2]], [1, [2]]]] * 2


def test_values_of_old_exchanges_do_not_stay_in_the_store():
    store = Store()
    succeeded(as_ranks(3, lambda ranks: [ranks.exchange("x" * 1000) for _ in range(20)], store))
    assert sum(map(len, store.values.values())) < 10_000


def test_a_value_that_is_longer_than_the_store_takes_goes_in_pieces(monkeypatch):
    monkeypatch.setattr(texts, "_LONGEST_TEXT", 10)
    store = Store()
    given = ["pieces 3", "x" * 57, {"ü": list(range(20))}, ""]
    found = as_ranks(3, lambda ranks: [ranks.exchange([ranks.rank, value]) for value in given], store)
    assert succeeded(found) == [[[[rank, value] for rank in range(3)] for value in given]] * 3
    assert max(map(len, store.values.values())) < 100
    assert not [name for name in store.values if "/value/" in name]


def test_an_error_that_all_ranks_have_is_raised_as_it_is():
    def work(ranks):
        def fail():
            raise Unreadable("no such file", where="in.pth", hint="look")

        ranks.agree(fail)

    found = as_ranks(3, work)
    assert {type(error) for error in found} == {Unreadable}
    assert {str(error) for error in found} == {"in.pth: no such file.\nHint: look"}
    assert all(error.on_all_ranks for error in found)


def test_an_error_of_some_ranks_names_the_first_of_them_on_all():
    def work(ranks):
        def fail():
            if ranks.rank in (1, 3):
                raise Unreadable("no such file", where="in.pth", hint="look")
            return "fine"

        return ranks.agree(fail)

    (text,) = {str(error) for error in as_ranks(4, work)}
    assert text.startswith("rank 1 on ")
    assert "in.pth: no such file." in text
    assert "2 other ranks do not have this problem" in text


def test_what_rank_0_cannot_do_ends_the_others():
    def work(ranks):
        def fail():
            raise Unreadable("is full", where="disk")

        ranks.led(fail)

    first, *others = as_ranks(3, work)
    assert str(first) == "disk: is full."
    assert all(isinstance(error, RankFailed) and error.rank == 0 and error.is_said for error in others)


def test_a_rank_that_fails_ends_those_that_wait_and_those_that_work():
    def work(ranks):
        if ranks.rank == 1:
            time.sleep(0.1)
            raise CheckpointError("it is dark here")
        if ranks.rank == 2:
            while True:
                ranks.advance(1)
                time.sleep(0.001)
        return ranks.exchange(None)

    zero, one, two = as_ranks(3, work)
    assert str(one) == "it is dark here."
    for error in (zero, two):
        assert isinstance(error, RankFailed)
        assert str(error) == "rank 1 failed: it is dark here."


def test_of_ranks_that_fail_one_talks_to_the_user():
    talkers = []

    def work(ranks):
        error = CheckpointError(f"problem of {ranks.rank}")
        if ranks.fail(error):
            talkers.append(ranks.rank)
        raise error

    as_ranks(4, work)
    assert len(talkers) == 1


def test_a_rank_that_says_nothing_any_more_counts_as_failed(monkeypatch):
    monkeypatch.setattr(group, "SILENCE", 0.2)

    def work(ranks):
        if ranks.rank == 1:
            ranks._leaving.set()  # its watcher stops, as when the process is killed
            time.sleep(1.0)
            return None
        return ranks.exchange(None)

    zero, _, two = as_ranks(3, work)
    assert "rank 1 has not been heard of for 0.2 s" in str(zero)
    assert not zero.is_said
    assert isinstance(two, RankFailed)


def test_a_rank_that_does_not_come_is_named():
    alone = Group(Store(), 0, 3)
    with pytest.raises(CheckpointError, match=r"rank 0 of 3 waited 1 s for 2 ranks that did not come: 1, 2"):
        alone.meet({"size": 3}, "look")


def test_ranks_that_were_started_as_different_numbers_of_ranks_say_so():
    found = as_ranks(2, lambda ranks: None, hello=lambda rank: {"size": 2 + rank})
    assert {str(error).splitlines()[0] for error in found} == {"rank 1 was started as one of 3, rank 0 as one of 2."}


def test_a_second_attempt_of_the_launcher_is_not_confused_by_what_the_first_left():
    store = Store()

    def fails(ranks):
        ranks.exchange("first")
        if ranks.rank == 1:
            raise CheckpointError("once")
        ranks.exchange(None)

    as_ranks(3, fails, store)
    assert succeeded(as_ranks(3, lambda ranks: ranks.exchange("second"), store)) == [["second"] * 3] * 3


def test_a_rank_that_is_ended_by_a_signal_ends_the_others():
    def work(ranks):
        if ranks.rank == 1:
            raise KeyboardInterrupt
        return ranks.exchange(None)

    zero, one, two = as_ranks(3, work)
    assert isinstance(one, KeyboardInterrupt)
    assert str(zero) == str(two) == "rank 1 was ended by a signal."
    assert not zero.is_said


def test_a_rank_that_leaves_while_others_wait_for_it_ends_them():
    def work(ranks):
        return None if ranks.rank == 1 else ranks.exchange(None)

    zero, _, two = as_ranks(3, work)
    assert isinstance(zero, RankFailed)
    assert isinstance(two, RankFailed)


def test_the_others_stay_until_the_rank_that_failed_has_said_so():
    ended = []

    def work(ranks):
        try:
            if ranks.rank == 1:
                raise CheckpointError("slow to say")
            return ranks.exchange(None)
        except CheckpointError as error:
            if ranks.fail(error):
                time.sleep(0.4)  # it cleans up, and talks
            ranks.close()
            ended.append(ranks.rank)
            raise

    as_ranks(3, work)
    assert ended.index(1) == 0 or time.monotonic() > 0.4


def test_ranks_with_other_commands_do_not_begin():
    found = as_ranks(2, lambda ranks: None, hello=lambda rank: {"words": ["convert", f"in{rank}"]})
    assert any("was started with another command" in str(error) for error in found)
    assert all(isinstance(error, CheckpointError) for error in found)


def test_rank_0_hears_of_the_bytes_and_posts_of_all_before_the_block_ends():
    heard = []
    bytes_done = []

    def work(ranks):
        take = (lambda rank, post: heard.append((rank, post))) if ranks.leads else None
        with ranks.following(bytes_done.append if ranks.leads else None, take):
            for number in range(50):
                ranks.advance(10)
                ranks.post(number)
        return len(heard) if ranks.leads else None

    assert succeeded(as_ranks(3, work))[0] == 150
    assert [number for rank, number in heard if rank == 2] == list(range(50))
    assert sum(bytes_done) == 1500


def test_the_store_of_the_tests_answers_as_that_of_torch(torch):
    for store in (Store(), torch.distributed.HashStore()):
        assert not store.check(["a"])
        assert store.compare_set("a", "", "1") == b"1"
        assert store.compare_set("a", "", "2") == b"1"
        assert store.add("n", 3) == 3
        assert store.add("n", 0) == 3
        store.set("b", "x")
        assert store.get("b") == b"x"
        assert store.check(["a", "b"])
        assert store.delete_key("b")
        assert not store.check(["b"])


def test_without_torchrun_there_is_no_group(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert Group.of_launcher(["convert"]) is None
    assert Group.of_launcher(["convert"], {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x"}) is None
