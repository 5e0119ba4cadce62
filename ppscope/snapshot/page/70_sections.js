// Everything that is text: verdicts, figures, tables.

const SEVERITY = { high: ["✖", "high"], medium: ["▲", "medium"], info: ["ℹ", "info"] };

// A trace without a wall clock counts from zero, which is no date.
const FIRST_WALL_NS = 1e18;

function when(wall) {
  if (!known(wall) || wall < FIRST_WALL_NS) return null;
  return new Date(wall / 1e6).toISOString().replace("T", " ").slice(0, 19) + " UTC";
}

// A trace file knows nothing of a server: how many files, and which stages they say they are.
function layoutOf(doc) {
  const { server, stages } = doc.view;
  if (server.kind !== "trace") return server.layout;
  const ranks = stages.flatMap((stage) => stage.ranks);
  const named = [...new Set(ranks.map((rank) => rank.title.split(" ").pop()).filter((title) => title.startsWith("PP")))];
  return `torch profiler trace, ${ranks.length} file${ranks.length === 1 ? "" : "s"}` + (named.length ? ` of ${clip(named.join(", "), 80)}` : "");
}

function heading(doc) {
  const server = doc.view.server, seen = when(doc.made.wall_ns);
  const facts = [
    server.version && `SGLang ${server.version}`, layoutOf(doc), server.device, server.emulated && "emulated GPUs and load",
    doc.made.host, server.launcher_pid && `pid ${server.launcher_pid}`, seen, `${fixed(doc.window.seconds, 1)} s seen`,
  ].filter(Boolean);
  return el("div", { class: "heading" }, el("h1", {}, isolated(clip(server.model || server.kind || "SGLang server", 300))),
    el("p", { class: "facts" }, facts.map((fact) => el("span", {}, isolated(clip(String(fact), 120))))));
}

function tiles(doc) {
  const { load, occupancy, graphs, stages } = doc.view;
  const powers = stages.map((stage) => stage.power_w).filter(known);
  const limits = stages.map((stage) => stage.power_limit_w).filter(known);
  const mean = (values) => (values.length ? values.reduce((a, b) => a + b) / values.length : null);
  const tile = (name, value, note) => el("div", { class: "tile" }, el("div", { class: "value" }, value), el("div", { class: "name" }, name), el("div", { class: "note" }, note || ""));
  const shown = [
    known(load.tokens_per_s) && tile("tokens/s", fixed(load.tokens_per_s, 1), load.source ? `from ${load.source}` : ""),
    (known(load.running) || known(load.queued)) && tile("requests", `${load.running ?? NONE} + ${load.queued ?? NONE}`, "running + queued" + (load.running_provenance === "inferred" ? ", inferred" : "")),
    known(occupancy.slots) && tile("micro-batch slots in use", occupancy.text ?? `${fixed(occupancy.mean, 1)} of ${occupancy.slots}`, `${occupancy.samples} ${occupancy.provenance === "exact" ? "launches" : "samples"}`),
    Object.values(graphs.decode).some(known) && tile("decode graphs", graphs.decode.observed || graphs.decode.resolved || NONE, ["requested", "resolved", "observed"].map((name) => `${name} ${graphs.decode[name] ?? NONE}`).join(", ")),
    powers.length > 0 && tile("power per GPU", fixed(mean(powers), 0, " W"), limits.length ? `of ${fixed(mean(limits), 0)} W` : ""),
  ].filter(Boolean);
  return shown.length ? el("div", { class: "tiles" }, shown) : null;
}

// Prose, but what is to be pasted or typed stands as code: a curl command on a line of its own, `quoted` text, flags and variables.
const CODE = /curl -X POST \S+ -H '[^']*' -d '[^']*'|`[^`]+`|--[a-z][a-z0-9-]+(?: [0-9]+)?|\bSGLANG_[A-Z0-9_]+\b/g;

function remedy(text) {
  const parts = [], shown = clip(text, 800);
  let at = 0;
  for (const match of shown.matchAll(CODE)) {
    parts.push(isolated(shown.slice(at, match.index)));
    const code = match[0].replaceAll("`", "");
    parts.push(el("code", { class: code.startsWith("curl") ? "block" : null }, isolated(code)), code.startsWith("curl") ? copyButton(code, "the command") : null);
    at = match.index + match[0].length;
    // The command stands on a line of its own, and so does the full stop after it.
    if (code.startsWith("curl")) at += /^[.\s]*/.exec(shown.slice(at))[0].length;
  }
  return [...parts, isolated(shown.slice(at))];
}

