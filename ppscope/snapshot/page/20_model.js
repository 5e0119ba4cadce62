// From the document to arrays that can be drawn: lanes of spans with a style each, power and utilisation by GPU.

const GPU_STYLES = [
  { label: "replayed kernels", kind: "work", name: "replay" },
  { label: "eager kernels", kind: "work", name: "eager" },
  { label: "kernels of unknown origin", kind: "work", name: "other" },
  { label: "memory operations", kind: "work", name: "sample" },
  { label: "communication kernels", kind: "wait", name: "recv_activations" },
];

async function readData() {
  const text = document.getElementById("data").textContent;
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser cannot unpack the data (no DecompressionStream). ppscope open FILE shows it in a terminal.");
  }
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

const keyOf = (rank) => rank.join("/");

// Adds a range behind those before it; what rounding to microseconds leaves open is closed.
function joined(ranges, start, end) {
  const last = ranges.at(-1);
  if (last && start <= last[1] + 2e3) last[1] = Math.max(last[1], end); else ranges.push([start, end]);
}

class Lane {
  constructor(name, provenance, styles, size) {
    this.name = name;
    this.provenance = provenance;
    this.styles = styles;
    this.start = new Float64Array(size);
    this.end = new Float64Array(size);
    this.style = new Uint8Array(size);
    this.stack = new Int32Array(size).fill(-1);
    this.batch = new Int16Array(size).fill(-1);
    this.sure = null;
    this.watched = [];
  }

  // Provenance of one span, and of its micro-batch number.
  provenanceOf(index) { return this.sure ? (this.sure[index] ? "exact" : "sampled") : this.provenance; }

  get length() { return this.start.length; }

  // Ranges that were seen, in order: the spans, and what `watched` adds (a recorded profile has nothing unseen between its spans).
  get seen() {
    if (!this.ranges) {
      const spans = [];
      for (let i = 0; i < this.length; i++) joined(spans, this.start[i], this.end[i]);
      this.ranges = [];
      for (const [start, end] of [...spans, ...this.watched].sort((a, b) => a[0] - b[0])) joined(this.ranges, start, end);
    }
    return this.ranges;
  }

  isSeen(at) { return this.seen.some(([start, end]) => start <= at && at < end); }

  // Index of the first span that ends after an instant.
  after(at) {
    let low = 0, high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] <= at) low = middle + 1; else high = middle;
    }
    return low;
  }

  at(instant) {
    const index = this.after(instant);
    return index < this.length && this.start[index] <= instant ? index : -1;
  }

  isWork(index) { return this.styles[this.style[index]].kind === "work"; }
}

function hostLane(track, phases, phaseOf) {
  const lane = new Lane(track.main ? "host" : track.thread || "thread " + track.tid, "sampled", phases, track.took.length);
  let at = 0;
  for (let i = 0; i < track.took.length; i++) {
    lane.start[i] = at + track.gap[i];
    at = lane.end[i] = lane.start[i] + track.took[i];
    lane.stack[i] = track.stack[i];
    lane.style[i] = phaseOf.get(track.stack[i]) ?? phases.length - 1;
  }
  return lane;
}

function markBatches(lane, marks) {
  for (let i = 0; marks && i < marks.at.length; i++) {
    const index = lane.at(marks.at[i] + 1);
    if (index >= 0) lane.batch[index] = marks.number[i];
  }
}

function exactLane(packed, phases) {
  const lane = new Lane(packed.lane, "exact", phases, packed.took.length);
  const unit = packed.unit_ns;
  let at = 0;
  for (let i = 0; i < lane.length; i++) {
    lane.start[i] = (at + packed.gap[i]) * unit;
    at += packed.gap[i] + packed.took[i];
    lane.end[i] = at * unit;
  }
  lane.style.set(packed.phase);
  lane.batch.set(packed.micro_batch);
  if (packed.stack) lane.stack.set(packed.stack);
  if (Array.isArray(packed.exact)) lane.sure = Uint8Array.from(packed.exact);
  return lane;
}

