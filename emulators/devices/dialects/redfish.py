"""A management controller by Redfish: the power of one host.

DOC (DMTF DSP0266, DSP0268): the resources and their names, HTTP Basic, a service root without
login, the form of errors, ResetType and its values. CODE: allowed resets as ActionInfo instead of
inline (OpenBMC's bmcweb, pull request 266). REAL: 409 with PSU501 for a host that is in that state
already (iDRAC 9, in a public issue of Dell's Ansible modules, 132); other BMCs have 400 (iLO 4).
assumed: the values of the host, that resets take no time before 204.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from emulators.devices.dialects.http import HttpDialect, Request, Response
from emulators.optics.plant import Plant

ROOT, SYSTEMS = "/redfish/v1", "/redfish/v1/Systems"
SYSTEM = f"{SYSTEMS}/1"
INFO, RESET = f"{SYSTEM}/ResetActionInfo", f"{SYSTEM}/Actions/ComputerSystem.Reset"
RESETS = ("On", "ForceOff", "ForceRestart", "PowerCycle")
"""Those that need nothing of the host's operating system."""


class Powered(Protocol):
    """The host behind the controller. power: On, Off; empty: it is out of order."""

    @property
    def power(self) -> str: ...

    def on(self) -> None:
        """Boot. Raises: OSError - it cannot."""

    def off(self) -> None:
        """Stop at once. Raises: OSError - it cannot."""


class Redfish(HttpDialect[str]):
    """The controller of `machine`; plant: of no ports."""

    realm = "Redfish"
    closes = True

    def __init__(
        self, plant: Plant, machine: Powered, *, username: str, password: str, seed: int = 0
    ) -> None:
        super().__init__(plant, username=username, password=password, seed=seed)
        self.machine = machine

    def snapshot(self, now: float) -> str:
        return self.machine.power

    def who(self, request: Request, now: float) -> str | None:
        if request.path.rstrip("/") in ("/redfish", ROOT):  # DSP0266: without a login
            return ""
        return super().who(request, now)

    def answer(self, request: Request, now: float) -> Response:
        path = request.path.rstrip("/")
        found = self._resource(path)
        if path == RESET:
            if request.method != "POST":
                return self._only("POST", request)
            return self._reset(request)
        if found is None:
            return self.error(404, request)
        if request.method not in ("GET", "HEAD"):
            return self._only("GET, HEAD", request)
        return replace(Response.of_json(found), headers={"odata-version": "4.0"})

    def error(self, status: int, request: Request | None = None) -> Response:
        kind, text = {
            401: ("Base.1.8.NoValidSession", "There is no valid session established."),
            404: (
                "Base.1.8.ResourceMissingAtURI",
                f"The resource at the URI {request.path if request else ''} was not found.",
            ),
            405: ("Base.1.8.OperationNotAllowed", "The HTTP method is not allowed here."),
        }.get(status, ("Base.1.8.GeneralError", "A general error has occurred."))
        return _refused(status, kind, text)

    def _only(self, allowed: str, request: Request) -> Response:
        error = self.error(405, request)
        return Response(405, error.body, error.kind, {"allow": allowed})

    def _resource(self, path: str) -> dict[str, object] | None:
        match path:
            case "/redfish":
                return {"v1": f"{ROOT}/"}
            case "/redfish/v1":
                return {
                    "@odata.id": f"{ROOT}/",
                    "@odata.type": "#ServiceRoot.v1_9_0.ServiceRoot",
                    "Id": "RootService",
                    "Name": "Root Service",
                    "RedfishVersion": "1.11.0",
                    "Systems": {"@odata.id": SYSTEMS},
                }
            case "/redfish/v1/Systems":
                return {
                    "@odata.id": SYSTEMS,
                    "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection",
                    "Name": "Systems",
                    "Members": [{"@odata.id": SYSTEM}],
                    "Members@odata.count": 1,
                }
            case "/redfish/v1/Systems/1":
                power = self.machine.power
                return {
                    "@odata.id": SYSTEM,
                    "@odata.type": "#ComputerSystem.v1_13_0.ComputerSystem",
                    "Id": "1",
                    "Name": self.plant.name,
                    "Manufacturer": "Emulated",
                    "Model": "GPU server",
                    "PowerState": power or "Off",
                    "Status": {"State": "Enabled", "Health": "OK" if power else "Critical"},
                    "Actions": {
                        "#ComputerSystem.Reset": {
                            "target": RESET,
                            "@Redfish.ActionInfo": INFO,
                        }
                    },
                }
            case "/redfish/v1/Systems/1/ResetActionInfo":
                return {
                    "@odata.id": INFO,
                    "@odata.type": "#ActionInfo.v1_1_2.ActionInfo",
                    "Id": "ResetActionInfo",
                    "Name": "Reset Action Info",
                    "Parameters": [
                        {
                            "Name": "ResetType",
                            "Required": True,
                            "DataType": "String",
                            "AllowableValues": list(RESETS),
                        }
                    ],
                }
        return None

    def _reset(self, request: Request) -> Response:
        try:
            asked = request.json()
        except ValueError:
            return _refused(400, "Base.1.8.MalformedJSON", "The request body is not valid JSON.")
        kind = asked.get("ResetType") if isinstance(asked, dict) else None
        if kind is None:
            text = "The action ComputerSystem.Reset requires the parameter ResetType."
            return _refused(400, "Base.1.8.ActionParameterMissing", text)
        if kind not in RESETS:
            text = f"The value {kind!s:.64} for the parameter ResetType is not in the list of acceptable values."
            return _refused(400, "Base.1.8.ActionParameterValueNotInList", text)
        power = self.machine.power
        if power and (kind == "On") == (power == "On"):
            return _refused(409, "IDRAC.2.1.PSU501", f"Server is already powered {power.upper()}.")
        try:
            if kind != "On":
                self.machine.off()
            if kind != "ForceOff":
                self.machine.on()
        except OSError as problem:
            return _refused(500, "Base.1.8.InternalError", f"The host cannot do that: {problem}")
        return Response(204)


def _refused(status: int, kind: str, text: str) -> Response:
    info = {
        "@odata.type": "#Message.v1_1_1.Message",
        "MessageId": kind,
        "Message": text,
        "MessageArgs": [],
        "Severity": "Warning",
        "Resolution": "None.",
    }
    error = {
        "code": kind,
        "message": "A general error has occurred. See ExtendedInfo for more information.",
        "@Message.ExtendedInfo": [info],
    }
    return Response.of_json({"error": error}, status)
