"""The requests `stage` and `commit` of routes, as the operator's side sends them."""

from __future__ import annotations

from agent.basics import bad, integer, number, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.routes.generations import Generations
    from agent.shapes import Json


def commit(generations: Generations, request: Json) -> Json:
    """Commit a staged generation, as a hold if the request says so."""
    generation, revert_after_s = (
        integer(request, "generation", 1),
        number(request, "revert_after_s", None),
    )
    if request.get("hold"):
        return generations.hold(generation, revert_after_s, bool(request.get("flush", True)))
    return generations.commit(generation, revert_after_s)


def stage(generations: Generations, request: Json) -> Json:
    """Stage one generation, or all those of a packed list: what the playbook hands over, given over
    the channel.
    """
    if "packed" not in request:
        return generations.stage(request)
    wanted = unpack(request["packed"])
    if not isinstance(wanted, list) or not all(isinstance(r, dict) for r in wanted):
        raise bad("packed: a list of generations is needed")
    rest = {key: value for key, value in request.items() if key not in ("id", "op", "packed")}
    return {"staged": [generations.stage(dict(rest, **r)) for r in wanted]}
