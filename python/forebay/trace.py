"""What `forebay trace` recorded, as numpy arrays and pandas frames.

    import forebay.trace

    trace = forebay.trace.read("forebay-trace.app.4711")
    calls = trace.frame()                                  # a row for each call
    calls[calls.call == "pwrite"].groupby("file").bytes.sum()
    trace.arrays["duration_s"].max()                       # the same without pandas
    trace.processes[0].host, trace.problems                # who took part; what is missing, in words

Needs numpy, and pandas for frames; not libforebay.so. The layout is that of docs/internals/TRACE_FORMAT.md. A file that is cut
or damaged gives what it has, and says so in `problems`. All calls of a trace are in memory: about 100 bytes for each.
"""

import dataclasses
import os
import pathlib
import struct

import numpy

__all__ = ["Process", "Trace", "read"]

_BLOCK, _SLOT, _SLOTS = 32 << 10, 32, 1024
_MAGIC, _VERSION = b"FBTRACE\n", 1
_NO_OFFSET = (1 << 48) - 1
_WIDE = 1
_CONTINUED, _HEAD, _THREAD, _NAME, _INFO = 255, 254, 253, 252, 251
_DEPTH_MAX = 64
_SLOPE_MIN_NS = 1_000_000
# Number: name and class, as in crates/trace-format/src/op.rs.
_CALLS = {
    1: ("open", "open"), 2: ("creat", "open"), 3: ("close", "open"), 4: ("dup", "open"), 5: ("opendir", "metadata"),
    6: ("closedir", "metadata"), 7: ("readdir", "metadata"), 10: ("read", "read"), 11: ("write", "write"),
    12: ("pread", "read"), 13: ("pwrite", "write"), 14: ("readv", "read"), 15: ("writev", "write"),
    16: ("preadv", "read"), 17: ("pwritev", "write"), 20: ("lseek", "other"), 21: ("fsync", "sync"),
    22: ("fdatasync", "sync"), 23: ("sync_file_range", "sync"), 24: ("sync", "sync"), 25: ("ftruncate", "metadata"),
    26: ("truncate", "metadata"), 27: ("fallocate", "metadata"), 28: ("posix_fadvise", "other"),
    29: ("lock", "other"), 30: ("stat", "metadata"), 31: ("fstat", "metadata"), 32: ("access", "metadata"),
    33: ("unlink", "metadata"), 34: ("rename", "metadata"), 35: ("mkdir", "metadata"), 36: ("rmdir", "metadata"),
    37: ("link", "metadata"), 38: ("symlink", "metadata"), 39: ("readlink", "metadata"), 40: ("chmod", "metadata"),
    41: ("chown", "metadata"), 42: ("utimens", "metadata"), 43: ("xattr", "metadata"), 44: ("statfs", "metadata"),
    50: ("mmap", "other"), 51: ("munmap", "other"), 52: ("msync", "sync"), 55: ("copy_file_range", "write"),
    56: ("sendfile", "write"), 57: ("splice", "write"), 58: ("copy_file_range source", "read"),
    59: ("sendfile source", "read"), 60: ("splice source", "read"), 70: ("fopen", "open"), 71: ("fclose", "open"),
    72: ("fread", "read"), 73: ("fwrite", "write"), 74: ("fseek", "other"), 75: ("fflush", "other"),
    76: ("stdio reads not seen one by one", "read"), 77: ("stdio writes not seen one by one", "write"),
    80: ("aio submit", "other"), 81: ("aio_read", "read"), 82: ("aio_write", "write"), 83: ("aio_fsync", "sync"),
    90: ("exec", "other"), 91: ("fork", "other"), 92: ("chdir", "metadata"), 93: ("posix_spawn", "other"),
    94: ("rename target", "metadata"),
    # What a buffer did: no calls of the program.
    120: ("hit", "buffer"), 121: ("miss", "buffer"), 122: ("fill", "buffer"), 123: ("drain", "buffer"),
    124: ("stall", "buffer"), 125: ("kernel", "buffer"), 126: ("evict", "buffer"), 127: ("absorb", "buffer"),
}
# By the result of a stall: why a call waited.
_STALLS = {1: "room", 2: "fill", 3: "drain", 4: "server"}
_NAMES = numpy.array([_CALLS.get(number, ("", ""))[0] for number in range(256)], dtype=object)
_CLASSES = numpy.array([_CALLS.get(number, ("", ""))[1] for number in range(256)], dtype=object)
_KNOWN = numpy.array([number in _CALLS for number in range(256)])
_MOVES = numpy.array([_CALLS.get(number, ("", ""))[1] in ("read", "write") for number in range(256)])

