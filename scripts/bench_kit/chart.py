"""The chart of a run: plain SVG, written by hand. Values by their bounds, sizes, and seconds, as bars."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from bench_kit.measure import Spread, Table
from bench_kit.report import Run
from bench_kit.verdicts import Verdict

_WIDTH, _LABELS, _ROW = 1040, 400, 22
_COLOURS = {"met": "#2a7f4f", "NOT met": "#c0392b", "floor": "#b9770e"}
_OURS, _THEIRS, _INK, _FAINT = "#1f5fa8", "#9aa5b1", "#1d2530", "#d9dee4"
_LEGEND = "thin line: least to greatest; upright mark: floor"
_SPAN = 60.0  # of the first panel: bars from 1/_SPAN of the bound to as many times of it


def draw(runs: Sequence[Run]) -> str:
    """Return the chart of the last run."""
    run = runs[-1]
    parts: list[str] = []
    y = 34.0
    judged = [verdict for verdict in run.verdicts if verdict.value]
    title = "Guards" if run.quick else "Targets"
    y = _panel(parts, y, f"{title}: value by bound (left of the line: met)", _targets(judged), len(judged))
    for group, measured, title in (
        ("pack", "size", "Bytes"),
        ("pack", "seconds", "Seconds to pack, as processes"),
        ("restore", "seconds", "Seconds to restore, as processes"),
    ):
        table = run.tables.get((run.main, group))
        if table:
            sides = [side for side in table.samples if not (measured == "size" and side.startswith("floor"))]
            y = _panel(parts, y, f"{title}: {run.main}", _bars(table, sides, measured), len(sides))
    body = "\n".join(parts)
    font = "font-family='DejaVu Sans, Helvetica, Arial, sans-serif' font-size='12'"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{y:.0f}' viewBox='0 0 {_WIDTH} {y:.0f}' "
        f"{font} fill='{_INK}'>\n<rect width='100%' height='100%' fill='#ffffff'/>\n{body}\n</svg>\n"
    )


def _panel(parts: list[str], y: float, title: str, rows: Iterator[str], count: int) -> float:
    """Add a titled panel of ``count`` rows at ``y``; return where the next begins. Rows are drawn from 0 downwards."""
    parts.append(f"<text x='16' y='{y:.0f}' font-size='15' font-weight='bold'>{escape(title)}</text>")
    parts.append(f"<g transform='translate(0 {y + 14:.0f})'>")
    parts += rows
    parts.append("</g>")
    return y + 14 + count * _ROW + 40


def _targets(verdicts: Sequence[Verdict]) -> Iterator[str]:
    centre = _x(1.0)
    for number, verdict in enumerate(verdicts):
        assert verdict.value is not None
        bound, colour, y = verdict.target.bound, _COLOURS.get(verdict.word, _INK), number * _ROW
        value = _scaled(verdict.value, bound)
        left, right = sorted((centre, _x(value.median)))
        yield _label(y, verdict.target.what)
        yield f"<rect x='{left:.1f}' y='{y + 4}' width='{right - left:.1f}' height='14' fill='{colour}'/>"
        yield _line(_x(value.least), _x(value.greatest), y + 11, _INK)
        if verdict.floor:
            floor = _x(verdict.floor.median / bound)
            yield f"<path d='M {floor:.1f} {y + 1} v 20' stroke='{_INK}' stroke-width='2'/>"
        text = f"{verdict.value.median:.4g} of {bound:.4g} {verdict.target.unit}".strip()
        yield f"<text x='{_WIDTH - 14}' y='{y + 15}' text-anchor='end' fill='{colour}'>{text}</text>"
    height = len(verdicts) * _ROW
    yield f"<path d='M {centre:.1f} 0 v {height}' stroke='{_INK}' stroke-width='1.5'/>"
    for times in (0.1, 0.5, 2.0, 10.0):
        yield f"<path d='M {_x(times):.1f} 0 v {height}' stroke='{_FAINT}' stroke-dasharray='3 3'/>"
        yield _tick(_x(times), height, f"{times:g} x")
    yield _tick(centre, height, "bound")
    yield f"<text x='{_LABELS - 10}' y='{height + 14}' text-anchor='end' font-size='11'>{_LEGEND}</text>"


def _bars(table: Table, sides: Sequence[str], measured: str) -> Iterator[str]:
    spreads = [Spread.of(table.values(side, measured)) for side in sides if table.values(side, measured)]
    top = max(spread.greatest for spread in spreads)
    room = _WIDTH - _LABELS - 110
    # One side far above the others (a copy, beside what is compressed) would leave them no room: it is cut.
    middle = sorted(spread.median for spread in spreads)[len(spreads) // 2]
    top = min(top, 6 * middle)
    for number, (side, spread) in enumerate(zip(sides, spreads)):
        y, colour = number * _ROW, _OURS if side in table.ours else _THEIRS
        width = room * min(spread.median / top, 1.0)
        text = f"{spread.median / 1e6:.3f} MB" if measured == "size" else f"{spread.median:.3f} s"
        yield _label(y, side)
        yield f"<rect x='{_LABELS}' y='{y + 4}' width='{width:.1f}' height='14' fill='{colour}'/>"
        if spread.median > top:
            yield f"<path d='M {_LABELS + width - 16:.1f} {y + 20} l 8 -18' stroke='#ffffff' stroke-width='4'/>"
        low, high = (_LABELS + room * min(value / top, 1.0) for value in (spread.least, spread.greatest))
        if high - low > 1 and spread.median <= top:
            yield _line(low, high, y + 11, _INK)
        yield f"<text x='{_LABELS + max(width, high - _LABELS) + 8:.1f}' y='{y + 15}'>{text}</text>"


def _scaled(spread: Spread, bound: float) -> Spread:
    return Spread(spread.median / bound, spread.least / bound, spread.greatest / bound, spread.count)


def _x(times: float) -> float:
    """Where a value lies that is so many times its bound; logarithmic, cut at both ends."""
    share = math.log(max(min(times, _SPAN), 1 / _SPAN)) / math.log(_SPAN)
    left, right = _LABELS + 10, _WIDTH - 130
    return left + (share + 1) / 2 * (right - left)


def _label(y: float, text: str) -> str:
    return f"<text x='{_LABELS - 10}' y='{y + 15:.0f}' text-anchor='end'>{escape(_short(text))}</text>"


def _short(text: str) -> str:
    return text if len(text) <= 58 else text[:57] + "…"


def _line(left: float, right: float, y: float, colour: str) -> str:
    return f"<path d='M {left:.1f} {y} H {right:.1f}' stroke='{colour}' stroke-width='1.5'/>"


def _tick(x: float, y: float, text: str) -> str:
    return f"<text x='{x:.1f}' y='{y + 14}' text-anchor='middle' font-size='11'>{text}</text>"
