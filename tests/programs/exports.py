"""Opens what `forebay trace export` wrote with the programs that it is for, and compares them with each other.

usage: exports.py DIRECTORY   with the trace t in it, and of it t.parquet, t.darshan, t.json.gz, t.ior-csv, and all.parquet of all files
"""

import glob
import gzip
import json
import sys

import darshan
import pandas

place = sys.argv[1]

# pandas: one row for each call.
calls = pandas.read_parquet(f"{place}/t.parquet")
data = calls[calls["class"].isin(["read", "write"]) & (calls["result"] >= 0)]
print("parquet:", len(calls), "calls,", calls["bytes"].sum(), "bytes")
assert (calls["duration_ns"] >= 0).all() and (calls["start_ns"] >= 0).all()

# PyDarshan: the same sums by file and rank.
log = darshan.DarshanReport(f"{place}/t.darshan", read_all=False)
log.mod_read_all_records("POSIX")
log.mod_read_all_records("STDIO")
log.mod_read_all_dxt_records("DXT_POSIX")
names = log.name_records
counters = log.records["POSIX"].to_df()["counters"]
streams = log.records["STDIO"].to_df()["counters"]
stdio = data["call"].isin(["fread", "fwrite", "stdio reads not seen one by one", "stdio writes not seen one by one"])
for kind, calls_of, bytes_of, farthest in [
    ("read", "POSIX_READS", "POSIX_BYTES_READ", "POSIX_MAX_BYTE_READ"),
    ("write", "POSIX_WRITES", "POSIX_BYTES_WRITTEN", "POSIX_MAX_BYTE_WRITTEN"),
]:
    mine = data[(data["class"] == kind) & ~stdio]
    assert counters[calls_of].sum() == len(mine), (kind, counters[calls_of].sum(), len(mine))
    assert counters[bytes_of].sum() == mine["bytes"].sum()
    # As dictionaries: a row of a frame would turn the ids into floating-point numbers.
    for record in counters.to_dict("records"):
        of = mine[(mine["file"] == names[record["id"]]) & (mine["task"] == record["rank"])]
        assert record[bytes_of] == of["bytes"].sum(), names[record["id"]]
        ends = (of["offset"] + of["bytes"])[of["offset"].notna()]
        assert record[farthest] == max([0, *(ends - 1)]), names[record["id"]]
    assert streams["STDIO_BYTES_" + {"read": "READ", "write": "WRITTEN"}[kind]].sum() == \
        data[(data["class"] == kind) & stdio]["bytes"].sum()
# DXT has each of them, with its place and time.
segments = sum(record["write_count"] + record["read_count"] for record in log.records["DXT_POSIX"])
assert segments == (~stdio).sum(), (segments, (~stdio).sum())
first = log.records["DXT_POSIX"].to_df()
for record in first:
    for kind in ("read", "write"):
        for _, segment in record[kind + "_segments"].iterrows():
            assert segment["end_time"] >= segment["start_time"] >= 0
            assert ((data["bytes"] == segment["length"]) & (data["offset"] == segment["offset"])).any() \
                or segment["offset"] == -1
assert log.metadata["job"]["nprocs"] == calls["task"].max() + 1
print("darshan:", int(counters["POSIX_WRITES"].sum()), "writes,", segments, "segments")

# Trace events: one complete event for each call, aio as a pair; what a viewer requires of each kind.
with gzip.open(f"{place}/t.json.gz") as file:
    events = json.load(file)["traceEvents"]
required = {"X": {"name", "cat", "pid", "tid", "ts", "dur", "args"}, "M": {"name", "pid", "args"},
            "b": {"name", "cat", "pid", "tid", "ts", "id"}, "e": {"name", "cat", "pid", "tid", "ts", "id"}}
for event in events:
    assert required[event["ph"]] <= set(event), event
complete = [event for event in events if event["ph"] in "Xb"]
assert len(complete) == len(calls)
assert sum(event["args"]["result"] for event in complete if event["cat"] == "write") == \
    calls[calls["class"] == "write"]["result"].sum()
# On one line, events follow each other or lie within each other: a viewer drops others.
lines = {}
for event in events:
    if event["ph"] == "X":
        lines.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["dur"]))
for line in lines.values():
    line.sort()
    for (ts, dur), (after, _) in zip(line, line[1:]):
        assert after >= ts + dur - 0.01, (ts, dur, after)
print("chrome:", len(complete), "calls")

# Perfetto's trace processor reads the same file, and counts what the table counts.
import trace_processor

