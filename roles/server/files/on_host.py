"""How this role's code gets onto a host and is called there, without Ansible's own modules around it.

The action plugin gpurun_job sends this text, and a call of `main`, to the standard input of the host's Python. A module
of Ansible's unpacks and compiles a quarter of a megabyte for each call: half a second of a processor, several times a
sample, also while something is measured. Standard library only, Python >= 3.9; every call pays for what is imported.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from binascii import a2b_base64
from pathlib import Path

_MAIN = "from ansible.module_utils.gpurun_supervisor import main\n\nmain()\n"


def unpack(folder: Path, code: dict[str, str]) -> None:
    """Write the code (file name -> text): a folder to import from, under the names of Ansible, and the supervisor."""
    inside = folder / "ansible" / "module_utils"
    inside.mkdir(parents=True, exist_ok=True)
    (folder / "__main__.py").write_text(_MAIN)
    for name, text in {"__init__.py": "", **code}.items():
        (inside / name).write_text(text, encoding="utf-8")
    (folder / "ansible" / "__init__.py").touch()


def _keep(folder: Path, code: dict[str, str]) -> None:
    """Put the code where every later call, and every job, finds it: whole, or not at all."""
    part = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unpack(part, code)
        part.rename(folder)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        if not folder.is_dir():  # else another call has been faster
            raise


def main(name: str, packed: str, params: dict[str, object], check_mode: bool) -> None:
    """Answer one call of gpurun_job with JSON. The code lies at <home>/bin/<name>, and is put there with the first job.

    Whoever only looks, or ends jobs, leaves nothing behind on a host that has had none.
    """
    folder, passing = (Path.home() / Path(str(params["home"])).expanduser()).resolve() / "bin" / name, None
    try:
        if not folder.is_dir():
            code = json.loads(zlib.decompress(a2b_base64(packed)))
            if params["state"] in ("started", "finished") and not check_mode:
                _keep(folder, code)
            else:
                import tempfile  # rarely: it costs as much as all of the above

                folder = passing = Path(tempfile.mkdtemp(prefix="gpurun-"))
                unpack(folder, code)
        sys.path.insert(0, str(folder))
        from ansible.module_utils.gpurun_calls import answer

        result = answer(params, check_mode, str(folder))
    except OSError as error:
        result = {"failed": True, "msg": f"gpurun's code cannot be put onto this host: {error}"}
    finally:
        if passing:
            shutil.rmtree(passing, ignore_errors=True)
    print(json.dumps(result))
