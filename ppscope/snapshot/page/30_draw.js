// Colours of the theme, and what is painted on a canvas: lanes, strips, the axis.

function rgb(text) {
  const hex = /^#?([0-9a-f]{6})$/i.exec(text);
  const number = hex ? parseInt(hex[1], 16) : 0x999999;
  return [number >> 16, (number >> 8) & 255, number & 255];
}

const mix = (a, b, part) => a.map((value, i) => Math.round(value + (b[i] - value) * part));
const css = (colour) => `rgb(${colour.join(",")})`;

class Theme {
  constructor() { this.read(); }

  read() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.dark = colour("--dark") === "1";
    this.ground = rgb(colour("--ground"));
    this.text = colour("--text");
    this.dim = colour("--dim");
    this.line = colour("--line");
    this.power = colour("--power");
    this.util = colour("--util");
    this.cursor = colour("--accent");
    this.cache = new Map();
  }

  // Phase colours are chosen for a dark ground: on a light one they need more ink. Waiting recedes, so that work is what the eye finds.
  paint(style) {
    let found = this.cache.get(style);
    if (!found) {
      const full = this.dark ? rgb(style.colour) : mix(rgb(style.colour), [0, 0, 0], 0.12);
      found = css(style.kind === "work" || style.kind === "frozen" ? full : mix(full, this.ground, 0.4));
      this.cache.set(style, found);
    }
    return found;
  }
}

// All sizes are read before anything is drawn: a canvas that gets another size makes the next reading lay out the whole page again.
function measure(canvases) {
  for (const canvas of canvases) canvas.box = [canvas.clientWidth, canvas.clientHeight];
}

function prepare(canvas) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const [width, height] = canvas.box;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

// Work stands tall, waiting lies low: a stage's turns are read from the outline before any colour is.
const HEIGHTS = { work: 1, frozen: 1, other: 0.5, wait: 0.26, idle: 0.1 };

// Where nothing was seen: hatched, so that it is not taken for idle time.
function hatch(context, left, right, height, theme) {
  if (right - left < 3) return;
  context.save();
  context.beginPath();
  context.rect(left, 0, right - left, height);
  context.clip();
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.beginPath();
  for (let x = Math.floor(left / 6) * 6 - height; x < right; x += 6) { context.moveTo(x, height); context.lineTo(x + height, 0); }
  context.stroke();
  context.restore();
}

function hatchGaps(context, lane, from, to, scale, height, theme) {
  let at = from;
  const upto = (start, end) => {
    if (start > at) hatch(context, (at - from) * scale, (Math.min(start, to) - from) * scale, height, theme);
    at = Math.max(at, end);
  };
  for (const [start, end] of lane.seen) if (end > from && start < to) upto(start, end);
  upto(to, to);
}

function drawLane(canvas, lane, from, to, theme) {
  const { context, width, height } = prepare(canvas);
  const scale = width / (to - from);
  hatchGaps(context, lane, from, to, scale, height, theme);
  const columns = Math.ceil(width);
  const seen = new Float32Array(columns), work = new Float32Array(columns), longest = new Float32Array(columns);
  const lead = new Int32Array(columns).fill(-1);
  const full = height - 3;
  for (let i = lane.after(from); i < lane.length && lane.start[i] < to; i++) {
    const left = Math.max((lane.start[i] - from) * scale, 0), right = Math.min((lane.end[i] - from) * scale, width);
    const style = lane.styles[lane.style[i]];
    if (right - left >= 1.5) {
      const tall = Math.max(full * (HEIGHTS[style.kind] ?? 0.5), 1.5);
      context.fillStyle = theme.paint(style);
      context.fillRect(left, height - tall, right - left, tall);
      if (style.kind === "work" && right - left > 6) {
        context.clearRect(right - 0.6, height - tall, 0.6, tall);
        label(context, lane, i, left, right, height - tall / 2);
      }
      continue;
    }
    // Too narrow to see alone: the column it falls into shows its share of work.
    const column = Math.min(Math.floor(left), columns - 1), took = right - left;
    seen[column] += took;
    if (style.kind === "work") work[column] += took;
    const weight = style.kind === "work" ? took * 4 : took;
    if (weight > longest[column]) { longest[column] = weight; lead[column] = lane.style[i]; }
  }
  for (let x = 0; x < columns; x++) {
    if (lead[x] < 0) continue;
    const style = lane.styles[lead[x]];
    const part = style.kind === "work" ? Math.max(work[x] / Math.max(seen[x], 1), 0.26) : HEIGHTS[style.kind] ?? 0.5;
    context.fillStyle = theme.paint(style);
    context.fillRect(x, height - full * part, 1, full * part);
  }
}

function label(context, lane, index, left, right, middle) {
  if (lane.batch[index] < 0 || right - left < 16) return;
  context.fillStyle = "rgba(255,255,255,.95)";
  context.font = "600 10px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(String(lane.batch[index]), (left + right) / 2, middle + 0.5);
}

// The largest reading that is known, at least 1; Math.max(...values) takes each value on the stack, which hours of readings overflow.
const highest = (values) => values.reduce((most, value) => (known(value) && value > most ? value : most), 1);

function drawStrip(canvas, series, from, to, theme) {
  const { context, width, height } = prepare(canvas);
  const scale = width / (to - from);
  context.strokeStyle = theme.line;
  context.beginPath();
  context.moveTo(0, height - 0.5);
  context.lineTo(width, height - 0.5);
  context.stroke();
  for (const one of series) {
    curve(context, one.at, one.power, from, to, scale, height, highest(one.limit || one.power || []), theme.power, 0.22);
    curve(context, one.at, one.util, from, to, scale, height, 100, theme.util, 0);
  }
}

function curve(context, at, values, from, to, scale, height, top, colour, fill) {
  if (!values) return;
  context.beginPath();
  let last = null, begun = 0;
  const y = (value) => height - 1 - Math.min(value / top, 1) * (height - 3);
  for (let i = 0; i < at.length; i++) {
    if ((i + 1 < at.length && at[i + 1] < from) || (i && at[i - 1] > to)) continue;
    const x = (at[i] - from) * scale;
    // A reading that was not to be had, or a silence of three seconds, is a gap and not a line.
    if (!known(values[i])) { last = null; continue; }
    if (last === null || at[i] - last > 3e9) { context.moveTo(x, y(values[i])); begun = x; } else context.lineTo(x, y(values[i]));
    last = at[i];
  }
  context.strokeStyle = colour;
  context.lineWidth = 1.2;
  context.stroke();
  if (fill && last !== null) {
    context.lineTo((Math.min(last, to) - from) * scale, height);
    context.lineTo(begun, height);
    context.globalAlpha = fill;
    context.fillStyle = colour;
    context.fill();
    context.globalAlpha = 1;
  }
}

function tickStep(span, width) {
  const wanted = span / Math.max(width / 90, 1);
  const unit = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((factor) => factor * unit).find((step) => step >= wanted);
}

function tickText(at, step) {
  const digits = Math.max(0, Math.ceil(-Math.log10(step / 1e9) - 1e-9));
  return digits > 6 ? duration(at) : (at / 1e9).toFixed(digits) + " s";
}

function drawAxis(canvas, from, to, theme) {
  const { context, width, height } = prepare(canvas);
  const step = tickStep(to - from, width);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    const x = ((at - from) / (to - from)) * width;
    context.fillStyle = theme.line;
    context.fillRect(x, height - 6, 1, 6);
    context.fillStyle = theme.dim;
    context.textAlign = x < 20 ? "left" : x > width - 24 ? "right" : "center";
    context.fillText(tickText(at, step), x, height / 2 - 1);
  }
}
