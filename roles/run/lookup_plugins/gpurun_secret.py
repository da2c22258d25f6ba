"""The values of secrets, by their names: see gpurun.secrets. Empty where there is none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.plugins.lookup import LookupBase

from gpurun import secrets


class LookupModule(LookupBase):
    """`lookup('gpurun_secret', 'HF_TOKEN')`."""

    def run(self, terms: Sequence[str], variables: Mapping[str, Any] | None = None, **_: Any) -> list[str]:
        return [secrets.value(name, os.environ) for name in terms]
