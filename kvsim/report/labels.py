"""Labels that stand beside what they name: each takes the free place nearest to its point.

Places are tried on rings around the point. What counts against one, heaviest first: sticking out of the axes, lying on another label,
on a marker, on a line, being far away. Labels are placed one after the other, so the first ones get the better places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ANGLES = np.linspace(0, 2 * np.pi, 24, endpoint=False) + np.pi / 4
_OUTSIDE, _ON_LABEL, _ON_MARKER, _ON_LINE, _AWAY = 1e4, 1e2, 3.0, 1.0, 2.0
_LEADER_FROM_PT = 9.0


@dataclass(frozen=True, slots=True)
class Label:
    """`text` for the point (x, y) in data coordinates, at most `reach_pt` points away; `style` goes to matplotlib's text."""

    text: str
    x: float
    y: float
    reach_pt: float
    style: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Obstacles:
    """In pixels: `boxes` [n, 4] (x0, y0, x1, y1) of the labels so far, `markers` likewise, `line` [m, 2] points along all lines."""

    boxes: NDArray[np.float64]
    markers: NDArray[np.float64]
    line: NDArray[np.float64]


def place_labels(figure: Figure, axes: Axes, labels: Sequence[Label], lines: Sequence[NDArray[np.float64]], marker_pt: float) -> None:
    """Put `labels` into `axes` of `figure`, off the `lines` ([k, 2] in data coordinates each) and their markers of `marker_pt` points.

    Limits and position of the axes must be final.
    """
    canvas: Any = FigureCanvasAgg(figure)
    renderer = canvas.get_renderer()
    pixel = renderer.points_to_pixels(1.0)
    corners = [axes.transData.transform(line) for line in lines]
    points = np.concatenate([np.zeros((0, 2)), *corners])
    half = np.array([marker_pt, marker_pt]) * pixel / 2
    obstacles = _Obstacles(np.zeros((0, 4)), np.hstack([points - half, points + half]), _along(corners))
    frame = np.array(axes.bbox.extents)
    for label in labels:
        anchor = np.asarray(axes.transData.transform((label.x, label.y)))
        note = axes.annotate(
            label.text, (label.x, label.y), (0, 0), textcoords="offset points", ha="center", va="center", parse_math=False, **label.style
        )
        size = np.array(note.get_window_extent(renderer).size) + pixel
        centre, away = _best(anchor, size, frame, obstacles, label.reach_pt * pixel, marker_pt * pixel / 2)
        note.xyann = tuple((centre - anchor) / pixel)
        note.set_multialignment("left" if centre[0] > anchor[0] else "right")
        near = centre + np.clip(anchor - centre, -size / 2, size / 2)
        if away > _LEADER_FROM_PT * pixel and not _crosses(anchor, near, obstacles.boxes):
            _lead(axes, label, (near - anchor) / pixel, marker_pt)
        box = np.hstack([centre - size / 2, centre + size / 2])
        obstacles = _Obstacles(np.vstack([obstacles.boxes, box]), obstacles.markers, obstacles.line)


def _lead(axes: Axes, label: Label, to_pt: NDArray[np.float64], marker_pt: float) -> None:
    """A thin line from a point's marker to `to_pt` points away from it."""
    line = {"arrowstyle": "-", "color": label.style.get("color", "black"), "linewidth": 0.6, "shrinkA": 1, "shrinkB": marker_pt / 2}
    axes.annotate("", (label.x, label.y), tuple(to_pt), textcoords="offset points", arrowprops=line)


def _crosses(start: NDArray[np.float64], end: NDArray[np.float64], boxes: NDArray[np.float64]) -> bool:
    """Whether the way from `start` to `end` leads through one of `boxes`."""
    way = _along([np.stack([start, end])])[:, None]
    return bool(((way > boxes[:, :2]) & (way < boxes[:, 2:])).all(axis=2).any())


def _along(lines: Sequence[NDArray[np.float64]], step: float = 4.0) -> NDArray[np.float64]:
    """[m, 2] points every `step` pixels along the lines."""
    parts = [np.zeros((0, 2))]
    for line in lines:
        for a, b in pairwise(line):
            share = np.linspace(0, 1, 2 + int(np.hypot(*(b - a)) / step))[:, None]
            parts.append(a + share * (b - a))
    return np.concatenate(parts)


def _best(
    anchor: NDArray[np.float64], size: NDArray[np.float64], frame: NDArray[np.float64], obstacles: _Obstacles, reach: float, clear: float
) -> tuple[NDArray[np.float64], float]:
    """(centre of the cheapest box of `size` around `anchor`, its distance beyond `clear`), pixels."""
    rings = np.arange(0.0, max(reach, 1.0), 3.0)
    away, angle = (grid.ravel() for grid in np.meshgrid(rings, _ANGLES, indexing="ij"))
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    centre = anchor + direction * (size / 2 + clear + away[:, None])
    boxes = np.hstack([centre - size / 2, centre + size / 2])
    inside = _overlap(boxes, frame[None, :])[:, 0]
    line = obstacles.line[(np.abs(obstacles.line - anchor) <= size + clear + reach).all(axis=1)]
    on_line = ((line >= boxes[:, None, :2]) & (line <= boxes[:, None, 2:])).all(axis=2).sum(axis=1)
    cost = (
        _OUTSIDE * (size.prod() - inside)
        + _ON_LABEL * _overlap(boxes, obstacles.boxes).sum(axis=1)
        + _ON_MARKER * _overlap(boxes, obstacles.markers).sum(axis=1)
        + _ON_LINE * 16 * on_line
        + _AWAY * away
    )
    best = int(np.argmin(np.round(cost, 6)))
    return centre[best], float(away[best])


def _overlap(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, m] areas that boxes `a` [n, 4] and `b` [m, 4] share."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared: NDArray[np.float64] = np.clip(high - low, 0, None).prod(axis=2)
    return shared
