"""ansible-playbook that loads Ansible first, and then waits for a line in a pipe, its first argument: a file with more arguments.

Started while a lab is still being read, it has a second of imports behind it when its play is due. Where the line is empty, it ends
and has done nothing; it ends when the thread that started it does.
"""

import ctypes
import json
import signal
import sys
import warnings
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGHUP)

# What every play here needs, and Ansible would load by name.
import ansible.plugins.action.raw  # noqa: E402
import ansible.plugins.connection.ssh  # noqa: E402
import ansible.plugins.strategy.free  # noqa: E402, F401
from ansible.cli.playbook import main  # noqa: E402
from ansible.plugins.loader import become_loader, connection_loader, init_plugin_loader, shell_loader  # noqa: E402

# `main` does all of this again, and finds it done: it reads a thousand lines of YAML on plugins.
init_plugin_loader()
warnings.filterwarnings("ignore", "AnsibleCollectionFinder has already been configured")
for loader in (connection_loader, shell_loader, become_loader):
    list(loader.all(class_only=True))

pipe, *words = sys.argv[1:]
with Path(pipe).open(encoding="utf-8") as said:
    file = said.readline().strip()
if file:
    main(["ansible-playbook", *words, *json.loads(Path(file).read_text(encoding="utf-8"))])
