#!/usr/bin/env python3
"""Cuts the operations of some saves out of a recorded trace, as the lines that relation/traces.rs reads.

    extract.py TRACE FIRST LAST [WORD] > NAME.txt

TRACE is a folder with `ops.jsonl.zst` (one JSON object a line); FIRST and LAST number its lines from 0, WORD keeps only
operations whose path contains it. What neither names nor contents depend on (fsync, attributes, opens without truncation)
is left out, and of a run of writes to one file the first is kept.

A line: milliseconds since the first one, operation, path, and for rename, exchange and link the second path; `over` where a rename
replaced something.
"""
import io
import json
import sys

import zstandard

trace, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
word = sys.argv[4] if len(sys.argv) > 4 else ""
lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(open(trace + "/ops.jsonl.zst", "rb")))
start = written = None
for number, line in enumerate(lines):
    if not first <= number <= last:
        continue
    record = json.loads(line)
    operation, path = record["op"], record.get("path", record.get("src"))
    if path is None or word not in path:
        continue
    start = record["t"] if start is None else start
    if operation == "open" and record.get("trunc"):
        operation = "truncate"
    if operation == "rename" and record["flags"] & 2:
        operation = "exchange"
    if operation not in ("create", "mkdir", "link", "unlink", "rmdir", "rename", "exchange", "truncate", "write", "close"):
        continue
    if operation == "write" and written == path:
        continue
    written = path if operation == "write" else None
    if operation == "close" and not record.get("bytes"):
        continue
    words = [record["dst"]] if "dst" in record else []
    words += ["over"] if operation == "rename" and record["over"] else []
    print((record["t"] - start) // 1000, operation, path, *words)
