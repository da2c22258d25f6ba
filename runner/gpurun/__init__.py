"""gpurun prepares GPU hosts with Ansible and measures which LLM server settings are really faster."""

__version__ = "0.1.0"
