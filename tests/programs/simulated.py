"""Simulations as frames: python3 simulated.py PLACE, with the program of FOREBAY. Run by tests/tests/system/sim.rs."""

import json
import os
import pathlib
import subprocess
import sys

import numpy
import pandas

import forebay.sim

place = pathlib.Path(sys.argv[1])
workload, machine = place / "job.toml", place / "machine.toml"

run = forebay.sim.run(workload, machine=machine, set={"buffer.capacity": "64MiB"})
assert run.tables == ["jobs", "phases", "resources", "series"], run.tables
phases = run.frame("phases")
assert isinstance(phases, pandas.DataFrame) and list(phases.name) == ["write", "read"], phases
assert phases.written_bytes.sum() == 4 * (32 << 20) and phases.bytes_per_s.dtype == numpy.float64
assert phases["bound_by.resource"].notna().all(), phases.columns
series = run.frame("series")
assert series.application_bytes.sum() == phases.written_bytes.sum() + phases.read_bytes.sum()
assert (series.at_s.diff().dropna() > 0).all() and series.buffered_bytes.max() > 0
assert run.frame("jobs").end_s[0] == run.json["jobs"][0]["end_s"]

# A file that the command wrote is the same result.
said = subprocess.run([os.environ["FOREBAY"], "sim", "run", workload, "-m", machine, "--set", "buffer.capacity=64MiB", "--json"],
                      capture_output=True, check=True)
(place / "run.json").write_bytes(said.stdout)
assert forebay.sim.load(place / "run.json").json == run.json

swept = forebay.sim.sweep(workload, machine=machine, over={"buffer.capacity": "16MiB..64MiB*2", "storage.servers": [1, 2]})
points = swept.frame("points")
assert len(points) == 6 and sorted(set(points["buffer.capacity"])) == [16 << 20, 32 << 20, 64 << 20], points
ends = points.groupby("storage.servers").end_s.max()
assert ends[2.0] < ends[1.0], ends
assert points.on_front.dtype == bool and points.error.isna().all()
broken = forebay.sim.sweep(workload, machine=machine, over={"storage.servers": [0, 1]}).frame("points")
assert numpy.isnan(broken.end_s[0]) and "storage.servers" in broken.error[0], broken

by_transfer = forebay.sim.sweep(workload, machine=machine, over={"workload.transfer": ["256KiB", "1MiB"], "seed": [1, 2]}).frame("points")
assert list(by_transfer["workload.transfer"]) == [1 << 18, 1 << 18, 1 << 20, 1 << 20] and by_transfer.error.isna().all(), by_transfer

explained = forebay.sim.explain(workload, machine=machine)
assert {"limits", "phases", "regimes", "resources", "series"} <= set(explained.tables), explained.tables
assert {"closed.bytes_per_s", "ratio"} <= set(explained.frame("phases").columns) and len(explained.frame("limits")) > 0
engine = forebay.sim.phold(processes=16, events=10_000).frame("phold")
assert set(engine.queue) == {"ladder", "heap"} and (engine.events_per_s > 0).all(), engine
# Those that take long, or replay, are read as their commands print them.
targets = forebay.sim.Result({"targets": [{"target": "T1", "expected": 1.0, "verdict": "met"}], "met": True}).frame("targets")
assert targets.expected[0] == 1.0
figure = forebay.sim.Result({"points": [{"system": "full", "processes": 256, "bytes_per_s": 2.0}]}).frame("points")
assert figure.processes[0] == 256
calibrated = forebay.sim.Result({"parameters": [{"key": "storage.sync", "before": 0.0, "after": 1.0}],
                                 "others": [{"workload": "w", "checked": [{"phase": "p", "error": 0.5, "runs_s": [1.0]}]}]})
assert calibrated.frame("parameters").after[0] == 1.0 and list(calibrated.frame("others").workload) == ["w"]

sized = forebay.sim.size(workload, machine=machine, seeds=4)
answers, tried = sized.frame("answers"), sized.frame("tried")
assert len(answers) == len(sized.json["answers"]) and set(tried.what) == set(answers.what)
assert (tried.groupby("what").value.diff().dropna() >= 0).all(), "in the order of the value"
assert json.dumps(sized.json["wish"]["seeds"]) == "4"

for wrong in (lambda: forebay.sim.run(workload, machine=machine, set={"storage.server": 3}), lambda: forebay.sim.run("no.toml")):
    try:
        wrong()
    except forebay.sim.SimulationError as error:
        assert "expected" in str(error) or "no.toml" in str(error), error
    else:
        raise AssertionError("nothing was refused")
try:
    run.frame("points")
except KeyError as error:
    assert "phases" in str(error), error
print(f"python: {len(phases)} phases, {len(points)} points, {len(tried)} candidates")
