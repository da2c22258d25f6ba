"""Each wrong campaign in `errors/` and exactly what is said about it.

Golden files are rewritten with GPURUN_UPDATE_GOLDEN=1; look at the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.cases import read_campaign
from gpurun.errors import ConfigError, ExitCode

ERRORS = Path(__file__).parent / "errors"
CAMPAIGNS = sorted(ERRORS.glob("*.yml"))


@pytest.mark.parametrize("campaign", CAMPAIGNS, ids=lambda path: path.stem)
def test_what_is_said(campaign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ERRORS)
    with pytest.raises(ConfigError) as caught:
        read_campaign(campaign.name)
    assert caught.value.exit_code is ExitCode.CONFIG
    said = caught.value.render() + "\n"
    expected = campaign.with_suffix(".txt")
    if os.environ.get("GPURUN_UPDATE_GOLDEN"):
        expected.write_text(said, encoding="utf-8")
    assert said == expected.read_text(encoding="utf-8")


def test_there_are_campaigns() -> None:
    assert len(CAMPAIGNS) > 10