function burstLane(record, origin, styles) {
  const lane = new Lane("gpu", "exact", styles, record.gpu_lengths_ns.length);
  let at = record.start_ns - origin;
  for (let i = 0; i < lane.length; i++) {
    at += record.gpu_starts_ns[i];
    lane.start[i] = at;
    lane.end[i] = at + record.gpu_lengths_ns[i];
    lane.style[i] = Math.min(record.gpu_classes[i], styles.length - 1);
  }
  return lane;
}

function gpuSeries(packed) {
  const at = new Float64Array(packed.at.length);
  let time = 0;
  packed.at.forEach((step, i) => { at[i] = time += step; });
  const column = (name) => {
    const values = packed[name];
    if (!values) return null;
    return Array.isArray(values) ? values : at.length ? new Array(at.length).fill(values.all) : null;
  };
  return { index: packed.index, at, power: column("power_w"), util: column("util_percent"), limit: column("power_limit_w") };
}

function buildModel(doc) {
  const view = doc.view, phases = view.phases;
  const phaseOf = new Map(doc.stacks.id.map((id, i) => [id, view.stack_phases[i]]));
  const colourOf = new Map(phases.map((phase) => [phase.name, phase.colour]));
  const gpuStyles = GPU_STYLES.map((style) => ({ ...style, colour: colourOf.get(style.name) || "#999999" }));
  const marks = new Map(view.micro_batches.map((item) => [keyOf(item.rank), item]));
  const lanes = new Map();
  const add = (rank, lane) => { const key = keyOf(rank); lanes.set(key, [...(lanes.get(key) || []), lane]); };
  const mainOf = new Map(view.stages.flatMap((stage) => stage.ranks.map((rank) => [keyOf(rank.key), rank.main_tid])));
  const isMain = (track) => track.tid === mainOf.get(keyOf(track.rank)) || track.thread === "MainThread";
  for (const track of [...doc.tracks].sort((a, b) => isMain(b) - isMain(a))) {
    track.main = isMain(track);
    const lane = hostLane(track, phases, phaseOf);
    if (track.main) markBatches(lane, marks.get(keyOf(track.rank)));
    add(track.rank, lane);
  }
  for (const packed of view.exact_lanes) {
    const key = keyOf(packed.rank), lane = exactLane(packed, phases), others = lanes.get(key) || [];
    // What was timed stands first; the sampled main thread keeps the stacks.
    lanes.set(key, packed.lane === "host" ? [lane, ...others] : [...others, lane]);
    if (packed.lane === "host" && others[0]) others[0].name = "host, sampled";
  }
  for (const record of doc.bursts) {
    const timed = (lanes.get(keyOf(record.rank)) || []).some((lane) => lane.name === "gpu");
    if (!timed) add(record.rank, burstLane(record, doc.window.origin_ns, gpuStyles));
  }
  for (const [key, own] of lanes) for (const lane of own) lane.watched = watched(doc, key, lane);
  return {
    doc, view, phases, lanes, gpuStyles,
    length: doc.window.end_ns - doc.window.origin_ns,
    gpus: new Map(doc.gpu_samples.map((packed) => [packed.index, gpuSeries(packed)])),
    stacks: stackReader(doc.stacks),
  };
}

// A burst records all of its window; GPU events of the probe all between the first and the last.
function watched(doc, key, lane) {
  const origin = doc.window.origin_ns;
  const windows = doc.bursts.filter((record) => keyOf(record.rank) === key).map((record) => [record.start_ns - origin, record.end_ns - origin]);
  if (lane.name === "gpu" && lane.length) windows.push([lane.start[0], lane.end[lane.length - 1]]);
  return windows;
}

function stackReader(stacks) {
  const frames = new Map(stacks.frames.id.map((id, i) => [id, {
    function: stacks.texts[stacks.frames.function[i]], file: stacks.texts[stacks.frames.file[i]], line: stacks.frames.line[i],
  }]));
  const of = new Map(stacks.id.map((id, i) => [id, stacks.frames_of[i]]));
  const unknown = { function: "?", file: "", line: null };
  return (id) => (of.get(id) || []).map((frame) => frames.get(frame) || unknown);
}
