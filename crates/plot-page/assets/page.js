"use strict";
// Draws the figures of the page from the data in it. Units are written as on the server's page.
const DATA = JSON.parse(document.getElementById("data").textContent);
const HEIGHT = 260, HEIGHT_TALL = 460, ROW_MIN = 3, ROW_MAX = 18;

const scaled = (n, base, units) => {
  let u = 0;
  while (Math.abs(n) >= base && u < units.length - 1) { n /= base; u++; }
  return +n.toPrecision(3) + " " + units[u];
};
const bytes = n => scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const duration = s => {
  const a = Math.abs(s);
  if (a === 0) return "0 s";
  if (a < 1e-6) return +(s * 1e9).toPrecision(3) + " ns";
  if (a < 1e-3) return +(s * 1e6).toPrecision(3) + " us";
  if (a < 1) return +(s * 1e3).toPrecision(3) + " ms";
  if (a < 300) return +s.toPrecision(4) + " s";
  if (a < 7200) return +(s / 60).toPrecision(3) + " min";
  return +(s / 3600).toPrecision(3) + " h";
};
const plain = n => Number.isInteger(n) && Math.abs(n) < 1e7 ? String(n) : Math.abs(n) >= 1e5 || (n !== 0 && Math.abs(n) < 1e-3) ? n.toExponential(1).replace("e+", "e") : String(+n.toPrecision(4));
// Times along an axis are all in the unit of the longest one, at whole steps of it.
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000];
const timeUnit = most => most >= 172800 ? [86400, " d"] : most >= 7200 ? [3600, " h"] : most >= 300 ? [60, " min"] : null;
const UNITS = { plain, count: plain, bytes, bytes_per_s: n => bytes(n) + "/s", seconds: duration, share: n => +(n * 100).toPrecision(3) + " %" };

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = n => css("--c" + (n % 8));
const faint = (c, part) => c + Math.round(part * 255).toString(16).padStart(2, "0");

// Bytes go in powers of 2, so their axis does too. A logarithmic axis need not begin at a power of its base, so it has places of its own.
function splits(axis) {
  const bytes = axis.unit === "bytes" || axis.unit === "bytes_per_s";
  if (axis.places.length) {
    // As many as have room: every second, third, ... of them, the last one always.
    return (u, at, min, max) => {
      const all = axis.places.filter(v => v >= min && v <= max);
      const every = Math.max(1, Math.ceil(all.length * 64 / Math.max(u.width - 90, 64)));
      return all.filter((v, i) => (all.length - 1 - i) % every === 0);
    };
  }
  if (axis.unit === "seconds" && !axis.log) {
    return (u, at, min, max) => {
      const least = (max - min) / 10;
      // Below ten seconds 1, 2 or 5 times a power of ten, for at most five numbers, which are longer there.
      const fifth = Math.max(2 * least, 1e-9), ten = 10 ** Math.floor(Math.log10(fifth));
      const short = [1, 2, 5, 10].map(m => m * ten).find(s => s >= fifth * (1 - 1e-9));
      const step = least < 1 ? short : TIME_STEPS.find(s => s >= least) || 864000 * Math.ceil(least / 864000);
      const out = [];
      for (let v = Math.ceil(min / step) * step; v <= max + step * 1e-6; v += step) out.push(v);
      return out;
    };
  }
  if (axis.log) {
    return (u, at, min, max) => {
      const out = [];
      if (bytes) {
        const step = Math.max(1, Math.ceil(Math.log2(max / min) / 8));
        for (let p = Math.ceil(Math.log2(min) / step) * step; 2 ** p <= max; p += step) out.push(2 ** p);
        return out;
      }
      // There is no half of a call: below 1 is room only.
      if (axis.unit === "count") min = Math.max(min, 1);
      for (let p = Math.floor(Math.log10(min)); 10 ** p <= max; p++) {
        for (let m = 1; m < 10; m++) if (m * 10 ** p >= min && m * 10 ** p <= max) out.push(m * 10 ** p);
      }
      return out;
    };
  }
  if (!bytes) return undefined;
  return (u, at, min, max) => {
    const step = 2 ** Math.ceil(Math.log2(Math.max((max - min) / 5, 1e-9)));
    const out = [];
    for (let v = Math.ceil(min / step) * step; v <= max + step * 1e-6; v += step) out.push(v);
    return out;
  };
}

