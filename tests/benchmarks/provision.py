"""How long a second `gpurun provision` takes on hosts that are provisioned: 15 s for one, 20 s for eight.

python -m tests.benchmarks.provision [HOSTS]     needs what tests/e2e/test_provision.py needs
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.provisioned import Machine
from tests.hosts import HostFleet
from tests.nvidia_machine import make_machine
from tests.nvidia_repository import Repository


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder, HostFleet(count, disk_mib=8192) as fleet:
        repository = Repository(Path(folder) / "repository", fleet[0].address.rpartition(".")[0] + ".1")
        repository.publish("debian12", ["580.95.05"])
        repository.publish_system()
        for host in fleet.hosts:
            make_machine(host, repository)
        machine = Machine(fleet, repository, Path(folder) / "desk")
        for call in ("first", "second", "third"):
            began = time.monotonic()
            program = machine.start()
            code = program.finish(1800)
            took = time.monotonic() - began
            hosts = json.loads(program.stdout)["hosts"].values()
            print(f"{call}: {took:.1f} s, exit code {code}, {sum(len(one['changed']) for one in hosts)} changes")
        repository.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
