"""The lookup `optical.testbed.lab`: what the role needs to know of a lab, from the program that
`testbed up` is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = """
name: lab
author: The authors of optical-testbed
version_added: "0.1.0"
short_description: What the role optical.testbed.host needs to know of a lab
description:
  - Reads the files of a lab as C(testbed up) reads them, so that both install the same.
  - Needs the Python packages of the program, which it finds next to its playbooks or in Ansible's own environment.
options:
  _terms:
    description: The folder of the lab's files.
    required: true
"""
EXAMPLES = """
- ansible.builtin.debug:
    msg: "{{ lookup('optical.testbed.lab', inventory_dir).hosts | list }}"
"""
RETURN = """
_raw:
  description: A dictionary for each folder, with C(hosts), C(archive), C(archive_digest) and C(programs_digest).
  type: list
  elements: dict
"""
HOME = Path(__file__).resolve().parents[7]
"""Where the packages of the program are, in its repository and where it is installed."""


class LookupModule(LookupBase):  # type: ignore[misc]
    """Called once for all hosts of a play."""

    def run(
        self, terms: list[str], variables: dict[str, Any] | None = None, **_: Any
    ) -> list[dict[str, Any]]:
        """Raises: AnsibleError - what is wrong with the lab, as `testbed` says it."""
        sys.path.append(str(HOME))
        try:
            from optics import TestbedError
            from orchestrator.verbs.hosts import for_ansible
        except ImportError as error:
            raise AnsibleError(
                f"optical.testbed.lab: {error}; run the ansible-playbook of the environment that optical-testbed is installed in"
            ) from error
        given = {
            name: dict(values) for name, values in (variables or {}).get("hostvars", {}).items()
        }
        try:
            return [
                for_ansible(Path(str(term)), Path(constants.DEFAULT_LOCAL_TMP), given)
                for term in terms
            ]
        except TestbedError as error:
            raise AnsibleError(f"{error}; {error.hint}" if error.hint else str(error)) from error
