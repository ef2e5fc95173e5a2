"""Placement: the rules of where a sandbox may go, and why it may not."""

import random
from dataclasses import replace

import pytest

from rollcage.sandbox.errors import BadSpec, DiskPressure, HostUnavailable, Overloaded, SandboxError
from rollcage.sandbox.manager.placement import HostLimits, choose_host
from rollcage.sandbox.types import MIB, HostInfo, SandboxSpec

GIB = 1024 * MIB
SPEC = SandboxSpec(cpus=1.0, memory_bytes=512 * MIB)
LIMITS = HostLimits(max_sandboxes=10, max_starts=2, cpu_overcommit=2.0, memory_share=0.5)


def host(name: str, **changes: object) -> HostInfo:
    return replace(HostInfo(name, f"fake://{name}", "open", num_cpus=4, memory_bytes=8 * GIB), **changes)


def test_the_least_loaded_host_takes_it():
    hosts = [host("a", num_sandboxes=2, reserved_cpus=2.0, reserved_memory_bytes=GIB), host("b")]
    assert choose_host(SPEC, hosts, LIMITS) == "b"


def test_measured_load_counts_beside_what_is_promised():
    hosts = [host("a", load=3.9), host("b", num_sandboxes=1, reserved_cpus=1.0, reserved_memory_bytes=512 * MIB)]
    assert choose_host(SPEC, hosts, LIMITS) == "b"
    assert choose_host(SPEC, hosts, replace(LIMITS, load_weight=0.0)) == "a"


def test_load_is_compared_by_the_size_of_the_host():
    hosts = [host("big", num_cpus=64, memory_bytes=64 * GIB, load=8.0), host("small", load=2.0)]
    assert choose_host(SPEC, hosts, replace(LIMITS, load_weight=1.0)) == "big"


def test_the_scarcest_of_cpu_memory_and_places_decides():
    free = host("z")
    assert choose_host(SPEC, [host("a", reserved_cpus=4.0), free], LIMITS) == "z"
    assert choose_host(SPEC, [host("a", reserved_memory_bytes=2 * GIB), free], LIMITS) == "z"
    assert choose_host(SPEC, [host("a", num_sandboxes=8), free], LIMITS) == "z"


@pytest.mark.parametrize(
    ("spec", "busy", "small"),
    [  # what it asks for itself counts: on the small host it would be most of what there is
        (replace(SPEC, cpus=2.0), {"reserved_cpus": 1.0}, {"num_cpus": 2}),
        (replace(SPEC, memory_bytes=2 * GIB), {"reserved_memory_bytes": GIB}, {"memory_bytes": 5 * GIB}),
    ],
)
def test_a_large_one_goes_to_the_large_host_though_the_small_one_is_empty(
    spec: SandboxSpec, busy: dict[str, float], small: dict[str, int]
):
    large_host = host("z", num_cpus=16, memory_bytes=32 * GIB, **busy)
    assert choose_host(spec, [host("a", **small), large_host], LIMITS) == "z"


def test_the_overcommit_and_the_memory_share_make_shares_comparable():
    """5 of 8 CPUs (4 cores twice), this one counted, are less than 3 of 4 GiB (half of 8), this one counted."""
    cpus = host("z", reserved_cpus=4.0)
    memory = host("a", reserved_memory_bytes=3 * GIB - 512 * MIB)
    assert choose_host(SPEC, [memory, cpus], LIMITS) == "z"
    assert choose_host(SPEC, [replace(memory, reserved_memory_bytes=GIB), cpus], LIMITS) == "a"


def test_hosts_may_come_as_an_iterator_and_the_least_limits_are_no_error():
    assert choose_host(SPEC, iter([host("a")]), HostLimits(1, 1, 1.0, 1.0, 0.0)) == "a"
    assert choose_host(SPEC, [host("a")], HostLimits(1, 1, 1.0, 0.1, 1.0), num_starting={"b": 9}) == "a"


def test_ties_go_to_the_smaller_name_in_whatever_order_the_hosts_come():
    hosts = [host("c"), host("a"), host("b")]
    for seed in range(10):
        random.Random(seed).shuffle(hosts)
        assert choose_host(SPEC, hosts, LIMITS) == "a"


@pytest.mark.parametrize("condition", ["drained", "quarantined", "full"])
def test_only_open_hosts_take_new_ones(condition: str):
    assert choose_host(SPEC, [host("a", condition=condition), host("b", num_sandboxes=9)], LIMITS) == "b"


def test_no_host_at_all_none_that_answers_and_none_that_is_open_are_host_unavailable():
    for hosts in ([], [host("a", num_cpus=0, memory_bytes=0)], [host("a", condition="drained")]):
        with pytest.raises(HostUnavailable):
            choose_host(SPEC, hosts, LIMITS)
    with pytest.raises(HostUnavailable, match=r"a: drained; b: quarantined; c: has not answered yet"):
        choose_host(
            SPEC, [host("a", condition="drained"), host("b", condition="quarantined"), host("c", num_cpus=0)], LIMITS
        )


def test_hosts_that_are_up_but_full_are_disk_pressure():
    with pytest.raises(DiskPressure, match="b: full"):
        choose_host(SPEC, [host("a", condition="quarantined"), host("b", condition="full")], LIMITS)