function axisOptions(axis, side, size) {
  const write = UNITS[axis.unit];
  const options = {
    label: axis.title, labelSize: 18, stroke: css("--quiet"), font: "11px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif", grid: { stroke: css("--rule"), width: 0.5 }, ticks: { stroke: css("--rule"), width: 0.5 }, size,
    space: side === 2 ? 64 : 28, values: (u, all) => all.map(v => v === null ? "" : write(v)),
  };
  if (axis.unit === "seconds" && !axis.log) {
    options.values = (u, all) => {
      const unit = timeUnit(Math.max(...all.filter(v => v !== null)));
      return all.map(v => v === null ? "" : unit ? +(v / unit[0]).toPrecision(4) + unit[1] : write(v));
    };
  }
  const own = splits(axis);
  if (own) options.splits = own;
  // All places of a logarithmic axis of bytes have numbers.
  if (axis.log && !options.filter) options.filter = (u, all) => all;
  if (axis.log && !axis.places.length && axis.unit !== "bytes" && axis.unit !== "bytes_per_s") {
    // Whole powers of 10 have a number; where there are few of them, 2 and 5 times these too.
    options.filter = (u, all) => {
      const scale = u.scales[side === 2 ? "x" : "y"], few = Math.log10(scale.max / scale.min) < 2.3;
      return all.map(v => {
        const m = v / 10 ** Math.floor(Math.log10(v) + 1e-9);
        return Math.abs(m - 1) < 1e-6 || (few && (Math.abs(m - 2) < 1e-6 || Math.abs(m - 5) < 1e-6)) ? v : null;
      });
    };
  }
  return options;
}

function scaleOptions(axis, values) {
  const options = { time: false };
  if (axis.log) { options.distr = 3; options.log = 10; }
  if (axis.log || axis.range) {
    let least = Infinity, most = -Infinity;
    for (const v of values) if (v !== null && (v > 0 || !axis.log)) { if (v < least) least = v; if (v > most) most = v; }
    if (most < least) { least = 1; most = 10; }
    // The pointer can choose a part of the x axis; else all, with room on both sides. Charts that are compared have a range that is
    // wider than their data: a part of it is a part for all of them.
    const chosen = (min, max) => axis.range ? min !== least || max !== most : min > least || max < most;
    options.range = (u, min, max, key) => key === "x" && min !== null && min < max && chosen(min, max)
      ? [min, max] : axis.range || [least / 1.5, most * 1.5];
  }
  return options;
}

function drawMarks(chart) {
  return u => {
    const c = u.ctx;
    c.save();
    c.font = Math.round(11 * devicePixelRatio) + "px system-ui, sans-serif";
    c.textAlign = "left";
    c.textBaseline = "alphabetic";
    let row = 0, lastRight = -1;
    for (const mark of chart.marks) {
      const x = u.valToPos(mark.at, "x", true);
      if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
      c.strokeStyle = mark.colour === null ? css("--quiet") : colour(mark.colour);
      c.lineWidth = devicePixelRatio;
      c.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
      c.beginPath(); c.moveTo(x, u.bbox.top); c.lineTo(x, u.bbox.top + u.bbox.height); c.stroke();
      const wide = c.measureText(mark.text).width;
      const right = x + wide + 6 * devicePixelRatio > u.bbox.left + u.bbox.width;
      const from = right ? x - wide - 4 * devicePixelRatio : x + 4 * devicePixelRatio;
      row = from < lastRight ? row + 1 : 0;
      lastRight = from + wide + 6 * devicePixelRatio;
      const base = u.bbox.top + (12 + 13 * (row % 4)) * devicePixelRatio;
      c.globalAlpha = 0.8;
      c.fillStyle = css("--ground");
      c.fillRect(from - devicePixelRatio, base - 10 * devicePixelRatio, wide + 2 * devicePixelRatio, 13 * devicePixelRatio);
      c.globalAlpha = 1;
      c.fillStyle = css("--text");
      c.fillText(mark.text, from, base);
    }
    c.restore();
  };
}

function chartOptions(chart, width) {
  const [x, y] = chart.axes;
  const stepped = uPlot.paths.stepped({ align: 1 });
  const options = {
    width, height: chart.tall ? HEIGHT_TALL : HEIGHT,
    scales: { x: scaleOptions(x, chart.x), y: scaleOptions(y, chart.y.flat()) },
    axes: [axisOptions(x, 2, 30), { ...axisOptions(y, 3, 78) }],
    series: [{ label: x.label, value: (u, v) => v === null ? "-" : UNITS[x.unit](v) }],
    cursor: { drag: { x: true, y: false } },
    hooks: { draw: [drawMarks(chart)] },
  };
  if (!y.log && !y.range) options.scales.y.range = (u, min, max) => [Math.min(0, min ?? 0), (max ?? 1) > 0 ? max * 1.05 : 1];
  if (chart.together) options.cursor.sync = { key: chart.together };
  for (const s of chart.series) {
    const stroke = colour(s.colour);
    const made = { label: s.name, stroke, width: 1.6, spanGaps: true, points: { show: s.shape === "dots", size: chart.tall ? 8 : 6, fill: stroke },
      value: (u, v) => v === null || v === undefined ? "-" : UNITS[y.unit](v) };
    if (s.shape === "steps" || s.shape === "area") made.paths = stepped;
    if (s.shape === "area") made.fill = faint(stroke, 0.25);
    if (s.shape === "dots") made.paths = () => null;
    if (s.dashed) made.dash = [6, 4];
    options.series.push(made);
  }
  return options;
}

