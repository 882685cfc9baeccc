"""Load and store: files as memory, by `fb_map` and its like of include/forebay.h.

    from forebay.memory import Map

    with Map("/mnt/fb/table", 1 << 20, root=True) as table:
        table.view[0:5] = b"hello"
        table.persist(0, 5)              # "written" or "on flash": what these bytes survive
        table.commit(b"1 entry")         # all of it, and then the root: the old one or the new one after a crash
        print(table.root())

`numpy.frombuffer(table.view, dtype=...)` gives arrays that are the file. Who has such an array or a part of the view
keeps the memory mapped: `close` then raises BufferError.
"""

import ctypes
import os
import weakref

from . import _library

__all__ = ["Map"]

_WITH_ROOT, _READ_ONLY, _PERSISTED = 64, 128, 256
_GRADES = {1: "written", 2: "on flash"}


class Map:
    """A mapped file of `size_bytes`; 0: as large as it is. One that is absent is made, one that is smaller grows."""

    def __init__(self, path, size_bytes=0, root=False, read_only=False):
        self.path = os.fspath(path)
        flags = (_WITH_ROOT if root else 0) | (_READ_ONLY if read_only else 0)
        self._address, self.size_bytes = _library.map_file(path, size_bytes, flags)
        memory = (ctypes.c_uint8 * self.size_bytes).from_address(self._address)
        # Views keep the array alive, and the array the mapping.
        self._unmap = weakref.finalize(memory, _library.unmap, self._address, self.path)
        self._unmap.atexit = False
        view = memoryview(memory).cast("B")
        self._view = view.toreadonly() if read_only else view

    @property
    def view(self):
        """The memory, as a memoryview of bytes."""
        self._must_be_open()
        return self._view

    def _must_be_open(self):
        if self._view is None:
            raise ValueError(f"the mapping of {self.path} is closed")

    def __len__(self):
        return self.size_bytes

    def persist(self, offset=0, length=None):
        """Makes stored bytes survive what is returned: "written" the death of the program, the mount and the server, "on
        flash" a power cut."""
        self._must_be_open()
        length = self.size_bytes - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise ValueError(f"bytes {offset} to {offset + length} are not within {self.size_bytes}")
        if length == 0:
            offset = 0
        return _GRADES[_library.persist(self._address + offset, length, self.path)]

    def commit(self, root, persisted=False):
        """Persists all of the memory (unless the caller did: `persisted`), and then replaces the root by up to 2,048
        bytes, at once."""
        self._must_be_open()
        flags = _PERSISTED if persisted else 0
        return _GRADES[_library.map_commit(self._address, bytes(root), flags, self.path)]

    def root(self):
        """The root that was committed last, or None."""
        self._must_be_open()
        return _library.map_root(self._address, self.path)

    def close(self):
        """Unmaps. BufferError: somebody has a part of the memory."""
        if self._view is None:
            return
        view, self._view = self._view, None
        try:
            view.release()
        except BufferError:
            self._view = view
            raise
        del view
        if self._unmap.alive:
            raise BufferError(f"parts of the mapping of {self.path} are in use: it is unmapped when they are gone")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
