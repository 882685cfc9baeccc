"""The package on a real mount: python3 test_forebay.py BUFFER PFS. Run by tests/tests/python.rs."""

import errno
import os
import subprocess
import sys
import unittest

import forebay
from forebay import files

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

    def test_parents_and_what_is_there(self):
        source, place = os.path.join(BUFFER, "result"), self.place("no/such/result")
        with open(source, "w", encoding="ascii") as file:
            file.write("ours")
        with self.assertRaises(OSError) as caught:
            forebay.stage_out(source, place).wait(60)
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        self.assertFalse(os.path.exists(self.place("no")))
        forebay.stage_out(source, place, parents=True).wait(60)
        with open(place, "w", encoding="ascii") as file:
            file.write("theirs")
        forebay.stage_out(source, place, no_clobber=True).wait(60)
        with open(place, encoding="ascii") as file:
            self.assertEqual(file.read(), "theirs")

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

    def test_files_one_and_many(self):
        top = os.path.join(BUFFER, "files")
        files.mkdir(top, 0o755)
        names = [os.path.join(top, f"f{number}") for number in range(300)]
        names[7] = os.path.join(top, "no", "such")
        for name, made in zip(names, files.create_many(names, 0o640)):
            if name == names[7]:
                self.assertEqual((made.errno, made.filename), (errno.ENOENT, name))
                continue
            with made:
                made.write(b"x" * 10)
                self.assertEqual(files.fstat(made.fileno()).size_bytes, 10)
                files.fsync(made.fileno())
        again = files.create_many(names[:3])
        self.assertEqual([error.errno for error in again], [errno.EEXIST] * 3)
        for name, found in zip(names, files.stat_many(names)):
            if name == names[7]:
                self.assertEqual(found.errno, errno.ENOENT)
                continue
            kernel = os.stat(name)
            self.assertEqual((found.ino, found.size_bytes, found.mode), (kernel.st_ino, 10, kernel.st_mode))
            self.assertEqual((found.mode & 0o777, found.mtime_ns), (0o640, kernel.st_mtime_ns))
        listed = files.list_directory(top)
        self.assertEqual(sorted(listed), sorted(os.listdir(top)))
        self.assertEqual(listed["f0"], files.stat(names[0]))
        files.publish(names[1])
        files.publish(names[1], final=True)
        with self.assertRaises(PermissionError):
            open(names[1], "r+b")
        os.chmod(names[1], 0o640)
        with self.assertRaises(FileNotFoundError):
            files.publish(names[7])
        descriptor = files.open_descriptor(names[0])
        self.assertEqual(os.read(descriptor, 100), b"x" * 10)
        os.close(descriptor)
        files.rename(names[0], names[0] + ".new")
        files.unlink(names[0] + ".new")
        gone = files.unlink_many(names)
        self.assertEqual([number for number, error in enumerate(gone) if error], [0, 7])
        self.assertEqual(os.listdir(top), [])
        with self.assertRaises(FileNotFoundError):
            files.stat(names[1])

    def test_after_fork(self):
        forebay.state(BUFFER)
        child = os.fork()
        if child == 0:
            forebay.state(BUFFER)
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_without_the_library_the_first_call_says_what_to_do(self):
        environment = dict(os.environ, FOREBAY_LIB="/nonexistent.so")
        done = subprocess.run([sys.executable, "-c", "import forebay; forebay.version()"], env=environment,
                              capture_output=True, text=True, check=False)
        self.assertIn("$FOREBAY_LIB", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
