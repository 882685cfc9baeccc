"""libforebay.so by ctypes: each function of include/forebay.h, errors as OSError."""

import ctypes
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


_lib = _load()
_text, _number, _size = ctypes.c_char_p, ctypes.c_int64, ctypes.c_size_t
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
    "fb_crc32c": (ctypes.c_uint32, [ctypes.c_uint32, ctypes.c_char_p, _size]),
    "fb_error": (_text, []),
    "fb_version": (_text, []),
}
for _name, (_result, _arguments) in _SIGNATURES.items():
    _function = getattr(_lib, _name)
    _function.restype, _function.argtypes = _result, _arguments


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


def crc32c(data, crc=0):
    return _lib.fb_crc32c(crc, bytes(data), len(data))


def version():
    """Version of libforebay."""
    return _lib.fb_version().decode()
