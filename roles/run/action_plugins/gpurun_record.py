"""Bring a sample home: fetch what it left on the host, parse or explain it, write it down."""

from __future__ import annotations

import base64
import time
import zlib
from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import steps


class ActionModule(ActionBase):
    """`gpurun_record: {run_dir, sample, server, load, left, began}` -> `sample` (the stored record) and `now`.

    `left` are files that gpurun_collect has brought from another host.
    """

    _VALID_ARGS = frozenset({"run_dir", "sample", "server", "load", "left", "began"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = self._task.args
        planned, server, load = args["sample"], args["server"], args.get("load") or None
        wanted = steps.wanted_files(planned, server, load)
        answer = self._execute_module("gpurun_collect", wanted, task_vars=task_vars)
        if answer.get("failed") or answer.get("unreachable"):
            return answer
        packed = {**(args.get("left") or {}), **answer["files"]}
        files = {name: zlib.decompress(base64.b64decode(one["data"])) for name, one in packed.items()}
        store = steps.open_store(args["run_dir"])
        sample = steps.record(store, planned, server=server, load=load, files=files, began=float(args["began"]))
        return {"changed": True, "sample": sample.model_dump(mode="json", by_alias=True), "now": time.time()}
