"""When checkpoint files are written: inotify on a directory, read by a thread.

The application is not touched and no directory is polled: the kernel tells when a file is
created, and when its writer closes it. A checkpoint of LAMMPS is one file per rank and a base
file, `ck.STEP.RANK` and `ck.STEP.base`; its stall is from the first creation to the last close.
"""

import ctypes
import os
import select
import struct
import threading
import time

IN_CLOSE_WRITE = 0x008
IN_CREATE = 0x100
_libc = ctypes.CDLL(None, use_errno=True)


class CheckpointWatch:
    """Watches `directory` until stop(); `checkpoints` maps a step to (first, last, bytes)."""

    def __init__(self, directory):
        self.directory = directory
        self.checkpoints = {}
        self._fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        path = os.fsencode(directory)
        if _libc.inotify_add_watch(self._fd, path, IN_CREATE | IN_CLOSE_WRITE) < 0:
            error = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(error, "inotify_add_watch", directory)
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        while True:
            ready, _, _ = select.select([self._fd, self._wake], [], [])
            if self._fd in ready:
                self._take(os.read(self._fd, 64 << 10), time.time())
            elif self._wake in ready:
                return

    def _take(self, data, now):
        offset = 0
        while offset < len(data):
            _, mask, _, length = struct.unpack_from("iIII", data, offset)
            name = data[offset + 16 : offset + 16 + length].rstrip(b"\0").decode()
            offset += 16 + length
            parts = name.split(".")
            if len(parts) != 3 or parts[0] != "ck" or not parts[1].isdigit():
                continue
            step = int(parts[1])
            first, last, size = self.checkpoints.get(step, (now, now, 0))
            if mask & IN_CREATE and last - first > 0 and now - last > 1:
                # Written again after a restart: count the new one.
                first, size = now, 0
            if mask & IN_CLOSE_WRITE:
                try:
                    size += os.stat(os.path.join(self.directory, name)).st_size
                except OSError:
                    pass
            self.checkpoints[step] = (first, now, size)

    def stop(self):
        """Ends the watch; the checkpoints, ordered by time: (step, begin, end, bytes)."""
        os.write(self._waker, b"x")
        self._thread.join()
        for fd in (self._fd, self._wake, self._waker):
            os.close(fd)
        return sorted((step, *times) for step, times in self.checkpoints.items())
