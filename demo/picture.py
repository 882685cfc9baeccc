"""The time line of the runs: computing, checkpoints, staging, restarts."""

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

COLOURS = {
    "compute": "#4c78a8",
    "checkpoint": "#e45756",
    "stage in": "#72b7b2",
    "stage out": "#54a24b",
    "write-back": "#b6992d",
    "down": "#222222",
}
LABELS = {
    "compute": "application computes",
    "checkpoint": "application waits for a checkpoint",
    "stage in": "stage in (PFS to buffer)",
    "stage out": "stage out (buffer to PFS, verified)",
    "write-back": "write-back of the page cache to the PFS",
    "down": "application killed, restarting",
}


def bars(run):
    """Bars of a run in the order they are painted: (kind, begin, end), seconds from its begin."""
    zero = run["begun"]
    found = []
    first = max([end for kind, _, end in run["moves"] if kind == "stage in"], default=zero)
    found.append(("compute", first, run["ended"]))
    found += [("down", killed, again) for killed, again in run["restarts"]]
    found += [("checkpoint", begin, end) for _, begin, end, _ in run["checkpoints"]]
    found += [(kind, begin, end) for kind, begin, end in run["moves"]]
    return [(kind, begin - zero, end - zero) for kind, begin, end in found]


def draw(runs, pfs, path):
    figure, (axes, stalls) = pyplot.subplots(
        2, 1, figsize=(12, 1.0 * len(runs) + 5.2), height_ratios=[len(runs), 2.2], layout="constrained"
    )
    seen = time_line(axes, runs)
    axes.set_title(f"LAMMPS with and without a burst buffer\nPFS: {pfs}", fontsize=12)
    order = [kind for kind in COLOURS if kind in seen]
    axes.legend(
        handles=[Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in order],
        loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=3, frameon=False, fontsize=10,
    )
    stall_bars(stalls, runs)
    for panel in (axes, stalls):
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def time_line(axes, runs):
    """One bar per run; returns the kinds that occur."""
    seen = []
    for row, run in enumerate(runs):
        for kind, begin, end in bars(run):
            # What is too short to be seen is drawn a hair wide: it did happen.
            axes.barh(row, max(end - begin, 0.05), left=begin, height=0.6, color=COLOURS[kind])
            if kind not in seen:
                seen.append(kind)
        total = run["safe"] - run["begun"]
        axes.text(total, row, f"  {total:.1f} s", va="center", fontsize=11)
    axes.set_yticks(range(len(runs)), [run["name"] for run in runs], fontsize=11)
    axes.invert_yaxis()
    axes.set_xlim(0, max(run["safe"] - run["begun"] for run in runs) * 1.12)
    axes.set_xlabel("seconds from the start of the job", fontsize=11)
    return seen


def stall_bars(axes, runs):
    """How long the application waited in each checkpoint."""
    shades = ["#e45756", "#4c78a8", "#9ecae9", "#bab0ac"]
    width = 0.8 / len(runs)
    steps = sorted({mark[0] for run in runs for mark in run["checkpoints"]})
    for number, run in enumerate(runs):
        spots = [steps.index(step) + (number - (len(runs) - 1) / 2) * width for step, *_ in run["checkpoints"]]
        heights = [end - begin for _, begin, end, _ in run["checkpoints"]]
        axes.bar(spots, heights, width, color=shades[number % len(shades)], label=run["name"])
    axes.set_xticks(range(len(steps)), [str(step) for step in steps], fontsize=10)
    axes.set_xlabel("checkpoint after step", fontsize=11)
    axes.set_ylabel("seconds waited", fontsize=11)
    axes.legend(frameon=False, fontsize=10, ncol=len(runs), loc="upper center", bbox_to_anchor=(0.5, 1.2))