const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

// A field of cells: uPlot has the axis, the zoom and the pointer; the cells are painted below them.
function cellsOptions(field, width) {
  const rows = field.rows.length, x = field.axes[0];
  const height = Math.max(HEIGHT, Math.min(640, 70 + rows * Math.max(ROW_MIN, Math.min(ROW_MAX, 420 / rows))));
  const columns = field.rows.length ? field.rows[0][0].length : 0;
  const [from, to] = field.columns;
  const step = (to - from) / Math.max(columns, 1);
  const paint = u => {
    const c = u.ctx, { left, top, width: w, height: h } = u.bbox;
    c.save();
    c.beginPath(); c.rect(left, top, w, h); c.clip();
    const colours = field.kinds.map(k => colour(k.colour));
    for (let r = 0; r < rows; r++) {
      const [what, much] = field.rows[r];
      const y0 = top + h * r / rows, y1 = top + h * (r + 1) / rows;
      for (let i = 0; i < columns; i++) {
        if (much[i] === "0") continue;
        const x0 = u.valToPos(from + i * step, "x", true), x1 = u.valToPos(from + (i + 1) * step, "x", true);
        if (x1 < left || x0 > left + w) continue;
        c.globalAlpha = 0.25 + 0.75 * DIGITS.indexOf(much[i]) / 63;
        c.fillStyle = colours[DIGITS.indexOf(what[i])] || css("--quiet");
        c.fillRect(x0, y0, Math.max(x1 - x0, 1) + 0.5, Math.max(y1 - y0 - (rows < 100 ? devicePixelRatio : 0), 1));
      }
    }
    c.restore();
  };
  const name = v => field.names[Math.min(rows - 1, Math.max(0, Math.floor(rows - v)))] ?? "";
  // Room for the longest name, beside the title.
  const longest = Math.max(0, ...field.names.map(name => name.length));
  const side = Math.max(78, Math.min(220, 40 + Math.round(6.5 * longest)));
  const middle = [];
  for (let i = 0; i <= columns; i++) middle.push(from + i * step);
  const options = {
    width, height,
    scales: { x: scaleOptions(x, middle), y: { time: false, range: () => [0, rows] } },
    axes: [axisOptions(x, 2, 30), { ...axisOptions({ title: field.row_label, unit: "plain", places: [] }, 3, side), grid: { show: false },
      splits: () => { const every = Math.max(1, Math.ceil(rows / 16)); const out = []; for (let r = 0; r < rows; r += every) out.push(rows - r - 0.5); return out; },
      values: (u, all) => all.map(name) }],
    series: [{ label: x.label, value: (u, v) => v === null ? "-" : UNITS[x.unit](v) },
      { label: field.row_label, stroke: "transparent", paths: () => null, points: { show: false },
        value: u => u.cursor.top >= 0 && u.cursor.left >= 0 ? name(u.posToVal(u.cursor.top, "y")) : "-" }],
    cursor: { drag: { x: true, y: false }, y: true, points: { show: false } },
    hooks: { drawClear: [paint] },
  };
  if (field.together) options.cursor.sync = { key: field.together, scales: ["x", null] };
  return [options, [middle, middle.map(() => null)]];
}

function draw() {
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const chart = DATA[+figure.dataset.chart];
    const plot = figure.querySelector(".plot");
    // A field of cells that stands alone has the page's width.
    figure.classList.toggle("wide", chart.wide || (chart.kind === "cells" && figure.parentElement.children.length === 1));
    plot.replaceChildren();
    const width = Math.max(260, plot.clientWidth - 12);
    if (chart.kind === "cells") {
      const [options, data] = cellsOptions(chart, width);
      new uPlot(options, data, plot);
      const key = document.createElement("div");
      key.className = "key";
      for (const kind of chart.kinds) {
        const item = document.createElement("span"), box = document.createElement("i");
        box.style.background = colour(kind.colour);
        item.append(box, kind.name);
        key.append(item);
      }
      plot.append(key);
    } else {
      const made = new uPlot(chartOptions(chart, width), [chart.x, ...chart.y], plot);
      const listed = made.root.querySelectorAll(".u-legend .u-series");
      const dashes = chart.series.some(s => s.dashed && !s.unlisted);
      chart.series.forEach((s, i) => {
        if (s.unlisted && listed[i + 1]) listed[i + 1].style.display = "none";
        // Where some lines are dashed, the legend shows each as it is drawn.
        const marker = dashes && listed[i + 1] ? listed[i + 1].querySelector(".u-marker") : null;
        if (!marker) return;
        marker.classList.add(s.dashed ? "dashed-line" : "solid-line");
        marker.style.borderColor = colour(s.colour);
      });
    }
    figure.dataset.drawn = "1";
  }
}

draw();
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
