"""What requests about schedules of slots may say."""

from __future__ import annotations

from agent.basics import bad, integer, number, refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from agent.routes.generations import Generations
    from agent.shapes import Json

SLOTS = 64
MOST = 1 << 53  # of slots since the first
PERIOD_S = (0.05, 3600.0)


def checked(request: Json, generations: Generations, interfaces: Collection[str]) -> Json:
    """The fields of a request to load. interfaces: those of this host. Raises: Failure."""
    slots = request.get("slots")
    if (
        not isinstance(slots, list)
        or not 2 <= len(slots) <= SLOTS
        or not all(isinstance(s, dict) for s in slots)
    ):
        raise bad(f"slots: a list of 2 to {SLOTS} is needed")
    found = []
    for i, slot in enumerate(slots):
        generation = integer(slot, "generation", 1)
        hold = None if slot.get("hold") is None else integer(slot, "hold", 1)
        for each in (generation, hold):
            if each is not None and each not in generations.staged:
                raise refused(f"slots[{i}]: generation {each} is not staged here")
        if generations.holds(generation):
            raise refused(f"slots[{i}]: generation {generation} is a hold; stage it again")
        if generation == hold:
            raise bad(f"slots[{i}]: its hold needs a generation of its own")
        row: Json = {"generation": generation, "hold": hold}
        for key in ("falling", "rising"):
            names = slot.get(key, [])
            if (
                not isinstance(names, list)
                or not all(isinstance(n, str) for n in names)
                or len(names) > 1024
            ):
                raise bad(f"slots[{i}].{key}: a list of interfaces is needed")
            if unknown := [n for n in names if n not in interfaces]:
                raise refused(
                    "slots[{}].{}: no interface {} on this host".format(
                        i, key, ", ".join(unknown[:8])
                    )
                )
            row[key] = sorted(set(names))
        found.append(row)
    holds = {row["hold"] for row in found}
    if any(row["generation"] in holds for row in found):
        raise bad("slots: a generation is a slot's and a hold")
    dwell_s, dark_window_s = number(request, "dwell_s", 0.0), number(request, "dark_window_s", 0.0)
    guard_s, late_s = number(request, "guard_s", 0.0), number(request, "late_s", 0.0)
    if not PERIOD_S[0] <= dwell_s + dark_window_s <= PERIOD_S[1]:
        raise bad("dwell_s, dark_window_s: a slot takes from {:g} to {:g} s".format(*PERIOD_S))
    if guard_s >= dwell_s:
        raise bad("guard_s: must be shorter than dwell_s")
    texts = {"follow": request.get("follow", "light"), "kind": request.get("kind", "clock")}
    for key, allowed in (("follow", ("light", "clock")), ("kind", ("clock", "phase"))):
        if texts[key] not in allowed:
            raise bad("{}: {} is needed, got {!r}".format(key, " or ".join(allowed), texts[key]))
    times = {
        "dwell_s": dwell_s,
        "dark_window_s": dark_window_s,
        "guard_s": guard_s,
        "late_s": late_s,
    }
    return {"slots": found, **times, **texts}


def counted(request: Json) -> int:
    count = integer(request, "count", 0)
    if count > MOST:
        raise bad(f"count: {MOST} at most")
    return count


def period(request: Json) -> int:
    return int((request["dwell_s"] + request["dark_window_s"]) * 1e9)