function verdict(finding) {
  const [glyph, word] = SEVERITY[finding.severity] || ["•", finding.severity];
  const place_ = (item) => `${item.file}:${item.line}`;
  const text = [`${finding.id} (${word}): ${finding.summary}`, ...finding.evidence.map((line) => "- " + line), "change: " + finding.remedy, ...finding.source.map(place_)].join("\n");
  return el("article", { class: "verdict " + word, "aria-label": `${word}: ${finding.id}` },
    el("header", {}, el("span", { class: "glyph", "aria-hidden": "true" }, glyph), el("code", {}, finding.id), el("span", { class: "tag" }, word),
      known(finding.stage) ? el("span", { class: "tag" }, `PP${finding.stage}`) : null, el("span", { class: "tag" }, finding.provenance), el("span", { class: "spring" }), copyButton(text, "the finding " + finding.id)),
    el("p", { class: "summary" }, isolated(clip(finding.summary, 600))),
    finding.evidence.length ? el("ul", {}, finding.evidence.map((line) => el("li", {}, isolated(clip(line, 600))))) : null,
    finding.remedy ? el("p", { class: "remedy" }, el("span", { class: "dim" }, "change "), remedy(finding.remedy)) : null,
    finding.source.length ? el("p", { class: "dim small mono" }, finding.source.map((item) => el("span", {}, isolated(place_(item)), " "))) : null);
}

function verdicts(doc) {
  const findings = doc.view.findings;
  const blind = doc.view.server.kind === "trace" && doc.bursts.every((record) => !record.kernels || !record.kernels[0]);
  const none = blind ? el("p", { class: "dim" }, "No kernels in these files: steps and host spans only, nothing can be said about graphs and bubbles.")
    : el("p", { class: "calm" }, "No finding: nothing that was seen says the pipeline is held back.");
  return section("verdicts", findings.length ? `${findings.length} finding${findings.length > 1 ? "s" : ""}` : "Findings", "", findings.length ? findings.map(verdict) : none);
}

function stageTable(model) {
  const phase = ([index, part]) => `${model.phases[index]?.label ?? "?"} ${share(part)}`;
  const columns = [{ name: "stage" }, { name: "busy", class: "number" }, { name: "host works", class: "number" }, { name: "power", class: "number" }, { name: "util", class: "number" }, { name: "GPU" }, { name: "host phases, last seconds" }];
  const rows = model.view.stages.map((stage) => ({
    class: stage.alive ? "" : "bad",
    cells: [stageName(model.view, stage), known(stage.busy) ? `${share(stage.busy)} (${stage.busy_source})` : NONE, share(stage.host_work),
      known(stage.power_w) ? `${fixed(stage.power_w, 0)} / ${fixed(stage.power_limit_w, 0)} W` : NONE, fixed(stage.util_percent, 0, " %"), stage.gpus.join(", ") || NONE, stage.phases.slice(0, 4).map(phase).join(" · ")],
  }));
  return section("stages", "Stages", "Busy needs evidence from the GPU; without it, it is not known.", table(columns, rows, "Stages"));
}

function launchTable(doc) {
  const rows = doc.view.launches.map((row) => ({
    class: row.kind === "eager" ? "warn" : "",
    cells: [isolated(clip(row.name, 300)), row.kind, row.count, known(row.gpu_us) ? duration(row.gpu_us * 1000) : NONE, known(row.stage) ? `PP${row.stage}` : NONE,
      isolated(row.file ? clip(row.file, 200) + (known(row.line) ? ":" + row.line : "") : NONE), isolated(clip(row.reason || NONE, 300))],
  }));
  const columns = [{ name: "kernel", class: "wide mono" }, { name: "kind" }, { name: "count", class: "number" }, { name: "GPU time", class: "number" }, { name: "stage" }, { name: "launched from", class: "mono" }, { name: "why eager" }];
  const none = el("p", { class: "dim" }, doc.bursts.length ? "The profile holds no launches." : "No profile burst was taken, so no launch was seen: what stacks show is below.");
  return section("launches", "Launches", "", rows.length ? table(columns, rows, "Launches") : none);
}

function settingsTable(doc) {
  const rows = doc.view.settings.map((row) => ({
    class: row.differs ? "warn" : "",
    cells: [el("code", {}, isolated(clip(row.name, 200))), ...[row.requested, row.resolved, row.observed].map((value) => isolated(clip(value ?? NONE, 400)))],
  }));
  if (doc.view.server.kind === "trace") return null;
  const command = (doc.view.server.launch_command || []).join(" ");
  return section("settings", "Settings", "Asked on the command line, resolved by the server, seen to happen.",
    command ? el("details", {}, el("summary", {}, "launch command"), el("pre", {}, isolated(command))) : null,
    rows.length ? table([{ name: "setting" }, { name: "requested" }, { name: "resolved" }, { name: "observed" }], rows, "Settings") : el("p", { class: "dim" }, "No settings could be read."));
}

