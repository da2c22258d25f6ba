#!/usr/bin/python
"""Facts of a GPU host: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpurun_facts
short_description: Facts of a host and its GPUs
description:
  - What of the machine may be used, its GPUs, their driver, topology and processes.
  - Changes nothing. A broken or hanging driver is a fact (C(gpu_error)), not a failure of the module.
options:
  home:
    description: Folder of gpurun on the host; its free disk space is reported.
    type: str
    default: ~/.gpurun
  models:
    description:
      - Paths of models, whose headers are read where they are there already; so are those in C(home)/models.
      - A model that cannot be read is left out.
    type: list
    elements: str
    default: []
  limit_s:
    description: Seconds that nvidia-smi gets before it is taken to hang.
    type: float
    default: 30
author: gpurun
"""

EXAMPLES = r"""
- name: Look at the host
  gpurun_facts:
    home: ~/.gpurun
"""

RETURN = r"""
gpurun_facts:
  description: The facts; also set for the host, as C(ansible_facts.gpurun_facts).
  returned: always
  type: dict
  contains:
    host: {description: "Processors, memory, system, Python, disk, init, container, user, commands.", type: dict}
    gpus: {description: "One entry per GPU, in the order of nvidia-smi.", type: list}
    driver: {description: "Versions of driver, CUDA and kernel module; null without a driver.", type: dict}
    topology: {description: "Links between the devices, NUMA nodes, nearest adapters; null without GPUs.", type: dict}
    models: {description: "Path: what the model's files say about its size.", type: dict}
    gpu_error: {description: "Null, or kind, message and advice.", type: dict}
"""

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible.module_utils import gpurun_host, gpurun_model_headers, gpurun_smi


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "str", "default": "~/.gpurun"},
            "models": {"type": "list", "elements": "str", "default": []},
            "limit_s": {"type": "float", "default": 30.0},
        },
        supports_check_mode=True,
    )
    host = gpurun_host.collect(module.params["home"])
    host["nvidia_pci_devices"] = pci = gpurun_smi.pci_devices()
    facts: dict[str, object] = {"host": host, "gpus": [], "driver": None, "topology": None, "gpu_error": None}
    nvidia_smi = host["commands"]["nvidia-smi"]  # type: ignore[index]
    if nvidia_smi:
        facts.update(gpurun_smi.collect(nvidia_smi, module.params["limit_s"]))
    elif pci:
        facts["gpu_error"] = {
            "kind": "no_driver",
            "message": f"{len(pci)} NVIDIA GPU(s) on the PCI bus, but no nvidia-smi",
            "advice": "install the driver",
            "library": None,
            "gpu": None,
        }
    facts["models"] = gpurun_model_headers.describe_all(module.params["models"], module.params["home"])
    module.exit_json(changed=False, gpurun_facts=facts, ansible_facts={"gpurun_facts": facts})


if __name__ == "__main__":
    main()
