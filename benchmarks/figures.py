"""Draw what was measured. Without matplotlib there is no plot, and the caller is told."""

import statistics
from pathlib import Path
from typing import Any

OURS, OTHERS, LIMIT = "#0f766e", "#a8b3bd", "#d9ab4c"
INK, QUIET = "#1f2933", "#6b7785"


def draw(data: dict[str, Any], path: Path) -> str:
    """Save a figure of the parts that were measured; return what to tell the user."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        return "no plot: matplotlib is not installed"
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = [
        (panel, data[part]) for part, panels in PANELS.items() for panel in panels if part in data
    ]
    if not panels:
        return "no plot: nothing was measured that has one"
    style = {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": INK,
        "axes.edgecolor": QUIET,
        "axes.labelcolor": QUIET,
        "xtick.color": QUIET,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with plt.rc_context(style):
        columns = min(2, len(panels))
        lines = -(-len(panels) // columns)
        figure, axes = plt.subplots(
            lines, columns, figsize=(6.4 * columns, 3.2 * lines), squeeze=False, dpi=150
        )
        for axis, (panel, found) in zip(axes.flat, panels, strict=False):
            panel(axis, found)
        for axis in list(axes.flat)[len(panels) :]:
            axis.axis("off")
        figure.tight_layout(h_pad=2.5, w_pad=3)
        figure.savefig(path)
        plt.close(figure)
    return f"the plot is {path}"


def _title(axis: Any, title: str, below: str) -> None:
    axis.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=20)
    axis.text(0, 1.03, below, transform=axis.transAxes, fontsize=8, color=QUIET)


def _bars(axis: Any, values: dict[str, float], labels: list[str]) -> None:
    names = list(values)
    colours = [
        OURS if name.startswith("perdure") else LIMIT if name.startswith("bare") else OTHERS
        for name in names
    ]
    axis.barh(names, list(values.values()), color=colours, height=0.62)
    axis.invert_yaxis()
    axis.tick_params(length=0)
    axis.spines["bottom"].set_visible(False)
    axis.set_xticks([])
    longest = max(values.values())
    axis.set_xlim(0, longest * 1.3)
    for number, (value, label) in enumerate(zip(values.values(), labels, strict=True)):
        axis.text(value + longest * 0.015, number, label, va="center", fontsize=9)


def _turns(axis: Any, data: dict[str, Any]) -> None:
    rates = _medians(data, lambda turns, seconds, _cpu: turns / seconds)
    times = data["times_the_peer"]
    labels = [
        f"{rate:,.0f}" + (f"   {times[label]:.1f}×" if label in times else "")
        for label, rate in rates.items()
    ]
    _bars(axis, rates, labels)
    below = f"64 sessions at once; × is to SQLiteSession; an fsync costs {data['fsync_us']:,.0f} µs"
    _title(axis, "Turns a second", below)


def _cpu(axis: Any, data: dict[str, Any]) -> None:
    costs = _medians(data, lambda turns, _seconds, cpu: 1e6 * cpu / turns)
    _bars(axis, costs, [f"{cost:,.0f} µs" for cost in costs.values()])
    _title(axis, "Processor time a turn", "µs of the whole process, 64 sessions; less is better")


def _medians(data: dict[str, Any], figure: Any) -> dict[str, float]:
    found = {
        label: statistics.median(figure(*one[:3]) for one in rounds)
        for label, rounds in data["rounds"].items()
    }
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def _lone(axis: Any, data: dict[str, Any]) -> None:
    raw, ours = data["lone_us"]["raw"], data["lone_us"]["perdure"]
    end = max(statistics.quantiles(times, n=20)[-1] for times in (raw, ours))
    for times, colour, name in ((raw, OTHERS, "raw commit"), (ours, OURS, "session.append")):
        axis.hist(times, bins=60, range=(0, end), color=colour, alpha=0.75, label=name)
        axis.axvline(statistics.median(times), color=colour, linewidth=1.2, linestyle="--")
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.set_xlabel("µs; dashed: the median")
    axis.legend(frameon=False, fontsize=9)
    _title(axis, "A lone append", "three messages, against a raw commit of the same bytes")


def _reading(axis: Any, data: dict[str, Any]) -> None:
    for shift, index in ((-0.2, 0), (0.2, 1)):
        colour = (OTHERS, OURS)[index]
        sizes = [list(found["seconds"].items())[index] for found in data.values()]
        heights = [1e3 * seconds for _, seconds in sizes]
        places = [number + shift for number in range(len(heights))]
        label = f"{int(sizes[0][0]):,} records"
        bars = axis.bar(places, heights, 0.36, color=colour, label=label)
        axis.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
    axis.set_xticks(range(len(data)), list(data))
    axis.tick_params(axis="x", length=0, labelcolor=INK)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.margins(y=0.15)
    axis.legend(frameon=False, fontsize=9, loc="upper right")
    _title(axis, "Reading a long session", "ms; the window is the last 50 messages")


def _effects(axis: Any, data: dict[str, Any]) -> None:
    costs = {label: found["us_a_step"] for label, found in data["64"].items()}
    _bars(axis, costs, [f"{cost:,.0f} µs" for cost in costs.values()])
    below = "µs a step, 64 sessions at once, all of them durable; less is better"
    _title(axis, "A step that is recorded", below)


def _sessions(axis: Any, data: dict[str, Any]) -> None:
    sizes = [int(size) for size in data["sizes"]]
    for what, by_size in data["seconds"].items():
        heights = [1e3 * seconds for seconds in by_size.values()]
        axis.plot(sizes, heights, marker="o", markersize=3, linewidth=1.4, label=what)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.minorticks_off()
    axis.set_xlabel("sessions in the store")
    axis.legend(frameon=False, fontsize=7, ncols=2)
    _title(axis, "Many sessions", f"ms, median, in a {data['scheme']} store")


PANELS: dict[str, list[Any]] = {
    "speed": [_turns, _cpu, _lone],
    "reading": [_reading],
    "effects": [_effects],
    "sessions": [_sessions],
}
