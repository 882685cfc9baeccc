"""The main job, on real input: LAMMPS under MPI, with and without a burst buffer.

Three runs of the same simulation: checkpoints straight to a slow PFS; `forebay run` of a #DW
script with checkpoints in a buffer on flash; the same once more, with the application killed in
the middle and restarted from the buffer's last checkpoint. The results of all three are
compared. Prints a table and what the trace of the first run says, and leaves a picture and a page of the traces in
demo/out/.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import cputime
import lammps
import picture
from slow_pfs import SlowPfs
from watch import CheckpointWatch

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "out")
RANKS = 2
TARGET_S = 40.0  # about what one undisturbed run is to compute
MIN_CELLS, MAX_CELLS, TRIAL_CELLS = 40, 80, 24  # a restart file has 88 bytes an atom
MIN_STEPS = 80
EVERY = lammps.NEIGHBOR_EVERY


def say(text=""):
    print(text, flush=True)


def heading(text):
    say(f"\n== {text}")


def mib(size):
    return f"{size / (1 << 20):.0f} MiB"


class Demo:
    """One demonstration: its directories, the slow PFS, and what the runs gave."""

    def __init__(self, args, stack_dir):
        self.args = args
        self.dir = stack_dir
        self.forebay = os.path.abspath(os.environ["FOREBAY_BIN"])
        self.flash = os.environ.get("FOREBAY_FLASH", "/dev/shm")
        self.pfs = None
        self.child = None
        self.steps = 0

    # ---- preparation

    def prepare(self):
        heading("a slow parallel file system")
        self.pfs = SlowPfs(self.dir)
        say(f"   {self.pfs.label}")
        say(f"   measured: {mib(self.pfs.measure())}/s written and fsynced")
        heading(f"the input: {lammps.PUBLISHED}")
        self.steps = self.args.steps
        cells = self.args.cells or self.choose_cells()
        size = self.make_start(cells)
        self.checkpoint_bytes = size
        count = self.steps // EVERY
        say(f"   {cells}^3 cells instead of 10^3, {4 * cells**3} atoms; {RANKS} MPI ranks")
        say(
            f"   {self.steps} steps, a checkpoint of {mib(size)} every {EVERY}: "
            f"{count} checkpoints, {mib(count * size)} in all"
        )
        shutil.copy(os.path.join(self.dir, "in.run"), self.pfs.path)
        shutil.move(os.path.join(self.dir, "start.restart"), self.pfs.path)
        self.pfs.forget_cache()

    def make_start(self, cells):
        """Makes start.restart, a box of `cells` cubed, and in.run; the former's size."""
        for name, text in (("in.start", lammps.start_input(cells)), ("in.run", lammps.run_input(EVERY))):
            with open(os.path.join(self.dir, name), "w") as file:
                file.write(text)
        lammps.run(lammps.lmp(RANKS, ["-in", "in.start", "-log", "none"]), self.dir)
        return os.path.getsize(os.path.join(self.dir, "start.restart"))

    def choose_cells(self):
        """A box so large that this machine computes all steps in about TARGET_S."""
        self.make_start(TRIAL_CELLS)
        out = os.path.join(self.dir, "trial")
        os.mkdir(out)
        log = os.path.join(out, "log.1")
        variables = self.variables("start.restart", out, out, EVERY * 10, EVERY)
        lammps.run(lammps.lmp(RANKS, ["-in", "in.run", "-log", log, *variables]), self.dir)
        seconds, _ = lammps.loop_seconds(log)
        shutil.rmtree(out)
        cells = TRIAL_CELLS * (TARGET_S / max(seconds * self.steps / EVERY, 1e-6)) ** (1 / 3)
        return max(MIN_CELLS, min(MAX_CELLS, int(cells)))

    @staticmethod
    def variables(start, checkpoints, out, every, last):
        words = {"from": start, "ck": checkpoints, "out": out, "every": every, "last": last}
        return [word for key, value in words.items() for word in ("-var", key, str(value))]

    def tracer(self, name):
        """What stands before a command whose calls for I/O are recorded. A restart adds to the trace."""
        return [self.forebay, "trace", "--quiet", "--append", "-o", self.trace(name), "--"]

    def trace(self, name):
        return os.path.join(self.dir, f"trace-{name}")

    def report(self):
        """What the traces of the first two runs say: in words of the first, and a page of both."""
        found = subprocess.run([self.forebay, "report", self.trace("direct")], check=True, capture_output=True, text=True)
        # The head, what stands out, and the buffer that it asks for; the page has the rest.
        say("\n".join("   " + line for line in found.stdout.split("\nPHASES")[0].splitlines()))
        page = os.path.join(OUT, "report.html")
        subprocess.run(
            [self.forebay, "report", "--html", page, self.trace("direct"), "--against", self.trace("buffered")],
            check=True, stdout=subprocess.DEVNULL,
        )
        return page

    # ---- the three runs

    def without_buffer(self):
        heading("1/3 without a buffer: input, checkpoints and results straight on the PFS")
        directory = os.path.join(self.pfs.path, "direct")
        checkpoints = os.path.join(directory, "ck")
        results = os.path.join(directory, "results")
        os.makedirs(checkpoints)
        os.makedirs(results)
        watch = CheckpointWatch(checkpoints)
        progress = Progress(results, self.steps)
        others = cputime.Others()
        begun = time.time()
        command = lammps.lmp(
            RANKS,
            ["-in", "../in.run", "-log", "results/log.1"]
            + self.variables("../start.restart", "ck", "results", EVERY, self.steps),
        )
        command = [*self.tracer("direct"), *command]
        try:
            code = self.start(command, cwd=directory).wait()
            ended = time.time()
            others_s = others.taken()
        finally:
            progress.stop()
            marks = watch.stop()
        if code != 0:
            raise RuntimeError(f"LAMMPS ended with {code}; see {results}/log.1")
        # A job's results are safe when they are on the PFS, not in this node's memory.
        self.pfs.sync()
        self.child = None
        safe = time.time()
        loop, output = lammps.loop_seconds(os.path.join(results, "log.1"))
        size = sum(mark[3] for mark in marks)
        shutil.rmtree(checkpoints)
        return {
            "name": "without buffer", "begun": begun, "ended": ended, "safe": safe,
            "checkpoints": marks, "loop_s": loop, "output_s": output, "results": results,
            "pfs_bytes": size + tree_bytes(results) + self.checkpoint_bytes, "flash_bytes": 0,
            "moves": [("write-back", ended, safe)], "restarts": [], "others_s": others_s,
        }

    def with_buffer(self, kill):
        if kill:
            heading("3/3 with a buffer, the application killed in the middle and restarted")
        else:
            heading("2/3 with a buffer: stage in, checkpoints on flash, stage out")
        self.pfs.forget_cache()
        name = "killed" if kill else "buffered"
        script = self.job_script(name)
        mount = os.path.join(self.dir, f"mnt-{name}")
        killer = Killer(mount, self.steps) if kill else None
        watch = LateWatch(os.path.join(mount, "ck"))
        progress = Progress(os.path.join(mount, "results"), self.steps)
        others = cputime.Others()
        begun = time.time()
        command = [
            self.forebay, "run", "--json", "--flash", self.flash, "--mount-dir", mount,
            "--work-dir", self.dir, script, str(self.steps), str(EVERY), str(RANKS),
        ]
        try:
            child = self.start(command, stdout=subprocess.PIPE, text=True)
            text, _ = child.communicate()
            others_s = others.taken()
        finally:
            safe = time.time()
            progress.stop()
            marks = watch.stop()
            if killer:
                killer.stop()
        self.child = None
        if child.returncode != 0:
            raise RuntimeError(f"forebay run ended with {child.returncode}\n{text}")
        run = self.account(name, text, begun, safe, marks, killer)
        return {**run, "others_s": others_s}

    def job_script(self, name):
        with open(os.path.join(HERE, "job.sh.in")) as file:
            text = file.read()
        count = self.steps // EVERY + 3
        capacity = (count * self.checkpoint_bytes >> 20) + 256
        tracer = " ".join(self.tracer(name))
        values = {"CAPACITY": f"{capacity}MiB", "PFS": self.pfs.path, "RESULTS": name, "TRACE": tracer}
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        path = os.path.join(self.dir, f"job-{name}.sh")
        with open(path, "w") as file:
            file.write(text)
        if name == "buffered":
            say("\n".join("   " + line for line in text.splitlines() if line.startswith("#DW")))
        return path

    def account(self, name, text, begun, safe, marks, killer):
        """What a `forebay run` did, from its JSON summary, its events and the logs."""
        summary = json.loads(text.splitlines()[-1])
        steps = {step["step"]: step for step in summary["steps"]}
        moved_in, moved_out = steps["data-in"], steps["data-out"]
        results = os.path.join(self.pfs.path, name)
        logs = sorted(n for n in os.listdir(results) if n.startswith("log."))
        times = [lammps.loop_seconds(os.path.join(results, log)) for log in logs]
        # The steps follow one another: their times give the moments they began at.
        moments, at = {}, begun
        for step in summary["steps"]:
            moments[step["step"]] = (at, at + step["elapsed_s"])
            at += step["elapsed_s"]
        events = re.findall(r"demo-event attempt (\d+) from (\S+) at ([\d.]+)", text)
        restarts = [(start, float(moment)) for number, start, moment in events if number != "1"]
        if killer and not restarts:
            raise RuntimeError("the application was not killed: it was too fast. Try more --steps")
        for start, moment in restarts:
            say(f"   killed after {killer.killed_at - begun:.0f} s; restarted from {start}")
        return {
            "name": f"with buffer{', killed' if killer else ''}",
            "begun": begun, "ended": moments["run"][1], "safe": safe, "checkpoints": marks,
            "loop_s": sum(t[0] for t in times), "output_s": sum(t[1] for t in times),
            "results": results, "pfs_bytes": moved_in["bytes"] + moved_out["bytes"],
            "flash_bytes": sum(mark[3] for mark in marks) + moved_in["bytes"] + moved_out["bytes"],
            "moves": [("stage in", *moments["data-in"]), ("stage out", *moments["data-out"])],
            "restarts": [(killer.killed_at, moment) for _, moment in restarts] if killer else [],
            "summary": summary,
        }

    def start(self, command, **options):
        """Starts a child that Ctrl-C does not reach by itself: close() ends it in order."""
        self.child = subprocess.Popen(command, start_new_session=True, **options)
        return self.child

    def close(self):
        """Ends what runs, unmounts what is mounted, and removes the PFS."""
        if self.child and self.child.poll() is None:
            say("demo: ending the run")
            # It goes to the job; `forebay run` stages out and tears down then.
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(90)
            except subprocess.TimeoutExpired:
                os.killpg(self.child.pid, signal.SIGKILL)
                self.child.wait()
        for name in ("mnt-buffered", "mnt-killed"):
            mount = os.path.join(self.dir, name)
            if is_mounted(mount):
                subprocess.run([self.forebay, "umount", "--force", mount])
        if self.pfs:
            self.pfs.close()


