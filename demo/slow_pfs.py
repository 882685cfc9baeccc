"""A slow, shared parallel file system, made honestly on one machine.

Two ways, and the printed label says which one it was:

* As root, where the kernel has the cgroup v1 block-I/O throttle: an ext4 on a loop device whose
  reads and writes are limited to RATE in the root group (so the flusher's write-back is limited
  too), and whose share of dirty page cache is limited as a Lustre client's is (32 MiB per
  target by default). Without that last limit a checkpoint would only reach this node's memory.
* Else: a plain directory seen through bindfs, a FUSE file system with a rate limit and no cache
  for writes.

DEMO_PFS=bindfs asks for the second way.

Everything made here is undone by close(), in the reverse order, also after a failure half-way.
"""

import contextlib
import os
import shutil
import subprocess
import time

RATE_BYTES_PER_S = 100 * 1024 * 1024
SIZE_BYTES = 6 << 30
# What a client of the PFS may hold back before its writers wait.
DIRTY_LIMIT_BYTES = 32 << 20
BLKIO = "/sys/fs/cgroup/blkio"


def _run(*command):
    """Runs a command; its error text is the exception's."""
    # Not in our process group: Ctrl-C must not end a mount half-way.
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def _write(path, text):
    with open(path, "w") as file:
        file.write(text)


class SlowPfs:
    """The PFS: `path` is its directory, `label` says what it is."""

    def __init__(self, work_dir):
        self._undo = contextlib.ExitStack()
        self._remount = None
        self.path = os.path.join(work_dir, "pfs")
        try:
            os.mkdir(self.path)
            self._undo.callback(self._remove_dir, self.path)
            can_throttle = os.path.exists(f"{BLKIO}/blkio.throttle.write_bps_device")
            forced = os.environ.get("DEMO_PFS")
            if os.geteuid() == 0 and can_throttle and forced != "bindfs":
                self._make_throttled(work_dir)
            else:
                self._make_bindfs(work_dir)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _remove_dir(path):
        # A mount that could not be undone keeps its mount point: never delete through it.
        if not os.path.ismount(path):
            shutil.rmtree(path, ignore_errors=True)

    def _make_throttled(self, work_dir):
        image = os.path.join(work_dir, "pfs.img")
        self._undo.callback(lambda: os.path.exists(image) and os.unlink(image))
        with open(image, "wb") as file:
            file.truncate(SIZE_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
        try:
            loop = _run("losetup", "-f", "--show", "--direct-io=on", image)
        except RuntimeError:
            # The image's own file system (tmpfs) has no direct I/O.
            loop = _run("losetup", "-f", "--show", image)
        self._undo.callback(subprocess.run, ["losetup", "-d", loop])
        major_minor = _run("lsblk", "-no", "MAJ:MIN", loop).replace(" ", "")
        _run("mount", "-o", "noatime", loop, self.path)
        self._undo.callback(self._umount)
        for side in ("write", "read"):
            knob = f"{BLKIO}/blkio.throttle.{side}_bps_device"
            self._undo.callback(_write, knob, f"{major_minor} 0")
            _write(knob, f"{major_minor} {RATE_BYTES_PER_S}")
        dirty = self._limit_dirty(f"/sys/class/bdi/{major_minor}")
        self._remount = lambda: (_run("umount", self.path), _run("mount", "-o", "noatime", loop, self.path))
        rate = RATE_BYTES_PER_S >> 20
        self.label = f"ext4 on a loop device limited to {rate} MiB/s{dirty}"

    def _limit_dirty(self, bdi):
        """Limits dirty page cache of the device, where the kernel can (Linux 6.2)."""
        try:
            # The device is freed afterwards, and another may get its number: back to the
            # kernel's defaults.
            for name, default in (("max_ratio", "100"), ("strict_limit", "0")):
                if os.path.exists(f"{bdi}/{name}"):
                    self._undo.callback(_write, f"{bdi}/{name}", default)
            _write(f"{bdi}/max_bytes", str(DIRTY_LIMIT_BYTES))
            _write(f"{bdi}/strict_limit", "1")
        except OSError:
            return ", page cache of this node not limited: its checkpoints look faster than they are"
        return f", at most {DIRTY_LIMIT_BYTES >> 20} MiB of dirty cache"

    def _make_bindfs(self, work_dir):
        behind = os.path.join(work_dir, "pfs-behind")
        os.mkdir(behind)
        self._undo.callback(shutil.rmtree, behind, True)
        rate = f"{RATE_BYTES_PER_S >> 20}M"
        _run("bindfs", f"--write-rate={rate}", f"--read-rate={rate}", behind, self.path)
        self._undo.callback(self._umount)
        self.label = f"a directory through bindfs (FUSE) limited to {rate}iB/s, writes not cached"

    def _umount(self):
        """Unmounts, if it is mounted; what still has a file open is given some seconds."""
        command = ["umount", self.path] if os.geteuid() == 0 else ["fusermount3", "-u", self.path]
        for _ in range(50):
            if not os.path.ismount(self.path):
                return
            if subprocess.run(command, capture_output=True).returncode == 0:
                return
            time.sleep(0.2)
        print(f"demo: {self.path} could not be unmounted: {' '.join(command)}")

    def forget_cache(self):
        """The next reads come from the device, as on a node that did not write the data."""
        if self._remount:
            self._remount()

    def sync(self):
        """Waits until everything is on the device."""
        _run("sync", "-f", self.path)

    def measure(self):
        """Writes and fsyncs 128 MiB; bytes per second."""
        path = os.path.join(self.path, ".measure")
        block = os.urandom(4 << 20)
        begun = time.monotonic()
        with open(path, "wb", buffering=0) as file:
            for _ in range(32):
                file.write(block)
            os.fsync(file.fileno())
        took = time.monotonic() - begun
        os.unlink(path)
        return 32 * len(block) / took

    def close(self):
        self._undo.close()
