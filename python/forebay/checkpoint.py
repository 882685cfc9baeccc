"""torch.distributed.checkpoint through a buffer: training waits for flash, not for the PFS.

    import torch.distributed.checkpoint as dcp
    from forebay.checkpoint import CommitReader, CommitWriter

    writer = CommitWriter("/mnt/fb/step-17", to="/pfs/run1/ckpt")
    dcp.save(model.state_dict(), storage_writer=writer)   # returns when it is on flash
    ...                                                   # the commit goes on meanwhile
    writer.wait()                                         # at the end, or before the next one

    dcp.load(state, storage_reader=CommitReader("/pfs/run1/ckpt"))

All ranks write into one directory of a buffer that they all mount; the coordinator begins the commit
when all have written. A save that fails on any rank publishes nothing.
"""

import os
import shutil

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

from . import begin_commit
from .manifest import Manifest


class CommitWriter(FileSystemWriter):
    """Writes to `path` (a directory in a mounted buffer) and commits it to `to` in the background.

    Keyword arguments but `keep_old`, `replace`, `verify` and `keep_flash` go to FileSystemWriter. `plan` is the
    commit, on the coordinator. Without `keep_flash`, `wait` removes what was published from flash.
    """

    def __init__(self, path, to, *, keep_old=False, replace=False, verify="cache", keep_flash=False, **options):
        super().__init__(path, **options)
        self.to = os.fspath(to)
        self.plan = None
        self._how = {"keep_old": keep_old, "replace": replace, "verify": verify}
        self._keep_flash = keep_flash
        self._committed = None

    def reset(self, checkpoint_id=None):
        # What is still being committed must not be written to.
        self.wait()
        super().reset(checkpoint_id)

    def finish(self, metadata, results):
        super().finish(metadata, results)
        self._committed = os.fspath(self.path)
        self.plan = begin_commit(self._committed, self.to, **self._how)
        # A name of the buffer that stays when the directory is removed.
        self.plan.path = os.path.dirname(os.path.abspath(self._committed))

    def wait(self, timeout=None):
        """Returns when the last save is published (at once if there is none, or on other ranks);
        CommitError if it is not, TimeoutError."""
        if self.plan is None:
            return
        plan, self.plan = self.plan, None
        try:
            plan.wait(timeout)
        except TimeoutError:
            self.plan = plan
            raise
        if not self._keep_flash:
            shutil.rmtree(self._committed)


class CommitReader(FileSystemReader):
    """Reads the tree that is committed at `path` now, all of it of one version."""

    def __init__(self, path, **options):
        self.manifest = Manifest(path)
        super().__init__(self.manifest.path(), **options)
