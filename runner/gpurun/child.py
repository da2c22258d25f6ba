"""The process between gpurun and ansible-playbook: `python -m gpurun.child PIDFILE FIFO PARENT argv...`.

It does three things that ansible-runner cannot, then becomes ansible-playbook (exec keeps all three):
it dies with its parent (a killed gpurun leaves no playbook behind), it leaves its process id where the parent can find
it (to interrupt it the way Ctrl-C would), and it takes the environment, secrets included, from a FIFO, so that they are
never in a file, in argv, or in ansible-runner's artifacts.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Prepare, then exec."""
    pidfile, fifo, parent, *argv = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):
        return  # the parent died before we could ask to be told
    Path(pidfile).write_text(str(os.getpid()))
    environment = json.loads(Path(fifo).read_text())
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.execvp(argv[0], argv)  # noqa: S606 - an argv list, no shell


if __name__ == "__main__":
    main()
