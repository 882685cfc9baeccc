"""libforebay.so by ctypes: each function of include/forebay.h, errors as OSError."""

import ctypes
import errno
import math
import os


class FbState(ctypes.Structure):
    """struct fb_state"""

    _fields_ = [("grade", ctypes.c_uint32), ("is_volatile", ctypes.c_uint32),
                ("size_bytes", ctypes.c_uint64), ("dirty_bytes", ctypes.c_uint64),
                ("draining_bytes", ctypes.c_uint64), ("drain_errno", ctypes.c_int32),
                ("state", ctypes.c_uint32)]


class FbPlanStatus(ctypes.Structure):
    """struct fb_plan_status"""

    _fields_ = [("state", ctypes.c_uint32), ("first_errno", ctypes.c_int32),
                ("files_total", ctypes.c_uint64), ("files_done", ctypes.c_uint64),
                ("files_failed", ctypes.c_uint64), ("bytes_total", ctypes.c_uint64),
                ("bytes_done", ctypes.c_uint64), ("version", ctypes.c_char * 17),
                ("published", ctypes.c_uint8), ("reserved", ctypes.c_char * 6)]


class FbAttributes(ctypes.Structure):
    """struct fb_attributes"""

    _fields_ = [("ino", ctypes.c_uint64), ("size_bytes", ctypes.c_uint64), ("blocks_512", ctypes.c_uint64),
                ("atime_s", ctypes.c_int64), ("mtime_s", ctypes.c_int64), ("ctime_s", ctypes.c_int64),
                ("btime_s", ctypes.c_int64), ("atime_ns", ctypes.c_uint32), ("mtime_ns", ctypes.c_uint32),
                ("ctime_ns", ctypes.c_uint32), ("btime_ns", ctypes.c_uint32), ("mode", ctypes.c_uint32),
                ("nlink", ctypes.c_uint32), ("uid", ctypes.c_uint32), ("gid", ctypes.c_uint32),
                ("blksize_bytes", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


def _load():
    named = os.environ.get("FOREBAY_LIB")
    names = [named] if named else ["libforebay.so", "/usr/local/lib/libforebay.so"]
    failures = []
    for name in names:
        try:
            return ctypes.CDLL(name, use_errno=True)
        except OSError as error:
            failures.append(str(error))
    raise ImportError("libforebay.so cannot be loaded (" + "; ".join(failures) + "): install it with `make install`, or "
                      "name it in $FOREBAY_LIB")


_text, _number, _size = ctypes.c_char_p, ctypes.c_int64, ctypes.c_size_t
_texts, _numbers = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_int)
_Each = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(FbAttributes))
_SIGNATURES = {
    "fb_state": (ctypes.c_int, [_text, ctypes.c_void_p, _size]),
    "fb_flush": (ctypes.c_int, [_text]),
    "fb_wait": (ctypes.c_int, [_text, ctypes.c_double]),
    "fb_commit": (_number, [_text, _text, ctypes.c_uint]),
    "fb_stage_in": (_number, [_text, _text, ctypes.c_uint]),
    "fb_stage_out": (_number, [_text, _text, ctypes.c_uint]),
    "fb_commit_status": (ctypes.c_int, [_text, _number, ctypes.c_void_p, _size]),
    "fb_commit_wait": (ctypes.c_int, [_text, _number, ctypes.c_double, ctypes.c_void_p, _size]),
    "fb_commit_cancel": (ctypes.c_int, [_text, _number]),
    "fb_open": (ctypes.c_int, [_text, ctypes.c_int, ctypes.c_uint]),
    "fb_stat": (ctypes.c_int, [_text, ctypes.c_uint, ctypes.c_void_p, _size]),
    "fb_fstat": (ctypes.c_int, [ctypes.c_int, ctypes.c_void_p, _size]),
    "fb_fsync": (ctypes.c_int, [ctypes.c_int]),
    "fb_publish": (ctypes.c_int, [_text, ctypes.c_uint]),
    "fb_mkdir": (ctypes.c_int, [_text, ctypes.c_uint]),
    "fb_unlink": (ctypes.c_int, [_text]),
    "fb_rename": (ctypes.c_int, [_text, _text]),
    "fb_list": (ctypes.c_int, [_text, _Each, ctypes.c_void_p]),
    "fb_create_many": (_number, [_texts, _size, ctypes.c_uint, _numbers, _numbers]),
    "fb_open_many": (_number, [_texts, _size, ctypes.c_int, ctypes.c_uint, _numbers, _numbers]),
    "fb_stat_many": (_number, [_texts, _size, ctypes.c_uint, ctypes.c_void_p, _size, _numbers]),
    "fb_unlink_many": (_number, [_texts, _size, _numbers]),
    "fb_map": (ctypes.c_void_p, [_text, _size, ctypes.c_uint]),
    "fb_map_size": (_size, [ctypes.c_void_p]),
    "fb_persist": (ctypes.c_int, [ctypes.c_void_p, _size]),
    "fb_map_commit": (ctypes.c_int, [ctypes.c_void_p, _text, _size, ctypes.c_uint]),
    "fb_map_root": (ctypes.c_ssize_t, [ctypes.c_void_p, ctypes.c_void_p, _size]),
    "fb_unmap": (ctypes.c_int, [ctypes.c_void_p]),
    "fb_crc32c": (ctypes.c_uint32, [ctypes.c_uint32, ctypes.c_char_p, _size]),
    "fb_error": (_text, []),
    "fb_version": (_text, []),
}


