"""Forebay from Python: how safe a file is, waiting for it, and publishing trees at once.

    import forebay

    with forebay.commit("/mnt/fb", "/pfs/run1/ckpt") as step:
        (step.dir / "rank.0").write_bytes(data)
    # here all files are on the PFS, under their names, fsynced and verified; after an exception
    # in the block nothing is published

    forebay.state("/mnt/fb/results").grade          # "written" or "on flash"
    manifest = forebay.Manifest("/pfs/run1/ckpt")    # what a reader reads by
    manifest.path("rank.0")                          # this version's file, or it is not there

Needs libforebay.so (`make install`, or its path in $FOREBAY_LIB); the first call loads it. `forebay.memory` has files as memory,
`forebay.checkpoint` the writer and reader for torch.distributed.checkpoint. `forebay.trace` reads what `forebay trace`
recorded, with numpy and pandas and without the library. Errors are OSError with the errno of include/forebay.h.
"""

import dataclasses
import os
import pathlib
import shutil
import tempfile

from . import _library
from ._library import version
from .manifest import Manifest

__all__ = [
    "Commit", "CommitError", "Manifest", "Plan", "State", "begin_commit", "commit", "flush", "stage_in", "stage_out",
    "state", "version", "wait",
]

_GRADES = {1: "written", 2: "on flash", 3: "on the PFS"}
_CACHE_STATES = {1: "clean", 2: "dirty", 3: "draining", 4: "failed", 5: "conflict"}
_STATES = {1: "queued", 2: "running", 3: "done", 4: "failed", 5: "cancelled"}


class CommitError(OSError):
    """A commit or copy that did not end well; the PFS is as it was."""


@dataclasses.dataclass(frozen=True)
class State:
    """State of a file or directory."""

    grade: str
    """What is certain of all its bytes: "written", "on flash", "on the PFS"."""
    volatile: bool
    """The buffer is in memory: a power cut loses it."""
    size_bytes: int
    dirty_bytes: int
    """What the PFS does not have yet and will get by itself; 0 in a scratch buffer."""
    draining_bytes: int
    drain_errno: int
    state: str | None = None
    """In a cache: "clean", "dirty", "draining", "failed" (drain_errno says why), "conflict"."""


def state(path):
    """State of a path in a mounted buffer."""
    found = _library.state(path)
    return State(_GRADES.get(found.grade, "written"), bool(found.is_volatile), found.size_bytes,
                 found.dirty_bytes, found.draining_bytes, found.drain_errno,
                 _CACHE_STATES.get(found.state))


def flush(path):
    """Begins to drain what was written to a path of a cache, and returns at once (see fb_flush)."""
    _library.flush(path)


def wait(path, timeout=None):
    """Waits until what was written to a path is on the PFS (see fb_wait); TimeoutError."""
    _library.wait(path, timeout)


class Plan:
    """A commit or copy that goes on by itself."""

    def __init__(self, path, number):
        self.path = os.fspath(path)
        """A path of its buffer."""
        self.number = number
        """Its number, as `forebay commit --status` and `forebay stage` take it."""

    def _status(self):
        return _library.plan_status(self.path, self.number)

    @property
    def state(self):
        """"queued", "running", "done", "failed" or "cancelled"."""
        return _STATES[self._status()[0].state]

    @property
    def published(self):
        """Of a commit: readers see the new tree."""
        return self._status()[0].published != 0

    @property
    def version(self):
        """Of a commit: the version that its manifest has."""
        return self._status()[0].version.decode() or None

    @property
    def progress(self):
        """(bytes done, bytes found)."""
        found = self._status()[0]
        return found.bytes_done, found.bytes_total

    def wait(self, timeout=None):
        """Returns when it is done; CommitError if it failed or was cancelled, TimeoutError."""
        found, why = _library.plan_wait(self.path, self.number, timeout)
        if _STATES[found.state] != "done":
            raise CommitError(found.first_errno or 5, f"plan {self.number}: {why}", self.path)

    def cancel(self):
        """Gives it up; returns when nothing of it is left. What is published stays."""
        _library.plan_cancel(self.path, self.number)


def begin_commit(directory, to, *, keep_old=False, replace=False, verify="cache"):
    """Begins to publish a directory of a buffer as `to`; returns its Plan at once. The directory
    must not be written to until the plan has ended. What is at `to` and was made by no commit goes
    only with `replace`."""
    return Plan(directory, _library.commit(directory, to, _flags(keep_old, verify, replace)))


def stage_in(pfs_path, path, *, verify="cache"):
    """Begins to copy a file or tree into a buffer."""
    return Plan(os.path.dirname(os.fspath(path)) or ".",
                _library.stage_in(pfs_path, path, _flags(False, verify)))


def stage_out(path, pfs_path, *, verify="cache", parents=False, no_clobber=False):
    """Begins to copy a file or tree out of a buffer. The directory that it goes into must exist, unless
    `parents` lets it be made. With `no_clobber` what is there stays as it is: names that are taken are
    not copied."""
    flags = _flags(False, verify) | (8 if parents else 0) | (16 if no_clobber else 0)
    return Plan(path, _library.stage_out(path, pfs_path, flags))


def _flags(keep_old, verify, replace=False):
    if verify not in ("cache", "medium"):
        raise ValueError(f"verify is 'cache' or 'medium', not {verify!r}")
    return (1 if keep_old else 0) | (2 if verify == "medium" else 0) | (4 if replace else 0)


class Commit:
    """See `commit`."""

    def __init__(self, buffer, to, keep_old, replace, verify, background):
        self.to = os.fspath(to)
        """What the tree becomes on the PFS."""
        self.dir = None
        """The fresh directory to write into, while the block runs."""
        self.plan = None
        """The Plan, after the block."""
        self._buffer, self._background = buffer, background
        self._how = {"keep_old": keep_old, "replace": replace, "verify": verify}

    def __enter__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix=".commit-", dir=self._buffer))
        os.chmod(self.dir, 0o777 & ~_umask())
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            self._remove()
            return False
        try:
            self.plan = begin_commit(self.dir, self.to, **self._how)
            # A name of the buffer that stays: the directory goes.
            self.plan.path = os.fspath(self._buffer)
        except BaseException:
            self._remove()
            raise
        if not self._background:
            self.wait()
        return False

    def wait(self, timeout=None):
        """Returns when the tree is published, and removes the fresh directory; CommitError."""
        try:
            self.plan.wait(timeout)
        except TimeoutError:
            raise
        except BaseException:
            self._remove()
            raise
        self._remove()

    def _remove(self):
        shutil.rmtree(self.dir, ignore_errors=True)


def commit(buffer, to, *, keep_old=False, replace=False, verify="cache", background=False):
    """A context manager: a fresh directory (`.dir`) in the buffer's directory `buffer`, published as
    `to` when the block ends without an exception. Returns from the block when it is published, or with
    `background` as soon as the commit is on record; call `.wait()` later then."""
    return Commit(buffer, to, keep_old, replace, verify, background)


def _umask():
    # Linux tells it without changing it for other threads.
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
