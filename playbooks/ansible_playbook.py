"""ansible-playbook that loads Ansible first, and then waits for a line in a pipe, its first
argument: a file with more arguments.

Started while a lab is still being read, it has a second of imports behind it when its play is due.
Where the line is empty, or nobody has the pipe open for writing any more, it ends at once and has
done nothing.
"""

import gc
import json
import os
import sys
import threading
import warnings
from pathlib import Path

gc.disable()  # a sixth of the imports; nothing of theirs is ever freed
sys.modules["invoke"] = None  # type: ignore[assignment]  # paramiko goes without it, but for `Match exec` in an ssh_config
pipe, *message = sys.argv[1:]
# does not wait for a writer, who may have died
reported = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
os.set_blocking(reported, True)
files: list[str] = []


def listen() -> None:
    with os.fdopen(reported, encoding="utf-8") as lines:
        file = lines.readline().strip()
    if not file:
        os._exit(0)  # whatever is being imported
    files.append(file)


listening = threading.Thread(target=listen, daemon=True)
listening.start()

# What every play here needs, and Ansible would load by name.
import ansible.plugins.action.raw  # noqa: E402
import ansible.plugins.connection.ssh  # noqa: E402
import ansible.plugins.strategy.linear  # noqa: E402, F401
from ansible.cli.playbook import main  # noqa: E402
from ansible.plugins.loader import (  # noqa: E402
    become_loader,
    connection_loader,
    init_plugin_loader,
    shell_loader,
)

# `main` does all of this again, and finds it done: it reads a thousand lines of YAML on plugins.
init_plugin_loader()
warnings.filterwarnings("ignore", "AnsibleCollectionFinder has already been configured")
for loader in (connection_loader, shell_loader, become_loader):
    list(loader.all(class_only=True))

listening.join()
gc.freeze()  # else each of Ansible's forks would look through all of it, and so copy it
gc.enable()
main(["ansible-playbook", *message, *json.loads(Path(files[0]).read_text(encoding="utf-8"))])
