"""Results stores for tests: a folder, a service that speaks S3 on loopback; and runs to push there."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from moto.server import ThreadedMotoServer

from gpurun import opening
from gpurun.manifest import Controller
from gpurun.samples import Sample
from gpurun.store import RunStore

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIAPLANTEDKEYID", "AWS_SECRET_ACCESS_KEY": "planted-secret-0815"}
CAMPAIGN: dict[str, Any] = {
    "version": 1,
    "name": "kept",
    "server": {"engine": "command", "argv": ["/bin/server", "--port", "{{ port }}"]},
    "variants": {"half": {"server": {"argv": ["/bin/server", "--port", "{{ port }}", "--slow"]}}},
    "benchmarks": {
        "chat": {"load": {"concurrency": 1, "requests": 2}, "data": {"prompt_tokens": 8, "output_tokens": 8}}
    },
    "rounds": 3,
}
RATES = {"baseline": 80.0, "half": 40.0}


class S3:
    """A service that speaks S3, with one bucket. It may be stopped and started again: what it holds stays."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        _, self.port = self._server.get_host_and_port()
        self.url, self.environment = (
            "s3://bucket/runs",
            {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"},
        )
        request = urllib.request.Request(f"{self.environment['AWS_ENDPOINT_URL']}/bucket", method="PUT")
        with urllib.request.urlopen(request, timeout=10):
            pass

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()


def begin(
    folder: Path, url: str | None, hosts: Sequence[str] = ("alpha",), run: str | None = None, **changes: Any
) -> RunStore:
    """A run that has begun on these hosts, with results in `folder`, on a machine of that name."""
    facts = {
        host: {"host": {"name": host, "cpus": 8, "home": "/root/.gpurun", "commands": {}}, "gpus": []} for host in hosts
    }
    campaign, cases = opening.read_campaign(text=yaml.safe_dump({**CAMPAIGN, **changes}))
    earlier = None
    with suppress(Exception):
        earlier = run and opening.find_earlier(campaign, folder, run, url, {}, hosts)
    store, _, _ = opening.begin(
        campaign,
        cases,
        facts,
        results_dir=folder,
        controller=Controller(host=folder.name, pid=1),
        command=["gpurun"],
        secrets={},
        url=url,
        earlier=earlier or None,
        run=run,
    )
    return store


def measure(store: RunStore, host: str, rounds: Sequence[int] = (1, 2, 3)) -> int:
    """Bring the samples of a host's rounds home that are not; returns how many."""
    home = {(one.round, one.case, one.host) for one in store.samples()}
    count = 0
    for planned in store.plan["samples"]:
        if (
            planned["host"] == host
            and planned["round"] in rounds
            and (planned["round"], planned["case"], host) not in home
        ):
            about = {key: planned[key] for key in ("variant", "benchmark", "case", "round", "host", "content")}
            rate = RATES[planned["variant"]] + planned["round"] / 10
            sample = Sample(run=store.manifest.run, status="measured", metrics={"output_tok_per_s": rate}, **about)
            store.write_sample(sample, {"server.log": b"ready\n", "raw.json": b"{}" * 1000})
            count += 1
    return count
