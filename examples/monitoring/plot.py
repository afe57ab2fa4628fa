"""Bars beside one another as an SVG file that needs nothing else."""

from html import escape

WIDTH, LEFT, TOP, PANEL, GAP, HEIGHT = 980, 20, 84, 220, 22, 250
COLORS = ["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#bab0ac"]


def short(number):
    """12.3k"""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def panel(place, title, values, names):
    """One group of bars, drawn from 0; a bar that is missing is None."""
    left, most = LEFT + place * (PANEL + GAP), max([value for value in values if value] or [1])
    width = PANEL / len(values)
    yield f'<text x="{left}" y="{TOP - 14}" class="title">{escape(title)}</text>'
    yield f'<line x1="{left}" y1="{TOP + HEIGHT}" x2="{left + PANEL}" y2="{TOP + HEIGHT}" stroke="#888"/>'
    for at, value in enumerate(values):
        high = HEIGHT * 0.92 * (value or 0) / most
        x, y = left + at * width + 3, TOP + HEIGHT - high
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 6:.1f}" height="{high:.1f}" fill="{COLORS[at % len(COLORS)]}">'
            f"<title>{escape(names[at])}: {short(value or 0)}</title></rect>"
        )
        yield f'<text x="{x + width / 2 - 3:.1f}" y="{y - 4:.1f}" class="value">{short(value) if value else "-"}</text>'


def draw(title, note, names, panels):
    """`panels` are pairs of a title and a value for each name."""
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {TOP + HEIGHT + 74}" width="{WIDTH}">',
        "<style>text{font:12px sans-serif;fill:#222}.head{font-size:16px;font-weight:bold}"
        ".title{font-weight:bold}.value{font-size:10px;text-anchor:middle}.note{fill:#555}</style>",
        f'<rect width="{WIDTH}" height="{TOP + HEIGHT + 74}" fill="white"/>',
        f'<text x="{LEFT}" y="26" class="head">{escape(title)}</text>',
        f'<text x="{LEFT}" y="46" class="note">{escape(note)}</text>',
    ]
    for place, (name, values) in enumerate(panels):
        out += panel(place, name, values, names)
    x = LEFT
    for at, name in enumerate(names):
        out.append(f'<rect x="{x}" y="{TOP + HEIGHT + 26}" width="12" height="12" fill="{COLORS[at % len(COLORS)]}"/>')
        out.append(f'<text x="{x + 18}" y="{TOP + HEIGHT + 36}">{escape(name)}</text>')
        x += 40 + 7 * len(name)
    out.append("</svg>")
    return "\n".join(out) + "\n"
