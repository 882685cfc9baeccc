"""What `forebay sim` predicts, as numpy arrays and pandas frames.

    import forebay.sim

    run = forebay.sim.run("job.toml", machine="mine.toml", set={"buffer.capacity": "4GiB"})
    run.frame("phases")                                     # a row for each phase of each job
    run.frame("series").plot(x="at_s", y="buffered_bytes")  # over time
    sweep = forebay.sim.sweep("job.toml", machine="mine.toml", over={"buffer.capacity": "1GiB..64GiB*2"})
    sweep.frame("points")                                   # a row for each point; values as numbers
    size = forebay.sim.size("job.toml", machine="mine.toml", seeds=50)
    size.frame("answers"), size.frame("tried")
    forebay.sim.explain("job.toml", machine="mine.toml").frame("limits")   # the closed form
    forebay.sim.validate().frame("targets")
    forebay.sim.load("run.json").arrays("phases")["bytes_per_s"].max()   # of a file, without pandas

A result is what the command printed with --json (docs/SIMULATION.md says what each key means): `result.json` has all of it, `tables` the
names of its tables. Columns have their units in their names: bytes, seconds (`_s`), bytes per second. What is not known is NaN.

Needs numpy, and pandas for frames; not libforebay.so. `load` needs nothing else; all others need the program
`forebay`: that of the environment variable FOREBAY, or the first on the path.
"""

import json
import os
import re
import subprocess

import numpy

__all__ = ["Result", "SimulationError", "calibrate", "check", "compare", "explain", "figure", "load", "phold", "run", "size", "sweep",
           "validate"]

_UNITS = {"": 1, "B": 1, "s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60, "h": 3600, "d": 86400,
          "bit": 0.125, "Kbit": 125, "Mbit": 125e3, "Gbit": 125e6, "Tbit": 125e9}
for _power, _letter in enumerate("KMGTP", 1):
    _UNITS[_letter + "B"] = 1000 ** _power
    _UNITS[_letter + "iB"] = 1024 ** _power


class SimulationError(Exception):
    """The program refused, or a simulation failed: its message says what, where, and what was expected."""


def _number(text):
    """A value of a range as a number, where it is one: `64`, `4GiB`, `100MB/s`, `5ms`."""
    found = re.fullmatch(r"([0-9.]+)\s*([A-Za-z]*)(?:/s)?", text.strip())
    try:
        return float(found[1]) * _UNITS[found[2]]
    except (TypeError, KeyError, ValueError):
        return None


def _flat(row, prefix=""):
    """A row without tables in it: `bound_by.resource` instead of a table `bound_by`."""
    flat = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        elif not isinstance(value, list):
            flat[prefix + key] = value
    return flat


class Result:
    """A result of `forebay sim run`, `explain`, `sweep`, `size`, `compare`, `check`, `calibrate`, `figure`, `phold` or `validate`."""

    def __init__(self, result):
        self.json = result
        """All that was printed."""
        self._tables = {}
        if "answers" in result and "wish" in result:
            self._size(result)
        elif "points" in result and "keys" in result:
            self._sweep(result)
        elif "jobs" in result and "series" in result:
            self._run(result)
        elif "outcome" in result and "phases" in result:
            self._explain(result)
        elif "parameters" in result and "others" in result:
            self._tables["parameters"] = [_flat(row) for row in result["parameters"]]
            self._tables["others"] = [{"workload": other["workload"], **_flat(row)}
                                      for other in result["others"] for row in other["checked"]]
        else:
            # Of a figure points alone: it has no keys that were swept.
            table = next((name for name in ("variants", "checked", "targets", "points", "phold") if name in result), None)
            if table is None:
                raise ValueError(f"not a result of a command of forebay sim that has tables: it has {sorted(result)}")
            self._tables[table] = [_flat(row) for row in result[table]]

    def _explain(self, result):
        # The whole run, but its phases as they are explained.
        self._run(result["outcome"])
        self._tables["phases"] = [
            _flat({key: value for key, value in phase.items() if value is not None}) for phase in result["phases"]]
        limits, regimes = [], []
        for phase in result["phases"]:
            of = {"job": phase["job"], "phase": phase["phase"]}
            closed = phase.get("closed") or {}
            limits += [{**of, **row} for row in closed.get("limits", [])]
            regimes += [{**of, **row} for row in phase["regimes"]]
        self._tables["limits"], self._tables["regimes"] = limits, regimes

    def _run(self, result):
        jobs = result["jobs"]
        self._tables["jobs"] = [_flat(job) for job in jobs]
        self._tables["phases"] = [{"job": job["name"], **_flat(phase)} for job in jobs for phase in job["phases"]]
        self._tables["resources"] = [_flat(row) for row in result["resources"]]
        series, step = result["series"], result["series"]["interval_s"]
        columns = [key for key, value in series.items() if isinstance(value, list)]
        count = max((len(series[key]) for key in columns), default=0)
        self._tables["series"] = [
            {"at_s": number * step, **{key: series[key][number] for key in columns}} for number in range(count)]
        if result.get("decisions"):
            self._tables["decisions"] = result["decisions"]

    def _sweep(self, result):
        keys, rows = result["keys"], []
        columns = list(zip(*(point["values"] for point in result["points"])))
        # A key whose values are all numbers is a column of numbers.
        numbers = [[_number(value) for value in column] for column in columns]
        values = [of if None not in of else column for of, column in zip(numbers, columns)]
        for number, point in enumerate(result["points"]):
            row = {key: values[place][number] for place, key in enumerate(keys)}
            row.update(_flat(point))
            if point.get("error"):
                # There are no figures.
                row.update({key: None for key in ("bytes_per_s", "end_s", "drained_s", "stalled_s")})
            rows.append(row)
        self._tables["points"] = rows

    def _size(self, result):
        self._tables["answers"] = [_flat(answer) for answer in result["answers"]]
        self._tables["tried"] = [
            {"what": answer["what"], "unit": answer["unit"], **_flat(row)}
            for answer in result["answers"] for row in answer["tried"]]

    @property
    def tables(self):
        """Names of the tables."""
        return sorted(self._tables)

    def _rows(self, table):
        if table not in self._tables:
            raise KeyError(f"no table {table!r}: this result has {', '.join(self.tables)}")
        return self._tables[table]

    def arrays(self, table):
        """A numpy array for each column of a table: numbers as float64 with NaN for what is not known, else objects."""
        rows = self._rows(table)
        names = list(dict.fromkeys(key for row in rows for key in row))
        arrays = {}
        for name in names:
            column = [row.get(name) for row in rows]
            known = [value for value in column if value is not None]
            if known and all(isinstance(value, bool) for value in known) and len(known) == len(column):
                arrays[name] = numpy.array(column, dtype=bool)
            elif all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known) and known:
                arrays[name] = numpy.array([numpy.nan if value is None else value for value in column], dtype=numpy.float64)
            else:
                arrays[name] = numpy.array(column, dtype=object)
        return arrays

    def frame(self, table):
        """A table as a pandas frame."""
        import pandas

        return pandas.DataFrame(self.arrays(table))

    def __repr__(self):
        shapes = ", ".join(f"{table}: {len(self._tables[table])} rows" for table in self.tables)
        return f"<forebay.sim.Result {shapes}>"