# The columns of a trace, and what each is made of.
_COLUMNS = {
    "start_s": numpy.float64, "duration_s": numpy.float64, "process": numpy.int32, "tid": numpy.uint32, "call": numpy.uint8,
    "file": numpy.int32, "offset": numpy.int64, "length": numpy.int64, "result": numpy.int64, "bytes": numpy.int64,
}


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of the run; one that execs is several."""

    path: pathlib.Path
    """Its file."""
    host: str
    pid: int
    rank: int | None
    """None if no launcher gave one."""
    exe: str
    argv: tuple
    lost: int
    """Calls that the recorder could not keep."""
    ended: bool
    """It ended by itself, or went on as another program; else it was killed, or runs."""


@dataclasses.dataclass
class Buffer:
    """What a buffer did while the program ran, as its mount or one of its servers told it."""

    name: str
    """Where it is mounted, or which server."""
    host: str
    lost: int
    """Events that came faster than they were fetched."""
    arrays: dict
    """As those of a trace; `call` is a number of the events in docs/internals/TRACE_FORMAT.md, `file` an index of `files`."""
    files: list

    def frame(self):
        """All events as a pandas frame, in the order of their begins; `why` is the reason of a stall, else empty."""
        import pandas

        columns = self.arrays
        names = _NAMES[columns["call"]]
        why = [_STALLS.get(int(result), "other") if name == "stall" else "" for name, result in zip(names, columns["result"])]
        frame = pandas.DataFrame({
            "start_s": columns["start_s"], "duration_s": columns["duration_s"], "event": names,
            "file": numpy.array(self.files, dtype=object)[columns["file"]] if len(names) else names,
            "offset": columns["offset"], "length": columns["length"], "result": columns["result"], "why": why,
        })
        return frame.sort_values("start_s", kind="stable", ignore_index=True)


@dataclasses.dataclass
class Trace:
    """All of a trace."""

    processes: list
    problems: list
    """What is missing, in words; empty if all is there."""
    arrays: dict
    """A numpy array for each column, all of one length: start_s and duration_s (float64, from the begin of the trace), process
    (index of `processes`), tid, call (number), file (index of `files`), offset (-1: none), length, result (or -errno), bytes."""
    files: list
    """Paths."""
    buffers: list
    """What buffers did meanwhile: a `Buffer` for each mount, and for each server of one."""

    def __len__(self):
        return len(self.arrays["start_s"])

    def frame(self):
        """All calls as a pandas frame, in the order of their begins; `call`, `class`, `file` and `host` are categories, `task` is
        the rank, or the number of the process where there are no ranks."""
        import pandas

        columns = self.arrays
        ranks = any(process.rank is not None for process in self.processes)
        tasks = [(-1 if process.rank is None else process.rank) if ranks else number
                 for number, process in enumerate(self.processes)]
        of = columns["process"]
        call = columns["call"]
        names, index = numpy.unique(call, return_inverse=True)
        classes = sorted(set(_CLASSES[names]))
        kinds = numpy.array([classes.index(name) for name in _CLASSES[names]], dtype=numpy.int8)
        hosts = sorted({process.host for process in self.processes})
        host = numpy.array([hosts.index(process.host) for process in self.processes], dtype=numpy.int32)

        def category(codes, values):
            return pandas.Categorical.from_codes(codes, pandas.Index(values, dtype=object))

        # Of one name there can be several numbers of calls; of categories there can be one.
        frame = pandas.DataFrame({
            "start_s": columns["start_s"],
            "duration_s": columns["duration_s"],
            "task": numpy.array(tasks, dtype=numpy.int64)[of] if len(of) else numpy.array([], dtype=numpy.int64),
            "process": of,
            "pid": numpy.array([process.pid for process in self.processes], dtype=numpy.int64)[of],
            "tid": columns["tid"],
            "host": category(host[of], hosts),
            "call": category(index.astype(numpy.int16), list(_NAMES[names])),
            "class": category(kinds[index] if len(kinds) else index.astype(numpy.int8), classes),
            "file": category(columns["file"], self.files),
            "offset": columns["offset"],
            "length": columns["length"],
            "result": columns["result"],
            "bytes": columns["bytes"],
        })
        return frame.sort_values("start_s", kind="stable", ignore_index=True)


def read(trace):
    """Reads a trace: the directory that `forebay trace` made, or one file of it. Raises OSError if it cannot be read, and
    ValueError if nothing in it is a trace."""
    place = pathlib.Path(trace)
    paths = sorted(place.glob("*.fbt")) if place.is_dir() else [place]
    problems, heads = [], []
    for path in paths:
        with open(path, "rb") as file:
            head = file.read(8 << 10)
        try:
            heads.append(_head(path, head))
        except ValueError as error:
            problems.append(f"{path}: {error}")
    if not heads:
        if not place.exists():
            raise FileNotFoundError(2, os.strerror(2), os.fspath(place))
        raise ValueError(f"no trace in {place}" + "".join(": " + problem for problem in problems[:1]))
    parts, numbers, processes, buffers = [], {}, [], []
    for head, first_s, tick_s in _together(heads, problems):
        part, paths_of = _calls(head, problems)
        if head.is_buffer:
            ticks = (part.pop("ticks") - numpy.uint64(head.anchor[0])).astype(numpy.int64)
            part["start_s"] = numpy.maximum(first_s + ticks * tick_s, 0.0)
            part["duration_s"] = part["duration_s"] * tick_s
            process = head.process
            buffers.append(Buffer(process.exe, process.host, process.lost, part, paths_of))
            continue
        index = numpy.array([numbers.setdefault(path, len(numbers)) for path in paths_of], dtype=numpy.int32)
        part["file"] = index[part["file"]]
        # Begins before the first anchor are possible, so the difference has a sign.
        ticks = (part.pop("ticks") - numpy.uint64(head.anchor[0])).astype(numpy.int64)
        part["start_s"] = numpy.maximum(first_s + ticks * tick_s, 0.0)
        part["duration_s"] = part["duration_s"] * tick_s
        part["process"] = numpy.full(len(ticks), len(processes), dtype=numpy.int32)
        processes.append(head.process)
        if head.process.lost:
            problems.append(f"{head.process.path}: {head.process.lost} calls were not recorded")
        parts.append(part)
    # Of no process, as when only files of buffers are left, the columns are there and empty.
    arrays = {name: numpy.concatenate([numpy.empty(0, kind)] + [part[name] for part in parts]) for name, kind in _COLUMNS.items()}
    return Trace(processes, problems, arrays, list(numbers), buffers)


@dataclasses.dataclass
class _Head:
    process: Process
    anchor: tuple
    later: tuple | None
    counter: bool
    hint_hz: int
    blocks: int
    is_buffer: bool

    def ns_per_tick(self):
        """By the file's own anchors, if they are far enough apart."""
        if not self.later:
            return None
        ns, ticks = self.later[1] - self.anchor[1], self.later[0] - self.anchor[0]
        return ns / ticks if ns >= _SLOPE_MIN_NS and ticks > 0 and 1e6 <= ticks * 1e9 / ns <= 2e10 else None