by_name, names_of, threads, faults, args = trace_processor.ask(f"{place}/t.json.gz", [
    "select name, count(*), sum(dur), min(ts) from slice group by name order by name",
    "select name from process where name is not null order by pid",
    "select count(distinct utid) from thread join thread_track using (utid) join slice on slice.track_id = thread_track.id",
    "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "select sum(extract_arg(arg_set_id, 'args.result')) from slice where category = 'write'",
])
mine = calls.groupby("call", observed=True).agg(count=("call", "size"), dur=("duration_ns", "sum"), ts=("start_ns", "min"))
assert [row[:2] for row in by_name[1:]] == [[name, row["count"]] for name, row in mine.sort_index().iterrows()], by_name
for name, _, dur, ts in by_name[1:]:
    # Times are in the file as microseconds: a nanosecond may be lost in each.
    assert abs(dur - mine.loc[name, "dur"]) <= 2 * mine.loc[name, "count"], (name, dur, mine.loc[name])
    assert abs(ts - mine.loc[name, "ts"]) <= 1, (name, ts, mine.loc[name])
assert faults[1:] == [], faults
assert [name.split(":")[0] for (name,) in names_of[1:]] == ["rank 0", "rank 1"], names_of
assert threads[1:] == [[len(calls[["process", "tid"]].drop_duplicates())]], threads
assert args[1:] == [[calls[calls["class"] == "write"]["result"].sum()]], args
print("perfetto:", sum(row[1] for row in by_name[1:]), "calls")

# IOR's files: the transfers of each rank.
rows = sum(len(pandas.read_csv(name)) for name in glob.glob(f"{place}/t.ior-csv/*.csv"))
assert rows == (data["result"] > 0).sum(), (rows, (data["result"] > 0).sum())
print("ior-csv:", rows, "transfers")

# The package's own reader: the same calls as the table of all files, column by column.
import forebay.trace

trace = forebay.trace.read(f"{place}/t")
mine = trace.frame()
table = pandas.read_parquet(f"{place}/all.parquet")
assert trace.problems == [] and len(trace.processes) == 2
assert len(mine) == len(table) == len(trace)
keys = ["process", "tid", "start_ns", "call", "result"]
mine["start_ns"] = (mine["start_s"] * 1e9).round().astype("int64")
mine["duration_ns"] = (mine["duration_s"] * 1e9).round().astype("int64")
mine, table = mine.sort_values(keys, ignore_index=True), table.sort_values(keys, ignore_index=True)
table["offset"] = table["offset"].fillna(-1)
for column in ["process", "pid", "tid", "task", "length", "result", "bytes"]:
    assert (mine[column].astype("int64") == table[column].astype("int64")).all(), column
for column in ["call", "class", "file", "host"]:
    assert (mine[column].astype(str) == table[column].astype(str)).all(), column
# An offset of that size does not fit into a table's integer: it is none.
assert (mine["offset"].clip(-1) == table["offset"]).all()
for column in ["start_ns", "duration_ns"]:
    assert ((mine[column] - table[column]).abs() <= 1).all(), column
# A file that is cut gives what it has, and says so; what is no trace is refused by name.
import pathlib
import random
import shutil
import tempfile

with tempfile.TemporaryDirectory() as other:
    name = sorted(pathlib.Path(f"{place}/t").glob("*.fbt"))[0]
    shutil.copy(name, other)
    with open(pathlib.Path(other) / name.name, "r+b") as file:
        file.truncate((32 << 10) + 3_200)
    part = forebay.trace.read(other)
    assert 0 < len(part) <= 99 and "ends" in part.problems[0], part.problems
    whole = name.read_bytes()
    # With files of buffers alone there is no call, and the same columns.
    alone = bytearray(whole)
    alone[156:160] = (1).to_bytes(4, "little")
    (pathlib.Path(other) / name.name).write_bytes(alone)
    buffers = forebay.trace.read(other)
    assert (len(buffers), len(buffers.processes), len(buffers.buffers)) == (0, 0, 1), buffers
    none = buffers.frame()
    assert len(none) == 0 and list(none.columns) == list(part.frame().columns), none.columns
    assert all(none[column].dtype.kind == kind.kind for column, kind in part.frame().dtypes.items()), none.dtypes
    # Any bytes give what can be read, or one kind of error.
    random.seed(7)
    for round_ in range(300):
        changed = bytearray(whole)
        for _ in range(random.randint(1, 30)):
            low, high = (0, 160) if random.random() < 0.2 else (32 << 10, min(len(whole), 40 << 10))
            changed[random.randrange(low, high)] = random.choice([0, 1, 251, 252, 253, 254, 255, random.randrange(256)])
        (pathlib.Path(other) / name.name).write_bytes(changed[:random.randrange(len(whole))] if round_ % 3 == 0 else changed)
        try:
            forebay.trace.read(other).frame()
        except ValueError as error:
            assert "no trace in" in str(error), error
    (pathlib.Path(other) / name.name).write_bytes(b"#!/bin/sh\n")
    try:
        forebay.trace.read(other)
        raise AssertionError("a foreign file was read")
    except ValueError as error:
        assert "not a trace" in str(error), error
print("python:", len(mine), "calls")