def load(path):
    """The result in a file that `forebay sim ... --json` wrote."""
    with open(path, encoding="utf-8") as file:
        return Result(json.load(file))


def _arguments(workload, machine, settings, options):
    arguments = [] if workload is None else [os.fspath(workload)]
    if machine is not None:
        arguments += ["--machine", os.fspath(machine)]
    for key, value in (settings or {}).items():
        arguments += ["--set", f"{key}={'none' if value is None else value}"]
    for name, value in options.items():
        flag = f"-{name}" if len(name) == 1 else "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            arguments += [flag, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return arguments


def _call(command, arguments):
    program = os.environ.get("FOREBAY", "forebay")
    done = subprocess.run([program, "sim", command, *arguments, "--json"], capture_output=True, check=False)
    try:
        result = json.loads(done.stdout)
    except ValueError:
        result = None
    if result is None or "error" in result:
        said = done.stderr.decode(errors="replace").strip()
        raise SimulationError(str(result["error"]) if result and not said else said or f"{program} ended with {done.returncode}")
    return Result(result)


def run(workload=None, machine=None, set=None, **options):
    """`forebay sim run`: tables jobs, phases, resources, series. `set` changes keys of the machine; options are the command's flags:
    coarse=True, seed=7; without a workload IOR's parameters: N=1024, b="64m", t="4m", F=True."""
    return _call("run", _arguments(workload, machine, set, options))


def explain(workload=None, machine=None, set=None, **options):
    """`forebay sim explain`: tables phases (with the closed form: `closed.bytes_per_s`, `ratio`), limits, regimes, and those of `run`."""
    return _call("explain", _arguments(workload, machine, set, options))


def sweep(workload=None, machine=None, over=None, set=None, **options):
    """`forebay sim sweep`: table points. `over` has a range, or a list of values, for each key: of the machine, of the workload
    (`workload.transfer`), or seed, checkpoint_interval, processes."""
    arguments = _arguments(workload, machine, set, options)
    for key, values in (over or {}).items():
        values = values if isinstance(values, str) else ",".join(str(value) for value in values)
        arguments += ["--over", f"{key}={values}"]
    return _call("sweep", arguments)


def size(workload=None, machine=None, set=None, **options):
    """`forebay sim size`: tables answers, tried."""
    return _call("size", _arguments(workload, machine, set, options))


def compare(workload=None, machine=None, set=None, **options):
    """`forebay sim compare`: table variants."""
    return _call("compare", _arguments(workload, machine, set, options))


def check(workload, machine, dir, set=None, **options):
    """`forebay sim check`: table checked, predicted against replayed."""
    return _call("check", _arguments(workload, machine, set, {"dir": dir, **options}))


def calibrate(fitted, machine, output, other=(), set=None, **options):
    """`forebay sim calibrate`: tables parameters (what was moved) and others (the phases held out). `fitted` and `other` are lists of
    workload files or checks; the calibrated machine file goes to `output`."""
    arguments = [os.fspath(file) for file in fitted]
    arguments += [argument for file in other for argument in ("--other", os.fspath(file))]
    return _call("calibrate", arguments + _arguments(None, machine, set, {"output": output, **options}))


def figure(**options):
    """`forebay sim figure`: table points, a row for each system and number of processes."""
    return _call("figure", _arguments(None, None, None, options))


def phold(**options):
    """`forebay sim phold`: table phold, events per second of the engine."""
    return _call("phold", _arguments(None, None, None, options))


def validate(**options):
    """`forebay sim validate`: table targets. One that is not met is no error here: `result.json["met"]` says whether all are."""
    return _call("validate", _arguments(None, None, None, options))