def _head(path, head):
    if not head[:8].strip(b"\0"):
        raise ValueError("its header was never finished")
    if head[:8] != _MAGIC:
        raise ValueError('it is not a trace: it does not begin with "FBTRACE"')
    if len(head) < 8 << 10:
        raise ValueError(f"its header has only {len(head)} bytes")
    version, block, slot, counter, pid, _, _, rank, _, _ = struct.unpack_from("<7I2iI", head, 8)
    if version != _VERSION:
        raise ValueError(f"its layout has version {version}; this program reads version {_VERSION}")
    if (block, slot) != (_BLOCK, _SLOT):
        raise ValueError(f"its header is damaged: blocks of {block} and slots of {slot} bytes")
    hint_hz, = struct.unpack_from("<Q", head, 48)
    anchor, later = struct.unpack_from("<3Q", head, 56), struct.unpack_from("<3Q", head, 80)
    sequence, ended, _, blocks, lost = struct.unpack_from("<QIIQQ", head, 104)
    sizes = struct.unpack_from("<3I", head, 144)
    host, exe, argv = (head[at:at + min(size, most)].rstrip(b"\0") for at, size, most in
                       zip((256, 512, 2048), sizes, (256, 1536, 6144)))
    process = Process(path, host.decode(errors="replace"), pid, rank if rank >= 0 else None, exe.decode(errors="replace"),
                      tuple(word.decode(errors="replace") for word in argv.split(b"\0")) if argv else (), lost, ended != 0)
    return _Head(process, anchor, later if sequence and sequence % 2 == 0 else None, counter == 1, hint_hz, blocks,
                 struct.unpack_from("<I", head, 156)[0] == 1)