class _Library:
    """The library, loaded by the first call: reading traces needs none."""

    def __getattr__(self, name):
        library = _load()
        for function, (result, arguments) in _SIGNATURES.items():
            made = getattr(library, function)
            made.restype, made.argtypes = result, arguments
            setattr(self, function, made)
        return self.__dict__[name]


_lib = _Library()


def _message():
    return _lib.fb_error().decode(errors="replace")


def _checked(result, path):
    if result < 0:
        raise OSError(ctypes.get_errno(), _message(), os.fspath(path))
    return result


def _path(path):
    return os.fsencode(path)


def _seconds(timeout):
    return -1.0 if timeout is None or math.isinf(timeout) else max(0.0, float(timeout))


def state(path):
    found = FbState()
    _checked(_lib.fb_state(_path(path), ctypes.byref(found), ctypes.sizeof(found)), path)
    return found


def publish(path, flags):
    _checked(_lib.fb_publish(_path(path), flags), path)


def flush(path):
    _checked(_lib.fb_flush(_path(path)), path)


def wait(path, timeout):
    _checked(_lib.fb_wait(_path(path), _seconds(timeout)), path)


def commit(directory, to, flags):
    return _checked(_lib.fb_commit(_path(directory), _path(to), flags), directory)


def stage_in(pfs_path, path, flags):
    return _checked(_lib.fb_stage_in(_path(pfs_path), _path(path), flags), path)


def stage_out(path, pfs_path, flags):
    return _checked(_lib.fb_stage_out(_path(path), _path(pfs_path), flags), path)


def plan_status(path, number):
    found = FbPlanStatus()
    result = _lib.fb_commit_status(_path(path), number, ctypes.byref(found), ctypes.sizeof(found))
    _checked(result, path)
    return found, _message()


def plan_wait(path, number, timeout):
    found = FbPlanStatus()
    result = _lib.fb_commit_wait(_path(path), number, _seconds(timeout), ctypes.byref(found),
                                 ctypes.sizeof(found))
    _checked(result, path)
    return found, _message()


def plan_cancel(path, number):
    _checked(_lib.fb_commit_cancel(_path(path), number), path)


def open_file(path, flags, mode):
    return _checked(_lib.fb_open(_path(path), flags, mode), path)


def attributes(path, flags):
    found = FbAttributes()
    _checked(_lib.fb_stat(_path(path), flags, ctypes.byref(found), ctypes.sizeof(found)), path)
    return found


def attributes_of_descriptor(descriptor):
    found = FbAttributes()
    _checked(_lib.fb_fstat(descriptor, ctypes.byref(found), ctypes.sizeof(found)), str(descriptor))
    return found


def fsync(descriptor):
    _checked(_lib.fb_fsync(descriptor), str(descriptor))


def mkdir(path, mode):
    _checked(_lib.fb_mkdir(_path(path), mode), path)


def unlink(path):
    _checked(_lib.fb_unlink(_path(path)), path)


def rename(path, to):
    _checked(_lib.fb_rename(_path(path), _path(to)), path)


def names(path):
    found, failed = [], []

    def each(_, name, attributes_of_name):
        try:
            copy = FbAttributes()
            ctypes.pointer(copy)[0] = attributes_of_name[0]
            found.append((os.fsdecode(name), copy))
        except BaseException as error:  # Nothing may go through the library's own frames.
            failed.append(error)
        return len(failed)

    _checked(_lib.fb_list(_path(path), _Each(each), None), path)
    if failed:
        raise failed[0]
    return found


def _many(paths):
    texts = [_path(path) for path in paths]
    if any(b"\0" in text for text in texts):
        raise ValueError("a path has a null byte in it")
    return (ctypes.c_char_p * len(texts))(*texts), len(texts), (ctypes.c_int * len(texts))()


def open_many(paths, flags, mode):
    texts, count, errnos = _many(paths)
    descriptors = (ctypes.c_int * count)()
    _checked(_lib.fb_open_many(texts, count, flags, mode, descriptors, errnos), "")
    return list(descriptors), list(errnos)


def attributes_many(paths, flags):
    texts, count, errnos = _many(paths)
    found = (FbAttributes * count)()
    size = ctypes.sizeof(FbAttributes)
    _checked(_lib.fb_stat_many(texts, count, flags, ctypes.byref(found), size, errnos), "")
    return list(found), list(errnos)


def unlink_many(paths):
    texts, count, errnos = _many(paths)
    _checked(_lib.fb_unlink_many(texts, count, errnos), "")
    return list(errnos)


ROOT_MAX_BYTES = 2048


def map_file(path, size, flags):
    """Address and size of a mapping."""
    address = _lib.fb_map(_path(path), size, flags)
    if not address:
        raise OSError(ctypes.get_errno(), _message(), os.fspath(path))
    return address, _lib.fb_map_size(address)


def persist(address, length, path):
    return _checked(_lib.fb_persist(address, length), path)


def map_commit(address, root, flags, path):
    return _checked(_lib.fb_map_commit(address, root, len(root), flags), path)


def map_root(address, path):
    """The root; None if none was committed."""
    room = ctypes.create_string_buffer(ROOT_MAX_BYTES)
    length = _lib.fb_map_root(address, room, len(room))
    if length < 0 and ctypes.get_errno() == errno.ENODATA:
        return None
    return room.raw[:_checked(length, path)]


def unmap(address, path):
    _checked(_lib.fb_unmap(address), path)


def crc32c(data, crc=0):
    return _lib.fb_crc32c(crc, bytes(data), len(data))


def version():
    """Version of libforebay."""
    return _lib.fb_version().decode()
