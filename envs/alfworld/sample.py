"""Small games of our own, of all six types, under ALFRED's rules as alfworld brings them along: they need no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from random import Random
from string import Template

from rollcage.envs.alfworld.source import TASK_TYPES, GameText, Row
from rollcage.errors import require

SIZES = {"train": 36, "valid_seen": 12, "valid_unseen": 12}

# Receptacle: whether it opens, and what it can hold.
_KITCHEN = {
    "CounterTop": (False, ("Apple", "Potato", "Mug", "Plate", "Knife", "SaltShaker")),
    "Cabinet": (True, ("Mug", "Plate", "SaltShaker")),
    "Drawer": (True, ("Knife", "SaltShaker")),
    "Fridge": (True, ("Apple", "Potato", "Mug", "Plate")),
    "Microwave": (True, ("Apple", "Potato", "Mug", "Plate")),
    "SinkBasin": (False, ("Apple", "Potato", "Mug", "Plate", "Knife")),
    "DiningTable": (False, ("Apple", "Potato", "Mug", "Plate", "Knife", "SaltShaker")),
}
_BEDROOM = {
    "Bed": (False, ("Book", "Pillow", "CellPhone")),
    "Desk": (False, ("Book", "Pen", "CD", "CellPhone", "DeskLamp")),
    "Drawer": (True, ("Pen", "CD", "CellPhone")),
    "Shelf": (False, ("Book", "Pen", "CD")),
    "Safe": (True, ("CD", "CellPhone")),
}
_ABLE = {
    "cleanable": ("Apple", "Potato", "Mug", "Plate", "Knife"),
    "heatable": ("Apple", "Potato", "Mug", "Plate"),
    "coolable": ("Apple", "Potato", "Mug", "Plate"),
    "sliceable": ("Apple", "Potato"),
    "toggleable": ("DeskLamp",),
}
_TREATED = {"clean": ("cleanable", "isClean"), "heat": ("heatable", "isHot"), "cool": ("coolable", "isCool")}

_PROBLEM = Template("""(define (problem sample) (:domain alfred)
(:objects agent1 - agent $objects)
(:init $init)
(:goal $goal))""")


@dataclass(frozen=True)
class SampleSource:
    """The games of this module."""

    licence: str = ""

    def rows(self) -> Mapping[str, Sequence[Row]]:
        """See `Source.rows`."""
        return {
            split: [
                {"id": str(index), "task_type": TASK_TYPES[index % len(TASK_TYPES)], "game": f"{split}/{index}"}
                for index in range(size)
            ]
            for split, size in SIZES.items()
        }

    def text(self, task_id: str) -> GameText:
        """See `Source.text`."""
        domain, grammar = _logic()
        problem, goal = _write(task_id)
        return GameText(domain, problem, grammar, goal, ())


@lru_cache(maxsize=1)
def _logic() -> tuple[str, str]:
    require("alfworld", "alfworld")
    data = resources.files("alfworld") / "data"
    domain, grammar = ((data / name).read_text(encoding="utf-8") for name in ("alfred.pddl", "alfred.twl2"))
    return domain, grammar


def _write(task_id: str) -> tuple[str, str]:
    """Return the game ``SPLIT/INDEX``, PDDL, and its goal in words."""
    rng = Random(f"alfworld/{task_id}")
    task_type = TASK_TYPES[int(task_id.rpartition("/")[2]) % len(TASK_TYPES)]
    treatment = next((word for word in _TREATED if f"_{word}_" in task_type), None)
    lamp = task_type == "look_at_obj_in_light"
    room = _BEDROOM if lamp or (treatment is None and rng.random() < 0.5) else _KITCHEN
    wanted, target = _choose(rng, room, _ABLE[_TREATED[treatment][0]] if treatment else None)
    things = sorted({thing for _, holds in room.values() for thing in holds} - {"DeskLamp"})
    num = {thing: rng.randint(1, 2) for thing in things} | {wanted: 2}
    places = {kind: rng.randint(1, 2) for kind in room} | dict.fromkeys(("Fridge", "Microwave", "SinkBasin"), 1)
    receptacles = [(kind, _id(kind, n)) for kind in room for n in range(1, places[kind] + 1)]
    objects = [(thing, _id(thing, n)) for thing in things for n in range(1, num[thing] + 1)]
    init = ["(atLocation agent1 loc_0)"]
    for position, (kind, name) in enumerate(receptacles, start=1):
        init += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} loc_{position})"]
        init += [f"(openable {name})"] if room[kind][0] else []
    located = [
        (thing, name, _place(rng, room, receptacles, thing, target if thing == wanted else ""))
        for thing, name in objects
    ]
    located += [("DeskLamp", _id("DeskLamp", 1), "Desk_bar_1")] if room is _BEDROOM else []
    at = {name: position for position, (_, name) in enumerate(receptacles, start=1)}
    for thing, name, place in located:
        init += [f"(objectType {name} {thing}Type)", f"(inReceptacle {name} {place})"]
        init += [f"(objectAtLocation {name} loc_{at[place]})"]
        init += [f"({ability} {name})" for ability, able in _ABLE.items() if thing in able]
        init += [f"(pickupable {name})"] if thing != "DeskLamp" else []
    init += [f"(canContain {kind}Type {thing}Type)" for kind, (_, holds) in room.items() for thing in holds]
    types = {"object": [name for _, name, _ in located], "receptacle": [name for _, name in receptacles]}
    types["location"] = [f"loc_{position}" for position in range(len(receptacles) + 1)]
    types["otype"] = [f"{thing}Type" for thing in sorted({*things, "DeskLamp", "Knife", "ButterKnife"})]
    types["rtype"] = [f"{kind}Type" for kind in sorted({*room, "Fridge", "Microwave", "SinkBasin"})]
    declared = " ".join(f"{name} - {kind}" for kind, names in types.items() for name in names)
    goal, words = _goal(task_type, treatment, wanted, target)
    return _PROBLEM.substitute(objects=declared, init=" ".join(init), goal=goal), words


def _choose(rng: Random, room: Mapping[str, tuple[bool, Sequence[str]]], able: Sequence[str] | None) -> tuple[str, str]:
    """Return what is to be put where: something that is at home elsewhere too."""
    pairs = [
        (thing, kind)
        for kind, (_, holds) in room.items()
        for thing in holds
        if (able is None or thing in able) and sum(thing in other for _, other in room.values()) > 1
    ]
    return rng.choice(pairs)


def _place(
    rng: Random, room: Mapping[str, tuple[bool, Sequence[str]]], places: Sequence[tuple[str, str]], thing: str, but: str
) -> str:
    return rng.choice([name for kind, name in places if thing in room[kind][1] and kind != but])


def _id(kind: str, number: int) -> str:
    """Return an id of which alfworld makes the name ("mug 1"); that of a basin has to end like this."""
    return f"{kind.removesuffix('Basin')}_bar_{number}" + ("_bar_SinkBasin" if kind == "SinkBasin" else "")


def _goal(task_type: str, treatment: str | None, wanted: str, target: str) -> tuple[str, str]:
    thing, place = wanted.lower(), target.lower()
    if task_type == "look_at_obj_in_light":
        lit = (
            "(exists (?t - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?t DeskLampType) "
            "(isToggled ?t) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?t ?r)))"
        )
        held = f"(exists (?o - object ?a - agent) (and (objectType ?o {wanted}Type) (holds ?a ?o)))"
        return f"(and {lit} {held})", f"look at {thing} under the desklamp"
    there = f"(objectType %s {wanted}Type) (receptacleType ?r {target}Type) (inReceptacle %s ?r)"
    if task_type == "pick_two_obj_and_place":
        both = f"{there % ('?o', '?o')} {there % ('?p', '?p')} (not (= ?o ?p))"
        return f"(exists (?r - receptacle ?o - object ?p - object) (and {both}))", f"put two {thing} in {place}"
    done = f"({_TREATED[treatment][1]} ?o)" if treatment else ""
    words = f"{treatment} some {thing} and put it in {place}" if treatment else f"put a {thing} in {place}"
    return f"(exists (?r - receptacle ?o - object) (and {there % ('?o', '?o')} {done}))", words