def is_mounted(path):
    """Also true for a mount whose server is dead."""
    with open("/proc/self/mountinfo") as file:
        return any(line.split()[4] == path for line in file)


def tree_bytes(top):
    return sum(os.path.getsize(os.path.join(d, n)) for d, _, names in os.walk(top) for n in names)


class Ticker:
    """A thread that calls tick() every `interval` seconds until stop()."""

    def __init__(self, interval):
        self._end = threading.Event()
        self._interval = interval
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self):
        while not self._end.wait(self._interval):
            self.tick()

    def stop(self):
        self._end.set()
        self._thread.join()


class LateWatch(Ticker):
    """A CheckpointWatch of a directory that the job has yet to make."""

    def __init__(self, directory):
        self.directory, self.watch = directory, None
        super().__init__(0.1)

    def tick(self):
        if self.watch is None and os.path.isdir(self.directory):
            self.watch = CheckpointWatch(self.directory)

    def stop(self):
        super().stop()
        return self.watch.stop() if self.watch else []


class Progress(Ticker):
    """Prints the step that the newest log has reached, every few seconds."""

    def __init__(self, directory, steps):
        self.directory, self.steps, self.last = directory, steps, None
        super().__init__(4)

    def tick(self):
        try:
            logs = sorted(n for n in os.listdir(self.directory) if n.startswith("log."))
            rows = lammps.thermo(os.path.join(self.directory, logs[-1])) if logs else {}
        except OSError:
            return
        if rows and max(rows) != self.last:
            self.last = max(rows)
            say(f"   step {self.last} of {self.steps}")