def _together(heads, problems):
    """Each head with the seconds of its begin in the trace and of a tick, in the order of their begins."""
    slopes, offsets = {}, {}
    for head in heads:
        host, slope = head.process.host, head.ns_per_tick()
        if head.counter and slope:
            stretch = head.later[1] - head.anchor[1]
            if stretch >= slopes.get(host, (0, 0))[0]:
                slopes[host] = (stretch, slope)
        offsets.setdefault(host, head.anchor[2] - head.anchor[1])
    begins = [head.anchor[1] + offsets[head.process.host] for head in heads]
    # A buffer was watched from before the program began.
    begin = min([mine for head, mine in zip(heads, begins) if not head.is_buffer] or begins)
    found = []
    for head, mine in zip(heads, begins):
        slope = 1.0
        if head.counter:
            slope = slopes[head.process.host][1] if head.process.host in slopes else 1e9 / head.hint_hz if head.hint_hz else None
        if slope is None:
            problems.append(f"{head.process.path}: the rate of its clock is not known: it was killed in its first millisecond")
            continue
        found.append((head, (mine - begin) / 1e9, slope / 1e9))
    return sorted(found, key=lambda one: one[1])


def _calls(head, problems):
    """Columns of a process's calls, and the paths that its file numbers stand for."""
    path = head.process.path
    with open(path, "rb") as file:
        # No number of the file is believed.
        there = max(os.fstat(file.fileno()).st_size - _BLOCK, 0)
        wanted = max(head.blocks - 1, 0) * _BLOCK
        file.seek(_BLOCK)
        data = numpy.fromfile(file, dtype=numpy.uint8, count=min(wanted, there))
    if len(data) < wanted:
        problems.append(f"{path}: the file ends {wanted - len(data)} bytes early")
    data = numpy.concatenate([data, numpy.zeros(-len(data) % _BLOCK, dtype=numpy.uint8)])
    slots = data.reshape(-1, _SLOT)
    kind = slots[:, 0].copy()
    word, half = data.view("<u8").reshape(-1, 4), data.view("<u4").reshape(-1, 8)
    heads = kind[::_SLOTS]
    bad = (heads != _HEAD) & data.reshape(-1, _BLOCK).any(axis=1) if len(heads) else heads != _HEAD
    if bad.any():
        problems.append(f"{path}: {int(bad.sum())} blocks do not begin as a block does")
    # Blocks without a head have nothing to say.
    kind.reshape(-1, _SLOTS)[heads != _HEAD] = 0
    names, paths = _paths(kind, slots, half)
    at = numpy.flatnonzero((kind > 0) & (kind < _INFO))
    unknown = ~_KNOWN[kind[at]]
    if unknown.any():
        problems.append(f"{path}: {int(unknown.sum())} records of unknown kinds")
        at = at[~unknown]
    flags = slots[at, 1]
    wide = flags & _WIDE != 0
    # A wide record has two slots more, in its block.
    place = numpy.minimum(at + 2, max(len(kind) - 1, 0))
    cut = wide & ((at % _SLOTS > _SLOTS - 3) | (kind[numpy.minimum(at + 1, place)] != _CONTINUED) | (kind[place] != _CONTINUED))
    if cut.any():
        problems.append(f"{path}: {int(cut.sum())} records are cut off")
        at, wide = at[~cut], wide[~cut]
    # The thread is that of the last head or change of thread before.
    marks = numpy.where((kind == _HEAD) | (kind == _THREAD), numpy.arange(len(kind)), 0)
    tid = half[numpy.maximum.accumulate(marks), 1][at] if len(kind) else at
    offset = (word[at, 0] >> numpy.uint64(16)).astype(numpy.int64)
    length = half[at, 6].astype(numpy.int64)
    result = half[at, 7].view(numpy.int32).astype(numpy.int64)
    ticks, duration = word[at, 1].copy(), half[at, 4].astype(numpy.float64)
    more = at[wide]
    length[wide] = word[more + 1, 1].view(numpy.int64)
    result[wide] = word[more + 1, 2].view(numpy.int64)
    duration[wide] = word[more + 1, 3]
    offset[wide] = word[more + 2, 1].view(numpy.int64)
    offset[offset == _NO_OFFSET] = -1
    call = kind[at]
    file = half[at, 5]
    ids = numpy.array(sorted(names), dtype=numpy.uint32)
    found = numpy.searchsorted(ids, file)
    known = (found < len(ids)) & (ids[numpy.minimum(found, max(len(ids) - 1, 0))] == file) if len(ids) else numpy.zeros(len(file), bool)
    order = [names[number] for number in ids.tolist()]
    index = numpy.array(order + [len(paths) - 1], dtype=numpy.int32)
    part = {
        "ticks": ticks, "duration_s": duration, "tid": tid, "call": call,
        "file": index[numpy.where(known, found, len(order))],
        "offset": offset, "length": length, "result": result,
        "bytes": numpy.where(_MOVES[call], numpy.maximum(result, 0), 0),
    }
    return part, paths


def _paths(kind, slots, half):
    """By a file's number the index of its path, and the paths; the last one is that of unknown files."""
    raw = {}
    for at in numpy.flatnonzero(kind == _NAME).tolist():
        size = int(slots[at, 2]) | int(slots[at, 3]) << 8
        end = at + 1
        while end < len(kind) and kind[end] == _CONTINUED and end % _SLOTS:
            end += 1
        name = slots[at + 1:end, 1:].tobytes()[:min(size, 4096)].decode(errors="replace")
        raw[int(half[at, 1])] = (int(half[at, 2]), name)
    names, paths = {}, []
    for number in raw:
        parts, at = [], number
        while at in raw and len(parts) < _DEPTH_MAX:
            parent, name = raw[at]
            parts.append(name)
            if parent == 0:
                break
            at = parent
        path = ""
        for part in reversed(parts):
            if path and not path.endswith("/"):
                path += "/"
            path += part.removeprefix("./")
        names[number] = len(paths)
        paths.append(path)
    return names, paths + ["(unknown)"]
