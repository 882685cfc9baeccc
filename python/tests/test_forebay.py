"""The package on a real mount: python3 test_forebay.py BUFFER PFS. Run by tests/tests/python.rs."""

import errno
import os
import subprocess
import sys
import unittest

import forebay

BUFFER, PFS = sys.argv[1:3]


class Package(unittest.TestCase):
    def place(self, name):
        return os.path.join(PFS, f"{self.id().rsplit('.', 1)[1]}-{name}")

    def test_states_and_errors(self):
        path = os.path.join(BUFFER, "file")
        with open(path, "wb") as file:
            file.write(b"x" * 1000)
        state = forebay.state(path)
        self.assertIn(state.grade, ("written", "on flash"))
        self.assertEqual((state.size_bytes, state.dirty_bytes), (1000, 0))
        with self.assertRaises(OSError) as caught:
            forebay.state("/proc/self")
        self.assertEqual(caught.exception.errno, errno.ENOTTY)
        self.assertIn("not in a mounted buffer", str(caught.exception))
        with self.assertRaises(OSError) as caught:
            forebay.wait(path, 1)
        self.assertEqual(caught.exception.errno, errno.ENODATA)
        self.assertEqual(forebay.version(), "0.1.0")

    def test_a_block_is_published_whole(self):
        place = self.place("ckpt")
        for step in range(3):
            with forebay.commit(BUFFER, place, verify="medium") as commit:
                for rank in range(4):
                    (commit.dir / f"rank.{rank}").write_text(f"step {step}")
                self.assertEqual(os.path.exists(place), step > 0)
            manifest = forebay.Manifest(place)
            self.assertEqual(manifest.version, commit.plan.version)
            self.assertEqual(sorted(manifest.entries), [f"rank.{rank}" for rank in range(4)])
            manifest.verify()
            with open(manifest.path("rank.3"), encoding="ascii") as file:
                self.assertEqual(file.read(), f"step {step}")
            self.assertFalse(commit.dir.exists())
        self.assertEqual([n for n in os.listdir(PFS) if "published_whole" in n], [os.path.basename(place)])

    def test_nothing_is_published_after_an_exception(self):
        place = self.place("ckpt")
        with self.assertRaises(KeyError):
            with forebay.commit(BUFFER, place) as commit:
                (commit.dir / "half").write_text("x")
                raise KeyError("the step failed")
        self.assertFalse(os.path.exists(place))
        self.assertFalse(commit.dir.exists())

    def test_in_the_background(self):
        place = self.place("ckpt")
        with forebay.commit(BUFFER, place, background=True) as commit:
            (commit.dir / "data").write_bytes(bytes(1 << 20))
        commit.wait(60)
        self.assertEqual(commit.plan.state, "done")
        self.assertTrue(commit.plan.published)
        self.assertEqual(commit.plan.progress, (1 << 20, 1 << 20))

    def test_what_cannot_be_published_is_told(self):
        with self.assertRaises(forebay.CommitError) as caught:
            with forebay.commit(BUFFER, "/proc/no/such/ckpt") as commit:
                (commit.dir / "data").write_text("x")
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        self.assertFalse(commit.dir.exists())
        with self.assertRaises(ValueError):
            forebay.commit(BUFFER, "/x", verify="hope").__enter__().__exit__(None, None, None)

    def test_copies_and_odd_names(self):
        name = os.fsdecode(b"odd \xff\nname")
        with open(os.path.join(BUFFER, name), "w", encoding="ascii") as file:
            file.write("odd")
        forebay.stage_out(os.path.join(BUFFER, name), self.place("out")).wait(60)
        forebay.stage_in(self.place("out"), os.path.join(BUFFER, "in")).wait(60)
        with open(os.path.join(BUFFER, "in"), encoding="ascii") as file:
            self.assertEqual(file.read(), "odd")
        with forebay.commit(BUFFER, self.place("ckpt")) as commit:
            (commit.dir / name).write_text("odd")
        manifest = forebay.Manifest(self.place("ckpt"))
        self.assertEqual(list(manifest.entries), [name])
        manifest.verify()

    def test_damage_is_found(self):
        place = self.place("ckpt")
        with forebay.commit(BUFFER, place) as commit:
            (commit.dir / "data").write_bytes(bytes(100_000))
        with open(os.path.join(place, "data"), "r+b") as file:
            file.seek(50_000)
            file.write(b"\x01")
        with self.assertRaises(ValueError):
            forebay.Manifest(place).verify()
        name = os.path.join(place, ".forebay-manifest")
        with open(name, "rb") as file:
            text = file.read()
        for cut in (len(text) - 2, len(text) // 2, 0):
            with open(name, "wb") as file:
                file.write(text[:cut])
            with self.assertRaises(ValueError):
                forebay.Manifest(place)

    def test_after_fork(self):
        forebay.state(BUFFER)
        child = os.fork()
        if child == 0:
            forebay.state(BUFFER)
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_without_the_library_the_import_says_what_to_do(self):
        environment = dict(os.environ, FOREBAY_LIB="/nonexistent.so")
        done = subprocess.run([sys.executable, "-c", "import forebay"], env=environment,
                              capture_output=True, text=True, check=False)
        self.assertIn("$FOREBAY_LIB", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
