"""Retention: how many snapshots stay, and which never go."""

import random
from collections import Counter

from rollcage.sandbox.manager.retention import expired_snapshots
from rollcage.sandbox.types import Snapshot


def snapshot(number: int, sandbox_id: str = "s") -> Snapshot:
    return Snapshot(f"{sandbox_id}-{number}", sandbox_id, f"image:{sandbox_id}-{number}", "host", float(number))


def ids(snapshots: list[Snapshot]) -> list[str]:
    return [each.id for each in snapshots]


def test_S17_twenty_commits_with_a_retention_of_five_leave_five_images():
    kept: list[Snapshot] = []
    for number in range(20):  # as the manager does it: after each commit
        kept.append(snapshot(number))
        expired = expired_snapshots(kept, {f"s-{number}"}, max_per_sandbox=5)
        kept = [each for each in kept if each not in expired]
        assert len(kept) <= 5
    assert ids(kept) == ["s-15", "s-16", "s-17", "s-18", "s-19"]
    every = [snapshot(number) for number in range(20)]
    assert ids(expired_snapshots(every, (), max_per_sandbox=5)) == [f"s-{number}" for number in range(15)]


def test_each_sandbox_keeps_its_own_newest():
    every = [snapshot(number, sandbox_id) for number in range(3) for sandbox_id in "ab"]
    assert ids(expired_snapshots(every, (), max_per_sandbox=2)) == ["a-0", "b-0"]


def test_the_oldest_of_all_go_where_there_are_too_many_in_all():
    every = [snapshot(number, f"s{number}") for number in range(6)]
    assert ids(expired_snapshots(reversed(every), (), max_snapshots=4)) == ["s0-0", "s1-1"]


def test_a_restore_source_stays_though_it_is_the_oldest_and_another_goes_in_its_place():
    every = [snapshot(number) for number in range(4)]
    assert ids(expired_snapshots(every, {"s-0"}, max_per_sandbox=2)) == ["s-1", "s-2"]
    assert ids(expired_snapshots(every, {"s-0"}, max_snapshots=2)) == ["s-1", "s-2"]


def test_more_than_the_limit_stays_where_all_are_needed():
    every = [snapshot(number) for number in range(4)]
    assert expired_snapshots(every, {each.id for each in every}, max_per_sandbox=1, max_snapshots=1) == []


def test_equal_times_are_told_apart_by_id_so_that_every_run_is_the_same():
    every = [Snapshot(name, "s", name, "host", 1.0) for name in "dbca"]
    assert ids(expired_snapshots(every, (), max_per_sandbox=2)) == ["a", "b"]


def test_random_sets_meet_both_limits_and_lose_no_more_and_nothing_newer_than_they_must():
    for seed in range(500):
        rng = random.Random(seed)
        every = [snapshot(number, rng.choice("abcde")) for number in range(rng.randint(0, 40))]
        needed = {each.id for each in every if rng.random() < rng.choice([0.0, 0.2, 0.7])}
        rng.shuffle(every)
        max_per_sandbox, max_snapshots = rng.randint(1, 8), rng.randint(1, 30)
        expired = expired_snapshots(every, needed, max_per_sandbox=max_per_sandbox, max_snapshots=max_snapshots)
        kept = [each for each in every if each not in expired]
        free = [each for each in kept if each.id not in needed]
        assert not needed & set(ids(expired))
        assert ids(expired) == ids(sorted(expired, key=lambda each: each.time))
        assert len(set(ids(expired))) == len(expired)
        for sandbox_id, count in Counter(each.sandbox_id for each in kept).items():
            assert count <= max_per_sandbox or all(each.sandbox_id != sandbox_id for each in free)
        assert len(kept) <= max_snapshots or not free
        again = expired_snapshots(kept, needed, max_per_sandbox=max_per_sandbox, max_snapshots=max_snapshots)
        assert again == []  # doing it twice removes nothing more
        for gone in expired:  # putting one back, the newest included, would break a limit
            of_it = sum(each.sandbox_id == gone.sandbox_id for each in kept) + 1
            assert of_it > max_per_sandbox or len(kept) + 1 > max_snapshots
            same = [each for each in free if each.sandbox_id == gone.sandbox_id]
            assert all(each.time > gone.time for each in same)  # within a sandbox the oldest goes first