class Killer(Ticker):
    """Kills one rank of LAMMPS, without warning, when half of the checkpoints are there."""

    def __init__(self, mount, steps):
        self.mount, self.killed_at = mount, None
        self.base = os.path.join(mount, "ck", f"ck.{steps // 2 // EVERY * EVERY}.base")
        super().__init__(0.1)

    def tick(self):
        if self.killed_at or not os.path.exists(self.base):
            return
        # Not in the moment of the checkpoint: some steps later, in the middle of computing.
        time.sleep(1.0)
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                cwd = os.readlink(f"/proc/{pid}/cwd")
                name = os.readlink(f"/proc/{pid}/exe")
            except OSError:
                continue
            if cwd == self.mount and os.path.basename(name) == "lmp":
                os.kill(int(pid), signal.SIGKILL)
                self.killed_at = time.time()
                return


def table(runs):
    """Prints what the runs took and moved."""
    def stall(run):
        return sum(end - begin for _, begin, end, _ in run["checkpoints"])

    rows = [
        ("", lambda r: r["name"]),
        ("application, wall time", lambda r: f"{r['ended'] - r['begun']:.1f} s"),
        ("until results are safe on the PFS", lambda r: f"{r['safe'] - r['begun']:.1f} s"),
        ("  of it computing", lambda r: f"{r['loop_s'] - stall(r):.1f} s" if not r["restarts"] else "-"),
        ("checkpoints written", lambda r: str(len(r["checkpoints"]))),
        ("application stalled in checkpoints", lambda r: f"{stall(r):.2f} s"),
        ("  per checkpoint", lambda r: f"{stall(r) / max(len(r['checkpoints']), 1):.2f} s"),
        ("bytes to and from the PFS", lambda r: mib(r["pfs_bytes"])),
        ("bytes to and from flash", lambda r: mib(r["flash_bytes"])),
    ]
    cells = [[label, *(value(run) for run in runs)] for label, value in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(runs) + 1)]
    for row in cells:
        say("   " + row[0].ljust(widths[0]) + "".join("  " + c.rjust(w) for c, w in zip(row[1:], widths[1:])))
    speedup = stall(runs[0]) / max(stall(runs[1]), 1e-3)
    note = cputime.note([(run["loop_s"] - stall(run), run["others_s"]) for run in runs[:2]])
    if note:
        say("\n   " + note.replace("\n", "\n   "))
    say(f"\n   checkpoints stall the application {speedup:.1f} times shorter with the buffer")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cells", type=int, metavar="N",
        help=f"unit cells per side, 4 atoms each; by default what takes about {TARGET_S:.0f} s a run",
    )
    parser.add_argument("--steps", type=int, default=100, metavar="N", help=f"a multiple of {EVERY}")
    args = parser.parse_args()
    if args.steps % EVERY or args.steps < MIN_STEPS:
        parser.error(f"--steps must be a multiple of {EVERY}, {MIN_STEPS} or more")
    return args


