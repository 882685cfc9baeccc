"""Reading a committed tree: its manifest, and paths that are of one version or not there.

Format: docs/internals/COMMIT.md.
"""

import dataclasses
import json
import os

from . import _library

NAME = ".forebay-manifest"
FORMAT = 1
_PIECE_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class Entry:
    """One object of a tree."""

    path: str
    kind: str
    mode: int
    size: int = None
    crc32c: int = None
    target: str = None


class Manifest:
    """The manifest of the tree that is at `directory` now. ValueError if it is damaged."""

    def __init__(self, directory):
        self.directory = os.fspath(directory)
        name = os.path.join(self.directory, NAME)
        with open(name, "rb") as file:
            text = file.read()
        end = text.rfind(b"\n", 0, len(text) - 1) + 1
        try:
            head, *lines = [json.loads(line) for line in text[:end].splitlines()]
            tail = json.loads(text[end:])
            known = int(tail["manifest_crc32c"], 16)
            format_, self.version = head["forebay_manifest"], head["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{name} is no whole manifest: {error}") from error
        if format_ != FORMAT:
            raise ValueError(f"{name} has format {format_}; this package reads {FORMAT}")
        if _library.crc32c(text[:end]) != known or len(lines) != tail["entries"]:
            raise ValueError(f"{name} is damaged: its checksum is not that of its lines")
        self.entries = {entry.path: entry for entry in map(_entry, lines)}

    def path(self, name=""):
        """A path of this version: it is of this tree, or (once it was replaced) not there."""
        below = os.path.join(self.directory, f".forebay-{self.version}")
        return os.path.join(below, name) if name else below

    def verify(self):
        """Reads all files; ValueError names the first that is not as listed."""
        for entry in self.entries.values():
            if entry.kind != "file":
                continue
            crc = size = 0
            with open(self.path(entry.path), "rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    crc = _library.crc32c(piece, crc)
                    size += len(piece)
            if (size, crc) != (entry.size, entry.crc32c):
                raise ValueError(f"{entry.path} in {self.directory} is not what was committed")


def _name(value):
    return value if isinstance(value, str) else os.fsdecode(bytes(value))


def _entry(line):
    crc = line.get("crc32c")
    target = line.get("target")
    return Entry(_name(line["path"]), line["kind"], int(line["mode"], 8), line.get("size"),
                 None if crc is None else int(crc, 16), None if target is None else _name(target))
