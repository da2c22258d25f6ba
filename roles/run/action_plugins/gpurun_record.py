"""Bring a sample home: fetch what it left on the host, parse or explain it, write it down."""

from __future__ import annotations

import base64
import time
import zlib
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import host_python, steps

_COLLECTING = Path(__file__).parents[1] / "module_utils" / "gpurun_collecting.py"
_HEADERS = Path(__file__).parents[2] / "facts" / "module_utils" / "gpurun_model_headers.py"
_FUTURE = "from __future__ import annotations\n"
_DESCRIBE = """
try:
    found["model.json"] = packed(json.dumps(describe(%r)).encode(), 0)
except (OSError, ValueError):
    pass
"""


class ActionModule(ActionBase):
    """`gpurun_record: {run_dir, sample, server, load, after, left, began, refused}` -> `sample` as stored, `now`.

    `server` is the job that was started. What `load` (its task's result), `after` and `left` (those of a load from
    elsewhere: a look at the server, and what gpurun_collect has brought) say is of this sample if the server was ready.
    `refused` is why nothing was measured.
    """

    _VALID_ARGS = frozenset({"run_dir", "sample", "server", "load", "after", "left", "began", "refused"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = self._task.args
        planned, server, load, left = args["sample"], args["server"], None, {}
        store = steps.open_store(args["run_dir"])
        if why := args.get("refused"):
            told = (str(why[key]) for key in ("class", "phase", "proof", "advice"))
            sample = steps.not_measured(store, planned, *told)
            return {"changed": True, "sample": sample.model_dump(mode="json", by_alias=True), "now": time.time()}
        if server["status"] == "ready" and args.get("load"):
            load = args["load"]["job"]
            # What was seen of the server after the load is the later view: it may have died meanwhile.
            seen = args["load"].get("server")
            if planned["load"].get("host"):
                seen, left = args["after"]["job"], args["left"]["files"]
            server = seen or server
        host = store.manifest.hosts[(task_vars or {})["inventory_hostname"]]["host"]
        packed = self._collect(str(host["python"]["path"]), steps.wanted_files(planned, server, load))
        packed |= left
        files = {name: zlib.decompress(base64.b64decode(one["data"])) for name, one in packed.items()}
        sample = steps.record(store, planned, server=server, load=load, files=files, began=float(args["began"]))
        return {"changed": True, "sample": sample.model_dump(mode="json", by_alias=True), "now": time.time()}

    def _collect(self, python: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """What gpurun_collect would bring, without the start of a module for each sample."""
        model = wanted.pop("model", None)
        program = f"{_COLLECTING.read_text()}\nimport json\nfound = collect(**{wanted!r})\n"
        if model:
            program += _HEADERS.read_text().replace(_FUTURE, "") + _DESCRIBE % model
        program += "print(json.dumps(found))\n"
        found = host_python.ask(self._low_level_execute_command, python, program, "read what the sample left")
        assert isinstance(found, dict)
        return found
