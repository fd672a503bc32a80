"""Draw the label of a device as SVG: seven arrows from A to G, the scores, and what they rest on.

The picture is one file without scripts or fonts of its own. It follows the colour scheme of its
reader, light or dark. It resembles energy labels that people know, but it is none of them, and
says so.
"""

from __future__ import annotations

from html import escape

from joulecast.printable import make_printable
from joulecast.units import format_power
from joulecast.uses.score.device_score import DeviceScore
from joulecast.uses.score.score_labels import LETTERS

# From green to red, each readable below white letters.
LETTER_COLOURS = ("#0B7A4B", "#3F8F2F", "#7A8F1E", "#B08900", "#C96F12", "#C24A1C", "#B3261E")
WIDTH, HEIGHT = 460, 700
_MARGIN = 28
_ARROW_TOP, _ARROW_STEP, _ARROW_HEIGHT = 134, 38, 32
_SHORTEST_ARROW, _ARROW_GROWTH, _TIP = 104, 24, 16
_TILES_TOP, _TILE_HEIGHT = 420, 84
_APPLICATIONS_TOP = 534
_MOST_APPLICATIONS = 12
_LONGEST_NAME, _LONGEST_LINE = 27, 62
_STYLE = """
    .page { fill: #FFFFFF; stroke: #D0D5DD; }
    .tile { fill: #F4F6F8; }
    .rule { stroke: #D0D5DD; }
    .text { fill: #1D2939; }
    .muted { fill: #5B6676; }
    .mark { fill: #1D2939; }
    .mark-letter { fill: #FFFFFF; }
    .warning { fill: #B3261E; }
    .arrow-letter { fill: #FFFFFF; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #14181F; stroke: #333B47; }
      .tile { fill: #1E242D; }
      .rule { stroke: #333B47; }
      .text { fill: #F2F4F7; }
      .muted { fill: #A3ADBB; }
      .mark { fill: #F2F4F7; }
      .mark-letter { fill: #14181F; }
      .warning { fill: #FF8A7A; }
    }
    text { font-family: "DejaVu Sans", Verdana, Arial, sans-serif; }
"""


