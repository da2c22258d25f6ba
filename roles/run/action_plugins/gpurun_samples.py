"""Which samples a host still has to measure."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import steps


class ActionModule(ActionBase):
    """`gpurun_samples: {run_dir, rounds}` -> `samples`, in order, each complete in itself; `now`, in unix seconds;
    `store`, where they are pushed to."""

    _VALID_ARGS = frozenset({"run_dir", "rounds"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        store = steps.open_store(self._task.args["run_dir"])
        samples = steps.pending(store, (task_vars or {})["inventory_hostname"], self._task.args.get("rounds") or None)
        return {"changed": False, "samples": samples, "now": time.time(), "store": store.manifest.store}
