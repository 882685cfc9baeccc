"""Real torch: python3 test_torch.py BUFFER PFS. Run by tests/tests/python.rs."""

import os
import sys
import time
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

import forebay
from forebay.checkpoint import CommitReader, CommitWriter

BUFFER, PFS = sys.argv[1:3]


def states(step):
    torch.manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 256)).sum().backward()
    optimizer.step()
    return model, {"model": model.state_dict(), "step": torch.tensor(step)}


def rank_of_two(rank, buffer, pfs, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    writer = CommitWriter(os.path.join(buffer, "two"), to=os.path.join(pfs, "two"))
    dcp.save({f"rank{rank}": torch.full((1000,), float(rank)), "both": torch.ones(3)}, storage_writer=writer)
    writer.wait(60)
    dist.barrier()
    there = {"rank0": torch.zeros(1000), "rank1": torch.zeros(1000)}
    dcp.load(there, storage_reader=CommitReader(os.path.join(pfs, "two")))
    assert there["rank1"].eq(1).all() and there["rank0"].eq(0).all()
    dist.destroy_process_group()


class Checkpoints(unittest.TestCase):
    def test_a_training_loop(self):
        place = os.path.join(PFS, "ckpt")
        writer = None
        for step in range(3):
            _, state = states(step)
            if writer is not None:
                writer.wait(60)
            writer = CommitWriter(os.path.join(BUFFER, f"step-{step}"), to=place)
            dcp.save(state, storage_writer=writer)
            self.assertIsNotNone(writer.plan)
        writer.wait(60)
        self.assertEqual([name for name in os.listdir(BUFFER) if name.startswith("step-")], [])
        model, wanted = states(2)
        state = {"model": {k: torch.zeros_like(v) for k, v in wanted["model"].items()}, "step": torch.tensor(0)}
        dcp.load(state, storage_reader=CommitReader(place))
        self.assertEqual(int(state["step"]), 2)
        for name, value in wanted["model"].items():
            self.assertTrue(torch.equal(state["model"][name], value), name)
        model.load_state_dict(state["model"])
        forebay.Manifest(place).verify()

    def test_a_writer_used_again(self):
        place = os.path.join(PFS, "again")
        writer = CommitWriter(os.path.join(BUFFER, "again"), to=place)
        for step in range(2):
            dcp.save({"step": torch.tensor(step)}, storage_writer=writer, checkpoint_id=os.path.join(BUFFER, "again"))
        writer.wait(60)
        state = {"step": torch.tensor(9)}
        dcp.load(state, storage_reader=CommitReader(place))
        self.assertEqual(int(state["step"]), 1)

    def test_training_blocks_for_flash_only(self):
        big = {"weights": torch.arange(32 << 20, dtype=torch.uint8)}
        writer = CommitWriter(os.path.join(BUFFER, "big"), to=os.path.join(PFS, "big"))
        begun = time.monotonic()
        dcp.save(big, storage_writer=writer)
        saved = time.monotonic()
        state_then = writer.plan.state
        writer.wait(120)
        published = time.monotonic()
        print(f"save {saved - begun:.3f} s (the commit then was {state_then}), published after {published - begun:.3f} s")
        self.assertIn(state_then, ("queued", "running"))

    def test_a_failed_commit_leaves_the_old_checkpoint(self):
        place = os.path.join(PFS, "no", "such")
        writer = CommitWriter(os.path.join(BUFFER, "bad"), to=place)
        dcp.save({"a": torch.ones(3)}, storage_writer=writer)
        with self.assertRaises(forebay.CommitError):
            writer.wait(60)
        self.assertTrue(os.path.exists(os.path.join(BUFFER, "bad")), "what is not published stays on flash")

    def test_two_ranks(self):
        mp.spawn(rank_of_two, args=(BUFFER, PFS, 29517), nprocs=2)
        self.assertEqual(os.path.isdir(os.path.join(PFS, "two")), True)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
