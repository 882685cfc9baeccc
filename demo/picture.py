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
    figure, axes = pyplot.subplots(figsize=(12, 1.3 * len(runs) + 2.2))
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
    axes.set_title(f"LAMMPS with and without a burst buffer\nPFS: {pfs}", fontsize=12)
    axes.spines[["top", "right"]].set_visible(False)
    order = [kind for kind in COLOURS if kind in seen]
    axes.legend(
        handles=[Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in order],
        loc="upper center", bbox_to_anchor=(0.5, -0.28), ncol=3, frameon=False, fontsize=10,
    )
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)