def main():
    args = arguments()
    os.makedirs(OUT, exist_ok=True)
    # SIGTERM cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = tempfile.mkdtemp(prefix="forebay-demo-", dir=os.environ.get("DEMO_WORK", "/var/tmp"))
    begun = time.monotonic()
    demo = Demo(args, work)
    try:
        demo.prepare()
        runs = [demo.without_buffer(), demo.with_buffer(kill=False), demo.with_buffer(kill=True)]
        heading("are the results the same?")
        same = True
        for run in runs[1:]:
            equal, text = lammps.compare(runs[0]["results"], run["results"])
            same &= equal
            say(f"   {run['name']} against without buffer:")
            say("\n".join("     " + line for line in text))
        heading(f"with and without; PFS: {demo.pfs.label}")
        table(runs)
        target = os.path.join(OUT, "timeline.png")
        picture.draw(runs, demo.pfs.label, target)
        heading("what forebay report says of the run without a buffer")
        page = demo.report()
        with open(os.path.join(OUT, "runs.json"), "w") as file:
            json.dump(runs, file, indent=1)
        say(f"\n   picture: {target}\n   page of both runs, for a browser: {page}\n   took {time.monotonic() - begun:.0f} s")
        if not same:
            say("demo: the results DIFFER")
        return 0 if same else 1
    except KeyboardInterrupt:
        say("demo: interrupted, cleaning up")
        return 130
    finally:
        # A second Ctrl-C must not leave mounts behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        demo.close()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