def draw_label(score: DeviceScore) -> str:
    """Return the label of a device as SVG."""
    parts = [
        *_draw_heading(score),
        *_draw_arrows(score.label),
        *_draw_tiles(score),
        *_draw_applications(score),
        *_draw_footer(score),
    ]
    body = "\n  ".join(parts)
    title = escape(make_printable(f"Energy label of {score.name}: {score.label or 'none'}"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">\n'
        f"  <title>{title}</title>\n  <style>{_STYLE}  </style>\n"
        f'  <rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="18"/>'
        f"\n  {body}\n</svg>\n"
    )


def _draw_heading(score: DeviceScore) -> list[str]:
    facts = [score.source or score.runtime, f"meter covers {score.covers}"]
    return [
        _write(_MARGIN, 46, "Inference energy", 13, "muted", weight=600),
        _write(_MARGIN, 76, _shorten(score.name, _LONGEST_NAME), 22, "text", weight=700),
        _write(_MARGIN, 98, _shorten(", ".join(filter(None, facts)), _LONGEST_LINE), 11, "muted"),
        _write_provenance(score),
    ]


def _write_provenance(score: DeviceScore) -> str:
    if score.provenance == "measured":
        return _write(WIDTH - _MARGIN, 46, "measured", 12, "muted", anchor="end")
    text = "published" if score.source else score.provenance
    return _write(WIDTH - _MARGIN, 46, text.upper(), 12, "warning", anchor="end", weight=700)


def _draw_arrows(label: str | None) -> list[str]:
    parts = []
    for index, (letter, colour) in enumerate(zip(LETTERS, LETTER_COLOURS, strict=True)):
        top = _ARROW_TOP + index * _ARROW_STEP
        end = _MARGIN + _SHORTEST_ARROW + index * _ARROW_GROWTH
        parts.append(_draw_arrow(_MARGIN, end, top, f'fill="{colour}"'))
        parts.append(_write(_MARGIN + 12, top + 23, letter, 19, "arrow-letter", weight=700))
    if label is None:
        place = _ARROW_TOP + 3 * _ARROW_STEP + 20
        return [*parts, _write(WIDTH - _MARGIN, place, "no label", 14, "muted", anchor="end")]
    top = _ARROW_TOP + LETTERS.index(label) * _ARROW_STEP - 6
    start, end, half = WIDTH - _MARGIN - 84, WIDTH - _MARGIN, 22
    points = f"{start},{top + half} {start + 22},{top} {end},{top} {end},{top + 2 * half} "
    parts.append(f'<polygon class="mark" points="{points}{start + 22},{top + 2 * half}"/>')
    parts.append(_write(end - 31, top + 33, label, 30, "mark-letter", anchor="middle", weight=700))
    return parts


def _draw_arrow(start: int, end: int, top: int, fill: str) -> str:
    bottom, middle = top + _ARROW_HEIGHT, top + _ARROW_HEIGHT // 2
    points = f"{start},{top} {end - _TIP},{top} {end},{middle} {end - _TIP},{bottom}"
    return f'<polygon {fill} points="{points} {start},{bottom}"/>'


def _draw_tiles(score: DeviceScore) -> list[str]:
    tiles = [
        ("PCS", _format(score.pcs), _describe_letter("of 100", score.pcs_label)),
        ("IECS*", _format(score.iecs), _describe_letter("sum", score.iecs_label)),
        ("Wh", _format(score.wh_per_1000_inferences), "per 1,000 inf."),
        ("inferences", _format(score.inferences_per_s), "per second"),
    ]
    gap = 10
    width = (WIDTH - 2 * _MARGIN - gap * (len(tiles) - 1)) / len(tiles)
    parts = []
    for index, (title, value, below) in enumerate(tiles):
        left = _MARGIN + index * (width + gap)
        middle = left + width / 2
        parts.append(
            f'<rect class="tile" x="{left:g}" y="{_TILES_TOP}" width="{width:g}" '
            f'height="{_TILE_HEIGHT}" rx="10"/>'
        )
        parts.append(_write(middle, _TILES_TOP + 21, title, 11, "muted", anchor="middle"))
        parts.append(_write(middle, _TILES_TOP + 49, value, 21, "text", "middle", 700))
        parts.append(_write(middle, _TILES_TOP + 70, below, 11, "muted", anchor="middle"))
    return parts


def _describe_letter(text: str, letter: str | None) -> str:
    return f"{text}: {letter}" if letter else text


def _draw_applications(score: DeviceScore) -> list[str]:
    rows = score.list_applications()[:_MOST_APPLICATIONS]
    columns, size, gap = (2, 12.0, 24) if len(rows) <= 6 else (4, 11.0, 18)
    step = (WIDTH - 2 * _MARGIN + gap) / columns
    parts = [_write(_MARGIN, _APPLICATIONS_TOP, "Wh per 1,000 inferences", 11, "muted")]
    for index, (name, wh) in enumerate(rows):
        left = _MARGIN + (index % columns) * step
        top = _APPLICATIONS_TOP + 22 + (index // columns) * 21
        parts.append(_write(left, top, name.replace("_", " "), size, "text"))
        parts.append(_write(left + step - gap, top, _format(wh), size, "text", "end", 600))
    return parts


def _draw_footer(score: DeviceScore) -> list[str]:
    known = sum(1 for one in score.configurations if one.energy_j)
    tdp_w, total = score.facts.tdp_w, len(score.configurations)
    tdp = f"TDP {format_power(tdp_w)} ({score.facts.tdp_source})" if tdp_w else "TDP not known"
    lines = [
        f"{known} of {total} configurations. {tdp}.",
        "*Our reading of DeepEn2023's IECS; its weights are not public.",
        "Thresholds are Joulecast's own. This is not an official energy label.",
    ]
    top = HEIGHT - 16 - 16 * len(lines)
    line, end = top - 18, WIDTH - _MARGIN
    rule = f'<line class="rule" x1="{_MARGIN}" y1="{line}" x2="{end}" y2="{line}"/>'
    return [
        rule,
        *(_write(_MARGIN, top + 16 * i, text, 10.5, "muted") for i, text in enumerate(lines)),
    ]


def _write(
    x: float,
    y: float,
    text: str,
    size: float,
    css_class: str,
    anchor: str = "start",
    weight: int = 400,
) -> str:
    return (
        f'<text class="{css_class}" x="{x:g}" y="{y:g}" font-size="{size:g}" '
        f'font-weight="{weight}" text-anchor="{anchor}">{escape(make_printable(text))}</text>'
    )


def _format(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _shorten(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"
