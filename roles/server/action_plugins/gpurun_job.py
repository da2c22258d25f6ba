"""Runs the module gpurun_job: see its documentation in library/, and files/on_host.py for why not as Ansible does."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import zlib
from binascii import b2a_base64
from pathlib import Path
from shlex import quote
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values
from ansible.plugins.action import ActionBase

from ansible import constants
from gpurun import secrets

_ROLE = Path(__file__).parents[1]
_OPTIONS = yaml.safe_load(runpy.run_path(str(_ROLE / "library" / "gpurun_job.py"))["DOCUMENTATION"])["options"]
_SPEC = {name: {key: known for key, known in one.items() if key != "description"} for name, one in _OPTIONS.items()}
_SPEC["secrets"]["no_log"] = True
_NEEDED = [("state", state, ["job", "argv"]) for state in ("started", "finished")] + [("state", "info", ["job"])]
_CODE = json.dumps({path.name: path.read_text() for path in sorted((_ROLE / "module_utils").glob("gpurun_*.py"))})
_NAME = f"jobs-{hashlib.sha256(_CODE.encode()).hexdigest()[:12]}"
_PACKED = b2a_base64(zlib.compress(_CODE.encode()), newline=False).decode()
_ON_HOST = (_ROLE / "files" / "on_host.py").read_text()


class ActionModule(ActionBase):
    """One call: one command on the host, bounded in time by `wait_s` as the module's documentation says."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        if self._task.delegate_to:
            variables = variables["ansible_delegated_vars"][self._task.delegate_to]
        given = ArgumentSpecValidator(_SPEC, required_if=_NEEDED).validate(_with_plan(self._task.args))
        if given.error_messages:
            raise AnsibleActionFail(f"gpurun_job: {'; '.join(given.error_messages)}")
        params = given.validated_parameters
        call = repr(json.dumps([_NAME, _PACKED, params, self._task.check_mode]))
        # By standard input, because secrets are in it: neither a file nor a command line of the host's sees them.
        said = self._low_level_execute_command(
            self._python(variables), in_data=f"{_ON_HOST}\nmain(*json.loads({call}))\n".encode()
        )
        secrets = {value for value in (params["secrets"] or {}).values() if value}
        return remove_values(_result(said), secrets)  # a log's last line may show one

    def _python(self, variables: dict[str, Any]) -> str:
        """The host's Python, as a command: the one that the inventory names, else the first that Ansible knows."""
        named = self._templar.template(constants.config.get_config_value("INTERPRETER_PYTHON", variables=variables))
        known = constants.config.get_config_value("INTERPRETER_PYTHON_FALLBACK", variables=variables)
        words = " ".join(quote(one) for one in (known if named.startswith("auto") else [named]))
        run = f'{self._compute_environment_string()} "$python" -I -S -X utf8 -'
        return f'for python in {words}; do if command -v "$python" > /dev/null; then {run}; exit; fi; done; exit 127'


def _with_plan(args: dict[str, Any]) -> dict[str, Any]:
    """The options, with what `planned` says of those that are not given."""
    planned = args.get("planned") or {}
    values = {key: value for key, value in planned.items() if key in _SPEC and value is not None}
    known = {name: secrets.value(name, os.environ) for name in values.pop("secrets", [])}
    return {"secrets": known, **values, **{key: value for key, value in args.items() if key != "planned"}}


def _result(said: dict[str, Any]) -> dict[str, Any]:
    """What the call has answered: the last line, as a login shell may have said something before."""
    lines = said["stdout"].strip().splitlines()
    if said["rc"] == 0 and lines and lines[-1].startswith("{"):
        return dict(json.loads(lines[-1]))
    if said["rc"] == 127:
        message = "found no Python on the host: install one (3.9 or newer), or name it as `ansible_python_interpreter`"
    else:
        message = f"gpurun's code broke on the host (exit code {said['rc']})"
    return {"failed": True, "msg": message, "module_stderr": said["stderr"].strip()[-2000:], "rc": said["rc"]}
