"""Charts as inline SVG, drawn by Vega-Lite (vl-convert) from the specifications in data/report/*.json.

Colours are variables of the page's style sheet, so that one picture serves light, dark and paper.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from gpurun.compare import group
from gpurun.data import FOLDER
from gpurun.report.view import RunView
from gpurun.text import metric_name

_DATA = FOLDER / "report"
_VEGA_LITE = "6.4"
_MOST_ROWS = 60  # of a chart of effects
_MOST_FACETS = 4
_HUES = 6
_SHAPES = ("circle", "triangle-up", "square", "diamond", "triangle-down", "cross", "stroke")
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 1], [1, 3])
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def warm_up() -> None:
    """Start the drawing engine beside what else is to be done first: it takes most of a second."""

    def start() -> None:
        with contextlib.suppress(ImportError, ValueError):
            import vl_convert

            vl_convert.vegalite_to_svg({"mark": "point"}, vl_version=_VEGA_LITE)

    threading.Thread(target=start).start()


class Drawing:
    """Draws the charts of one page; each gets a number, for the ids within it."""

    def __init__(self) -> None:
        self._drawn = 0

    def effects(self, run: RunView, description: str) -> Markup:
        """Estimates with intervals and the threshold band, on a logarithmic axis: half and double are as far."""
        effects = run.effects()
        if len(effects) > _MOST_ROWS:
            far = sorted(effects, key=lambda effect: -abs(effect.estimate or 0))[:_MOST_ROWS]
            effects = [effect for effect in effects if effect in far]
        rows: list[dict[str, Any]] = []
        limit = run.report.rules.metrics[run.report.rules.primary].threshold
        for effect in effects:
            low, high = effect.interval or (effect.estimate or 0.0,) * 2
            ratios = {"ratio": 1 + (effect.estimate or 0), "low": max(1 + low, 1e-3), "high": 1 + high}
            rows.append({"name": f"{effect.case.variant} · {effect.case.label}", "verdict": effect.verdict, **ratios})
        most = max(
            [math.log(1 + 1.5 * limit), *(abs(math.log(row[k])) for row in rows for k in ("ratio", "low", "high"))]
        )
        reach = math.exp(min(most * 1.08, math.log(20)))
        step = next((step for step in _STEPS if (reach - 1 / reach) / step <= 9), 10.0)
        ticks = [round(1 + step * k, 4) for k in range(-9, 12) if 1 / reach <= 1 + step * k <= reach]
        return self._draw(
            "effects",
            f"Effect on {metric_name(run.report.rules.primary)} against the baseline",
            description,
            rows=rows,
            margin=8 + max(len(row["name"]) for row in rows),  # the reader's font may be wider than ours
            names=[row["name"] for row in rows],
            domain=[1 / reach, reach],
            ticks=ticks,
            band=[{"from": 1 / (1 + limit), "to": 1 + limit}],
        )

    def tradeoff(self, run: RunView, benchmark: str, points: Sequence[Mapping[str, Any]], description: str) -> Markup:
        """Throughput against latency: a line for each variant through its loads, and the Pareto line."""
        several = len({point["label"] for point in points}) > 1
        return self._draw(
            "tradeoff",
            f"Throughput against latency: {benchmark}",
            description,
            points=[{**point, "order": number} for number, point in enumerate(points)],
            pareto=[point for point in points if point["pareto"]],
            x=metric_name(run.latency()),
            y=metric_name(run.throughput()),
            zero=several,
            **_looks(run, {point["variant"] for point in points}),
        )

    def distribution(self, run: RunView, description: str) -> Markup:
        """The share of requests that took at most so long."""
        points = [{**point, "place": point["label"]} for point in run.requests.points]
        return self._faceted("distribution", "Distribution of latencies", description, run, points)

    def rounds(self, run: RunView, description: str) -> Markup:
        """The primary metric by round."""
        points = [{**point, "place": point["label"]} for point in run.rounds()]
        y = metric_name(run.report.rules.primary)
        return self._faceted("rounds", "Each round's measurement", description, run, points, y=y)

    def telemetry(self, run: RunView, description: str) -> Markup:
        """Each sensor's mean by sample and round, without those that always say the same."""
        told = group(run.sensors.points, lambda point: (point["host"], point["name"])).values()
        moving = [point for mine in told if len({point["value"] for point in mine}) > 1 for point in mine]
        points = [{**point, "place": metric_name(point["name"])} for point in moving or run.sensors.points]
        return self._faceted("telemetry", "Sensors by round", description, run, points)

    def _faceted(
        self, name: str, title: str, description: str, run: RunView, points: list[dict[str, Any]], **more: Any
    ) -> Markup:
        """A picture for each place, on each host where there are several; the first few of them."""
        if len({point.get("host") for point in points}) > 1:
            points = [{**point, "place": f"{point['place']} · {point['host']}"} for point in points]
        places = list(dict.fromkeys(point["place"] for point in points))[:_MOST_FACETS]
        shown = [point for point in points if point["place"] in places]
        looks = _looks(run, {point["variant"] for point in points})
        return self._draw(name, title, description, points=shown, places=places, **looks, **more)

    def _draw(self, name: str, title: str, description: str, **values: Any) -> Markup:
        self._drawn += 1
        try:
            import vl_convert  # more than the rest of gpurun together: only where something is drawn

            spec = json.loads((_DATA / f"{name}.json").read_text(encoding="utf-8"))
            config = json.loads((_DATA / "config.json").read_text(encoding="utf-8"))
            svg = vl_convert.vegalite_to_svg({**_filled(spec, values), "config": config}, vl_version=_VEGA_LITE)
        except (ImportError, ValueError) as error:
            return Markup('<p class="note">This chart could not be drawn here: {}</p>').format(
                str(error).splitlines()[0]
            )
        return Markup(_dressed(svg, f"chart{self._drawn}", title, description))  # noqa: S704 (its texts are escaped)


def _filled(spec: Any, values: Mapping[str, Any]) -> Any:
    """A specification with values in place of `$name`."""
    if isinstance(spec, dict):
        return {key: _filled(value, values) for key, value in spec.items()}
    if isinstance(spec, list):
        return [_filled(value, values) for value in spec]
    return values[spec[1:]] if isinstance(spec, str) and spec.startswith("$") else spec


def _looks(run: RunView, shown: set[str]) -> dict[str, Any]:
    """Each variant's colour, shape and dashes, the same in all charts of a run: the baseline's is neutral."""
    names = [name for name in run.variants if name in shown]
    at = [run.variants.index(name) for name in names]
    return {
        "variants": names,
        "colors": [f"var(--v{1 + (i - 1) % _HUES})" if i else "var(--v0)" for i in at],
        "shapes": [_SHAPES[i % len(_SHAPES)] for i in at],
        "dashes": [_DASHES[i % len(_DASHES)] for i in at],
    }


def _dressed(svg: str, name: str, title: str, description: str) -> str:
    """The picture with a title and a description, ids of its own (Vega counts them per process), and no fixed size."""
    ids: dict[str, str] = {}
    renamed: Callable[[re.Match[str]], str] = lambda m: ids.setdefault(m[0], f"{name}-{len(ids)}")  # noqa: E731
    svg = re.sub(r"\b(?:clip|gradient)(?:_|)\d+\b", renamed, svg)
    svg = re.sub(r' (?:role="graphics-\w+"|aria-[a-z]+="[^"]*")', "", svg)  # the picture is described as a whole
    head, _, rest = svg.partition(">")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    width, height = size.groups() if size else ("700", "300")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="--w:{width}px" role="img"'
        f' aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>{rest}'
    )
