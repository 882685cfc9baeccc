"""Trains a small network, with a checkpoint after each epoch. Started again, it continues from the last one.

usage: python3 train.py BUFFER PFSDIR EPOCHS

BUFFER is a mounted scratch buffer. A checkpoint is written there, at the speed of flash; Forebay then publishes it as
PFSDIR, all files at once, while the next epoch is computed. A reader of PFSDIR sees one whole checkpoint, never a mixture.
"""

import os
import sys

import torch
import torch.distributed.checkpoint as dcp

import forebay
from forebay.checkpoint import CommitReader, CommitWriter


def data():
    """Points of a parabola, the same in each run."""
    torch.manual_seed(1)
    x = torch.rand(512, 1) * 2 - 1
    return x, x * x


def load(place, model):
    """The epoch to begin with."""
    if not os.path.exists(os.path.join(place, ".forebay-manifest")):
        return 0
    # What was published has not changed since: sizes and checksums are those of the manifest.
    forebay.Manifest(place).verify()
    state = {"model": model.state_dict(), "epoch": torch.tensor(0)}
    dcp.load(state, storage_reader=CommitReader(place))
    model.load_state_dict(state["model"])
    return int(state["epoch"])


def main():
    buffer, place, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    x, y = data()
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = load(place, model)
    print(f"begins with epoch {first}", flush=True)
    writer = None
    for epoch in range(first, epochs):
        for _ in range(50):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        # The last checkpoint has had an epoch's time to reach the PFS; two at once would need twice the room.
        if writer is not None:
            writer.wait()
        writer = CommitWriter(os.path.join(buffer, f"epoch-{epoch + 1}"), to=place)
        state = {"model": model.state_dict(), "epoch": torch.tensor(epoch + 1)}
        dcp.save(state, storage_writer=writer)  # returns when the checkpoint is on flash
        print(f"epoch {epoch + 1}: loss {loss.item():.6f}", flush=True)
    if writer is not None:
        writer.wait()
    print(f"published epoch {max(first, epochs)}")


main()
