"""LAMMPS: the published input scaled up, runs of it, and comparison of their results.

The input is examples/melt/in.melt as the package lammps-examples ships it. Three things are
changed, and the demo prints them: the size of the box; `run`, which becomes a run from a start
configuration with restart files every N steps; and atoms are not re-sorted in memory, which
makes a restarted run equal to an undisturbed one bit by bit (the order of sums is the same).
"""

import os
import re
import subprocess

PUBLISHED = "/usr/share/lammps/examples/melt/in.melt"
NEIGHBOR_EVERY = 20  # in.melt's neigh_modify: restarts fall on steps of a new neighbor list
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
# Ranks that wait give their processor to others instead of spinning.
MPIRUN += ["--mca", "mpi_yield_when_idle", "1"]

# What a restart file does not hold and the published input sets.
RUN_INPUT = """# examples/melt/in.melt, continued from a restart file
atom_modify	sort 0 0.0
read_restart	${from}
%s
thermo		%d
thermo_modify	flush yes
restart		${every} ${ck}/ck.*.%%
run		${last} upto
restart		0
write_restart	${out}/final.restart
group		sample id 1:100000000:97
write_dump	sample custom ${out}/final.dump id x y z vx vy vz modify sort id format float %%.17g
"""


def published_lines():
    with open(PUBLISHED) as file:
        return [line.rstrip("\n") for line in file]


def start_input(cells):
    """The published input up to its run, with a box of `cells` cubed unit cells."""
    lines = []
    for line in published_lines():
        if line.startswith("region"):
            line, changes = re.subn(r"0 10 0 10 0 10", f"0 {cells} 0 {cells} 0 {cells}", line)
            if changes != 1:
                raise RuntimeError(f"{PUBLISHED} is not the input that is known: {line}")
        if line.startswith("atom_style"):
            line += "\natom_modify\tsort 0 0.0"
        if line.startswith(("run", "thermo")):
            continue
        lines.append(line)
    return "\n".join(lines) + "\nwrite_restart\tstart.restart\n"


def run_input(thermo_every):
    """The input of the runs: what must be said again after reading a restart file."""
    kept = [line for line in published_lines() if line.startswith(("neighbor", "neigh_", "fix"))]
    return RUN_INPUT % ("\n".join(kept), thermo_every)


def lmp(ranks, args, **options):
    """Command of a run."""
    return [*MPIRUN, "-n", str(ranks), "lmp", "-screen", "none", *args]


def run(command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def thermo(log_path):
    """Thermodynamic output of a log: {step: the line's words}."""
    rows, inside = {}, False
    with open(log_path) as file:
        for line in file:
            words = line.split()
            if words[:2] == ["Step", "Temp"]:
                inside = True
            elif inside and words and words[0].isdigit():
                rows[int(words[0])] = words
            else:
                inside = False
    return rows


def loop_seconds(log_path):
    """What the log says its runs took, and of that, output (checkpoints mostly)."""
    with open(log_path) as file:
        text = file.read()
    loop = sum(float(t) for t in re.findall(r"^Loop time of ([\d.]+)", text, re.M))
    output = sum(float(t) for t in re.findall(r"^Output\s*\|[^|]*\|[^|]*\|\s*([\d.]+)", text, re.M))
    return loop, output


def _same_bytes(a, b):
    with open(a, "rb") as one, open(b, "rb") as two:
        while True:
            block = one.read(1 << 20)
            if block != two.read(1 << 20):
                return False
            if not block:
                return True


def _dump(path):
    import numpy

    with open(path) as file:
        return numpy.loadtxt(file, skiprows=9)


def compare(undisturbed, other):
    """Compares two directories of results. Returns (equal, lines of text)."""
    text, equal = [], True
    one, two = thermo_of(undisturbed), thermo_of(other)
    differing = [step for step in one if step in two and one[step] != two[step]]
    shared = len([step for step in one if step in two])
    missing = sorted(set(one) ^ set(two))
    equal &= not differing and not missing and shared > 0
    text.append(f"thermo output: {shared - len(differing)} of {shared} lines equal to the digit")
    if missing:
        text.append(f"thermo output: steps in one log only: {missing}")
    final = [os.path.join(d, "final.restart") for d in (undisturbed, other)]
    size = os.path.getsize(final[0])
    if _same_bytes(*final):
        text.append(f"final state:   every byte of all atoms equal ({size} bytes)")
    else:
        equal = False
        text.append("final state:   bytes differ")
    a, b = (_dump(os.path.join(d, "final.dump")) for d in (undisturbed, other))
    worst = float(abs(a - b).max()) if a.shape == b.shape else float("inf")
    equal &= worst == 0.0
    text.append(f"sampled atoms: {len(a)} positions and velocities, largest difference {worst:g}")
    return equal, text


def thermo_of(results):
    """Thermo lines of all attempts of a run; a later attempt goes over the steps again."""
    rows = {}
    for name in sorted(n for n in os.listdir(results) if re.fullmatch(r"log\.\d+", n)):
        rows.update(thermo(os.path.join(results, name)))
    return rows