def test_no_room_now_is_overloaded_and_says_what_is_short_on_each_host():
    hosts = [
        host("places", num_sandboxes=10),
        host("memory", reserved_memory_bytes=4 * GIB - 511 * MIB),
        host("cpus", reserved_cpus=7.5),
        host("starts"),
    ]
    with pytest.raises(Overloaded) as caught:
        choose_host(SPEC, hosts, LIMITS, num_starting={"starts": 2})
    for words in (
        "places: 10 sandboxes of 10 (max_sandboxes)",
        "memory: 3585 MiB of 4096 MiB of memory are promised (memory_share 0.5), it asks for 512 MiB",
        "cpus: 7.5 of 8 CPUs are promised (4 cores, cpu_overcommit 2), it asks for 1",
        "starts: 2 sandboxes are being started (max_starts)",
        "Settings(limits=HostLimits(...))",
    ):
        assert words in str(caught.value)


def test_by_default_a_hundred_sandboxes_of_one_cpu_fit_on_two_cores_where_the_memory_is_there():
    small = replace(SPEC, memory_bytes=128 * MIB)
    two_cores = host("a", num_cpus=2, memory_bytes=24 * GIB)
    held = {"num_sandboxes": 99, "reserved_cpus": 99.0, "reserved_memory_bytes": 99 * 128 * MIB}
    assert choose_host(small, [replace(two_cores, **held)]) == "a"
    with pytest.raises(Overloaded, match=r"12672 MiB of 22118 MiB of memory .*asks for 12288 MiB"):
        choose_host(replace(small, memory_bytes=12 * GIB), [replace(two_cores, **held)])


def test_a_host_that_is_kept_for_another_is_overloaded_not_unavailable():
    with pytest.raises(Overloaded, match="waited longer"):
        choose_host(SPEC, [host("a")], LIMITS, kept={"a"})
    assert choose_host(SPEC, [host("a"), host("b")], LIMITS, kept={"a"}) == "b"


def test_the_last_bit_of_memory_and_cpu_may_be_promised_and_not_one_more():
    exact = host("a", reserved_memory_bytes=4 * GIB - 512 * MIB, reserved_cpus=7.0)
    assert choose_host(SPEC, [exact], LIMITS) == "a"
    with pytest.raises(Overloaded):
        choose_host(replace(SPEC, memory_bytes=512 * MIB + 1), [exact], LIMITS)
    with pytest.raises(Overloaded):
        choose_host(replace(SPEC, cpus=1.01), [exact], LIMITS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_bytes": 5 * GIB}, "5120 MiB of memory, and it may promise 4096 MiB"),
        ({"cpus": 4.5}, "4.5 CPUs, and it has 4"),  # the overcommit is for many, not for one
        ({"cpus": 0.0}, "more than 0"),
        ({"memory_bytes": 0}, "more than 0"),
        ({"memory_bytes": -1}, "more than 0"),
    ],
)
def test_what_fits_on_no_host_even_if_empty_is_a_bad_specification(changes: dict[str, float], words: str):
    busy_and_away = [host("a", num_sandboxes=10), host("b", condition="drained")]
    with pytest.raises(BadSpec, match=words):
        choose_host(replace(SPEC, **changes), busy_and_away, LIMITS)


def test_what_fits_only_on_a_host_that_is_away_or_unknown_is_no_bad_specification():
    large = replace(SPEC, memory_bytes=5 * GIB)
    with pytest.raises(HostUnavailable):
        choose_host(large, [host("a"), host("b", memory_bytes=64 * GIB, condition="quarantined")], LIMITS)
    with pytest.raises(HostUnavailable):
        choose_host(large, [host("a"), host("b", num_cpus=0, memory_bytes=0)], LIMITS)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_sandboxes": 0},
        {"max_starts": 0},
        {"cpu_overcommit": 0.5},
        {"memory_share": 0.0},
        {"memory_share": 1.5},
        {"load_weight": 2.0},
    ],
)
def test_limits_that_cannot_be_are_refused_by_name(changes: dict[str, float]):
    with pytest.raises(BadSpec, match=next(iter(changes))):
        HostLimits(**changes)  # type: ignore[arg-type]


def test_random_hosts_filled_one_by_one_are_never_overcommitted_and_are_full_when_refused():
    for seed in range(200):
        rng = random.Random(seed)
        limits = HostLimits(rng.randint(1, 12), 100, rng.choice([1.0, 1.5, 4.0]), rng.choice([0.5, 0.9, 1.0]))
        hosts = {name: host(name, num_cpus=rng.randint(1, 8), memory_bytes=rng.randint(1, 16) * GIB) for name in "abcd"}
        specs = [
            SandboxSpec(cpus=rng.choice([0.1, 0.5, 1.0, 2.0]), memory_bytes=rng.randint(1, 4096) * MIB)
            for _ in range(60)
        ]
        for spec in specs:
            try:
                name = choose_host(spec, hosts.values(), limits)
            except SandboxError as error:
                for each in hosts.values():  # refused: it fits on none, by arithmetic of the test's own
                    fits = (
                        each.num_sandboxes < limits.max_sandboxes
                        and each.reserved_memory_bytes + spec.memory_bytes <= each.memory_bytes * limits.memory_share
                        and each.reserved_cpus + spec.cpus <= each.num_cpus * limits.cpu_overcommit + 1e-6
                        and spec.cpus <= each.num_cpus
                    )
                    if fits:
                        raise AssertionError(f"seed {seed}: refused though it fits") from error
                continue
            taken = hosts[name] = replace(
                hosts[name],
                num_sandboxes=hosts[name].num_sandboxes + 1,
                reserved_cpus=hosts[name].reserved_cpus + spec.cpus,
                reserved_memory_bytes=hosts[name].reserved_memory_bytes + spec.memory_bytes,
            )
            assert taken.num_sandboxes <= limits.max_sandboxes
            assert taken.reserved_memory_bytes <= taken.memory_bytes * limits.memory_share
            assert taken.reserved_cpus <= taken.num_cpus * limits.cpu_overcommit + 1e-6
            assert spec.cpus <= taken.num_cpus
