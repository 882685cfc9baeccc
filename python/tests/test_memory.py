"""Load and store from Python, on a mounted buffer: argv[1]."""

import errno
import os
import pathlib
import sys

from forebay.memory import Map


def raises(kind, call, errno_wanted=None):
    try:
        call()
    except kind as error:
        assert errno_wanted is None or error.errno == errno_wanted, error
        return error
    raise AssertionError(f"{kind} was not raised")


top = pathlib.Path(sys.argv[1])
path = top / "memory"

raises(OSError, lambda: Map(path), errno.ENOENT)
with Map(path, 10_000) as memory:
    assert len(memory) == 10_000
    memory.view[100:106] = b"stored"
    assert memory.persist(100, 6) == "written"
    assert path.read_bytes()[100:106] == b"stored"
    raises(ValueError, lambda: memory.persist(9_999, 2))
    assert memory.persist(10_000, 0) == "written"
    raises(OSError, memory.root, errno.EINVAL)
    part = memory.view[100:106]
    raises(BufferError, memory.close)
    assert bytes(part) == b"stored", "who has a part keeps the memory"
    part.release()
raises(ValueError, lambda: memory.view)

with Map(path, read_only=True) as memory:
    assert bytes(memory.view[100:106]) == b"stored"
    raises(TypeError, lambda: memory.view.__setitem__(0, 1))
    raises(OSError, lambda: memory.persist(0, 1), errno.EACCES)

with Map(top / "table", 4_096, root=True) as table:
    assert table.root() is None
    table.view[:4] = b"data"
    assert table.commit(b"") == "written" and table.root() == b""
    assert table.commit(b"a root", persisted=True) == "written"
    raises(OSError, lambda: table.commit(bytes(2_049)), errno.EMSGSIZE)
with Map(top / "table", root=True) as table:
    assert table.root() == b"a root" and bytes(table.view[:4]) == b"data"

# A process that dies without closing loses nothing that it stored.
child = os.fork()
if child == 0:
    table = Map(top / "table", root=True)
    table.view[:4] = b"more"
    table.commit(b"of the child")
    os.kill(os.getpid(), 9)
os.waitpid(child, 0)
with Map(top / "table", root=True) as table:
    assert table.root() == b"of the child" and bytes(table.view[:4]) == b"more"
print("load and store work")
