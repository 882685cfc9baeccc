"""Files of a buffer beside the kernel: calls about one path or many, as `os` has them, by the functions of
include/forebay.h of the same names (where it says what differs from POSIX).

    from forebay import files

    for name, made in zip(names, files.create_many(names)):    # one turn to the mount's process for 128 names
        with made:
            made.write(b"...")
    sizes = [found.size_bytes for found in files.stat_many(names)]
    files.unlink_many(names)

A call about many paths gives a result for each: what its single call returns, or the OSError that it raises.
"""

import dataclasses
import os

from . import _library

__all__ = [
    "Attributes", "create_many", "fstat", "fsync", "list_directory", "mkdir", "open_descriptor", "open_many",
    "publish", "rename", "stat", "stat_many", "unlink", "unlink_many",
]

_NO_FOLLOW = 32
_FINAL = 512


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Attributes of a file; times in nanoseconds since 1970."""

    ino: int
    size_bytes: int
    allocated_bytes: int
    mode: int
    """Type and permission bits."""
    nlink: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    btime_ns: int


def _attributes(found):
    times = [seconds * 1_000_000_000 + ns for seconds, ns in (
        (found.atime_s, found.atime_ns), (found.mtime_s, found.mtime_ns), (found.ctime_s, found.ctime_ns),
        (found.btime_s, found.btime_ns))]
    return Attributes(found.ino, found.size_bytes, found.blocks_512 * 512, found.mode, found.nlink, found.uid,
                      found.gid, *times)


def _failed(errno, path):
    return OSError(errno, os.strerror(errno), os.fspath(path))


def open_descriptor(path, flags=os.O_RDONLY, mode=0o666):
    """Opens a file by the flags of `os.open`; gives a descriptor of the kernel. The umask is not applied."""
    return _library.open_file(path, flags | os.O_CLOEXEC, mode)


def stat(path, follow_symlinks=True):
    """Attributes of a path."""
    return _attributes(_library.attributes(path, 0 if follow_symlinks else _NO_FOLLOW))


def fstat(descriptor):
    """Attributes of an open file, also of one that a call of this module opened."""
    return _attributes(_library.attributes_of_descriptor(descriptor))


def fsync(descriptor):
    """What was written to an open file, and its name, survive a power cut where the buffer does."""
    _library.fsync(descriptor)


def publish(path, final=False):
    """All nodes see now what was written to a file of layout log by any of them; with `final` nobody writes it any more."""
    _library.publish(path, _FINAL if final else 0)


def mkdir(path, mode=0o777):
    """Makes a directory. The umask is not applied."""
    _library.mkdir(path, mode)


def unlink(path):
    """Removes a name that is no directory."""
    _library.unlink(path)


def rename(path, to):
    """Renames; what has the new name goes."""
    _library.rename(path, to)


def list_directory(path):
    """A dict from the names in a directory to their Attributes, of links themselves."""
    return {name: _attributes(found) for name, found in _library.names(path)}


def open_many(paths, flags=os.O_RDONLY, mode=0o666):
    """Opens files; for each path a descriptor, or an OSError."""
    paths = list(paths)
    descriptors, errnos = _library.open_many(paths, flags | os.O_CLOEXEC, mode)
    return [_failed(errno, path) if errno else descriptor
            for path, descriptor, errno in zip(paths, descriptors, errnos)]


def create_many(paths, mode=0o666):
    """Makes files that must not be there; for each path a binary file object without a buffer, or an OSError."""
    made = open_many(paths, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
    return [one if isinstance(one, OSError) else open(one, "r+b", buffering=0) for one in made]


def stat_many(paths, follow_symlinks=True):
    """Attributes of paths; for each path Attributes, or an OSError."""
    paths = list(paths)
    found, errnos = _library.attributes_many(paths, 0 if follow_symlinks else _NO_FOLLOW)
    return [_failed(errno, path) if errno else _attributes(one)
            for path, one, errno in zip(paths, found, errnos)]


def unlink_many(paths):
    """Removes names that are no directories; for each path None, or an OSError."""
    paths = list(paths)
    return [_failed(errno, path) if errno else None for path, errno in zip(paths, _library.unlink_many(paths))]
