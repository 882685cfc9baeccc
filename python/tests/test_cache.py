"""States of a cache: python3 test_cache.py MOUNT PFS CLASS. Run by tests/tests/python.rs."""

import errno
import os
import sys
import time
import unittest

import forebay

MOUNT, PFS = sys.argv[1:3]


class Cache(unittest.TestCase):
    def test_a_file_is_dirty_then_clean(self):
        path = os.path.join(MOUNT, "file")
        with open(path, "wb") as file:
            file.write(b"x" * 300_000)
        state = forebay.state(path)
        self.assertEqual((state.state, state.size_bytes, state.drain_errno), ("dirty", 300_000, 0))
        self.assertGreaterEqual(state.dirty_bytes, 300_000)
        self.assertEqual(state.grade, "written")
        self.assertTrue(state.volatile)
        self.assertEqual(forebay.state(MOUNT).state, "dirty")
        forebay.wait(path, 30)
        state = forebay.state(path)
        self.assertEqual((state.state, state.grade, state.dirty_bytes), ("clean", "on the PFS", 0))
        with open(os.path.join(PFS, "file"), "rb") as file:
            self.assertEqual(file.read(), b"x" * 300_000)
        forebay.wait(MOUNT, 30)
        self.assertEqual(forebay.state(MOUNT).grade, "on the PFS")

    def test_a_flush_begins_a_drain_and_does_not_wait(self):
        path = os.path.join(MOUNT, "flushed")
        with open(path, "wb") as file:
            file.write(b"y" * 300_000)
        self.assertEqual(forebay.state(path).state, "dirty")
        forebay.flush(path)
        end = time.monotonic() + 30
        while forebay.state(path).state != "clean":
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        with open(os.path.join(PFS, "flushed"), "rb") as file:
            self.assertEqual(file.read(), b"y" * 300_000)
        with self.assertRaises(OSError) as caught:
            forebay.flush(os.path.join(MOUNT, "absent"))
        self.assertEqual(caught.exception.errno, errno.ENOENT)

    def test_a_flush_of_an_open_file_counts_at_its_close(self):
        path = os.path.join(MOUNT, "flushed-open")
        there = os.path.join(PFS, "flushed-open")
        end = time.monotonic() + 120
        with open(path, "wb") as file:
            file.write(b"z" * 300_000)
            file.flush()
            forebay.flush(path)
            while not os.path.exists(there) or os.path.getsize(there) < 300_000:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)
        while forebay.state(path).state != "clean":
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_a_wait_needs_no_close(self):
        path = os.path.join(MOUNT, "log")
        with open(path, "wb") as file:
            for n in range(2):
                file.write(b"%d" % n * 100_000)
                file.flush()
                forebay.wait(path, 30)
                with open(os.path.join(PFS, "log"), "rb") as there:
                    self.assertEqual(there.read(), b"0" * 100_000 + b"1" * 100_000 * n)
            self.assertNotEqual(forebay.state(path).state, "clean")
        forebay.wait(path, 30)
        self.assertEqual(forebay.state(path).state, "clean")

    def test_what_others_changed_is_in_conflict(self):
        path = os.path.join(MOUNT, "both")
        with open(path, "wb") as file:
            file.write(b"ours")
        with open(os.path.join(PFS, "both"), "wb") as file:
            file.write(b"theirs, and longer")
        with self.assertRaises(OSError) as caught:
            forebay.wait(path, 30)
        self.assertEqual(caught.exception.errno, errno.ESTALE)
        self.assertIn("changed by somebody else", str(caught.exception))
        state = forebay.state(path)
        self.assertEqual((state.state, state.drain_errno), ("conflict", errno.ESTALE))
        os.unlink(path)

    def test_a_wait_has_an_end(self):
        path = os.path.join(MOUNT, "open")
        with open(path, "wb") as file:
            file.write(b"x" * 100_000)
            file.flush()
            # As long as it is open for writing by the kernel itself, nobody can say that it is safe.
            with self.assertRaises(TimeoutError):
                forebay.wait(path, 1)
        forebay.wait(path, 30)


class Failing(unittest.TestCase):
    """On a PFS that is full."""

    def test_what_cannot_drain_says_why(self):
        path = os.path.join(MOUNT, "file")
        with open(path, "wb") as file:
            file.write(b"x" * 300_000)
        with self.assertRaises(OSError) as caught:
            forebay.wait(path, 30)
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
        state = forebay.state(path)
        self.assertEqual((state.state, state.drain_errno), ("failed", errno.ENOSPC))
        self.assertGreaterEqual(state.dirty_bytes, 300_000)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