function environment(doc) {
  const { server, gpus } = doc.view;
  const drivers = [...new Set(gpus.map((gpu) => gpu.driver_version).filter(Boolean))];
  const facts = [["SGLang", server.version], ["path", server.sglang_path], ["device", server.device], ["GPU driver", drivers.join(", ")], ["host", doc.made.host], ["platform", doc.made.platform], ["ppscope", doc.made.ppscope]];
  const rows = gpus.map((gpu) => ({
    cells: [String(gpu.index), isolated(clip(gpu.name, 120)) , fixed(gpu.power_limit_w, 0, " W"), known(gpu.memory_total_bytes) ? fixed(gpu.memory_total_bytes / 2 ** 30, 0, " GiB") : NONE,
      known(gpu.pcie_gen_max) ? `gen ${gpu.pcie_gen_max} ×${gpu.pcie_width_max ?? NONE}` : NONE, gpu.numa_node ?? NONE, gpu.p2p.map(([other, link]) => `${other}: ${link}`).join(", ") || NONE, isolated(gpu.uuid + (gpu.emulated ? " (emulated)" : ""))],
  }));
  const columns = [{ name: "GPU" }, { name: "name" }, { name: "limit", class: "number" }, { name: "memory", class: "number" }, { name: "PCIe" }, { name: "NUMA" }, { name: "links" }, { name: "uuid", class: "mono" }];
  return section("environment", "Environment", "", el("dl", { class: "facts-list" }, facts.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, isolated(clip(String(value), 300)))])),
    rows.length ? table(columns, rows, "GPUs") : server.kind === "trace" ? null : el("p", { class: "dim" }, "No GPU was seen."));
}

function provenance(doc) {
  const { overhead, sources } = doc.view;
  const cost = known(overhead.own_cores) ? overhead.own_cores + overhead.children_cores : null;
  const columns = [{ name: "source" }, { name: "state" }, { name: "message" }];
  const seen = new Map(sources.map((source) => [source.name + source.state + source.message, source]));
  const rows = [...seen.values()].map((source) => ({ class: ["dead", "stalled", "degraded"].includes(source.state) ? "warn" : "", cells: [source.name, source.state, isolated(clip(source.message || NONE, 300))] }));
  return section("provenance", "How this was seen", "",
    el("dl", { class: "facts-list" }, [
      ["host lanes", doc.tracks.length === 0 ? null : "stacks, sampled by py-spy without pausing the target" + (known(overhead.stack_rate_hz) ? ` at ${fixed(overhead.stack_rate_hz, 0)} Hz: an edge is exact to one sample` : "")],
      ["micro-batch numbers", doc.tracks.length === 0 ? null : "inferred from the event loop's locals at a dump, for the span it fell into"],
      ["exact lanes", doc.view.exact_lanes.some((lane) => lane.exact) ? "timed by the probe in the scheduler, or by a profile burst" : null],
      ["GPU lanes", doc.bursts.length ? "exact, from a profile burst" : doc.view.exact_lanes.some((lane) => lane.lane === "gpu") ? "exact, CUDA events of the probe" : "none: no profile burst and no GPU timing by the probe"],
      ["cost of ppscope", cost === null ? null : `${fixed(cost, 2)} cores: ${fixed(overhead.own_cores, 2)} its own, ${fixed(overhead.children_cores, 2)} its tools`],
      ["stacks no rule names", known(overhead.other_share) ? share(overhead.other_share, 1) : null],
      ["records dropped", String(overhead.dropped_records)],
    ].filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    rows.length ? table(columns, rows, "Sources") : null);
}

function legend(model, theme) {
  const used = new Set(), shown = [];
  for (const lanes of model.lanes.values()) for (const lane of lanes.slice(0, 1).concat(lanes.filter((one) => one.name === "gpu"))) {
    const here = new Set(lane.style);
    lane.styles.forEach((style, i) => { if (here.has(i) && !used.has(style.label)) { used.add(style.label); shown.push(style); } });
  }
  const item = (style) => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = theme.paint(style);
    return el("li", {}, swatch, style.label);
  };
  const rank = { work: 0, frozen: 1, wait: 2, other: 3, idle: 4 };
  return el("ul", { class: "legend", "aria-label": "Phases" }, shown.sort((a, b) => rank[a.kind] - rank[b.kind]).map(item),
    el("li", { title: "No sample and no event: neither work nor idle" }, el("span", { class: "swatch unseen" }), "not seen"),
    model.gpus.size ? [el("li", {}, el("span", { class: "stroke power" }), "power"), el("li", {}, el("span", { class: "stroke util" }), "utilisation")] : null);
}
