// The Gantt: stages fold out to ranks and lanes; one canvas a row, one tree of labels that takes the keys.

class Gantt {
  constructor(model, viewport, theme, name) {
    Object.assign(this, { model, viewport, theme, name });
    this.open = new Set();
    this.cursor = null;
    this.focused = null;
    this.readout = el("p", { class: "readout", role: "status", "aria-live": "polite" }, "");
    this.tip = el("div", { class: "tip", hidden: true });
    this.line = el("div", { class: "crosshair", hidden: true });
    this.axis = el("canvas", { class: "axis", "aria-hidden": "true" });
    this.overview = el("canvas", { class: "overview", "aria-hidden": "true" });
    this.tree = el("div", { class: "rows", role: "tree", "aria-label": `${name}: stages, ranks and lanes` });
    this.element = el("div", { class: "gantt" },
      el("div", { class: "row thin" }, el("div", { class: "label dim", title: "How many stages' host threads work at once; what their GPUs do is not in it" }, "hosts at work"), el("div", { class: "plot" }, this.overview)),
      el("div", { class: "row thin" }, el("div", { class: "label" }), el("div", { class: "plot" }, this.axis)),
      this.tree, this.line, this.tip, this.readout);
    this.tree.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("pointermove", (event) => this.hover(event));
    this.element.addEventListener("pointerleave", () => this.leave());
    attachPointer(this.tree, viewport, (event) => event.target.closest("canvas"));
    this.overview.addEventListener("pointerdown", (event) => this.jump(event));
    this.overview.addEventListener("pointermove", (event) => { if (event.buttons) this.jump(event); });
    viewport.onChange(() => this.draw());
    this.build();
  }

  jump(event) {
    const box = this.overview.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * this.model.length;
    this.viewport.set(at - this.viewport.span / 2, at + this.viewport.span / 2);
  }

  // Rows of the tree as it is folded now.
  items() {
    const items = [];
    for (const stage of this.model.view.stages) {
      const id = `${stage.dp}/${stage.pp}`;
      const lanesOf = (rank) => this.model.lanes.get(keyOf(rank.key)) || [];
      const first = stage.ranks[0];
      const lanes = first ? lanesOf(first) : [];
      const many = stage.ranks.length > 1;
      const gpu = lanes.find((lane) => lane.name === "gpu");
      const rest = lanes.filter((lane, at) => at > 0 && lane !== gpu);
      items.push({
        id, level: 1, stage, rank: first, lanes: [lanes[0], gpu].filter(Boolean), strip: stage.gpus, folds: many || rest.length > 0,
        title: stageName(this.model.view, stage), note: this.stageNote(stage),
      });
      if (!this.open.has(id)) continue;
      if (!many) {
        rest.forEach((lane, at) => items.push({ id: `${id}:${at}`, parent: id, level: 2, rank: first, lanes: [lane], title: lane.name, note: "thread" }));
        continue;
      }
      for (const rank of stage.ranks) {
        const own = lanesOf(rank), rankId = keyOf(rank.key);
        items.push({
          id: rankId, parent: id, level: 2, rank, lanes: own.slice(0, 1), strip: known(rank.gpu) ? [rank.gpu] : [], folds: own.length > 1,
          title: `TP${rank.key[2]}`, note: `pid ${rank.pid}` + (known(rank.gpu) ? ` · GPU ${rank.gpu}` : ""),
        });
        if (!this.open.has(rankId)) continue;
        own.slice(1).forEach((lane, at) => items.push({ id: `${rankId}:${at}`, parent: rankId, level: 3, rank, lanes: [lane], title: lane.name, note: lane.provenance }));
      }
    }
    return items;
  }

  stageNote(stage) {
    if (!stage.alive) return "gone";
    const parts = [];
    if (stage.gpus.length) parts.push(`GPU ${stage.gpus.join(",")}`);
    if (known(stage.power_w)) parts.push(`${fixed(stage.power_w, 0)}/${fixed(stage.power_limit_w, 0)} W`);
    if (known(stage.util_percent)) parts.push(`${fixed(stage.util_percent, 0)} %`);
    return parts.join(" · ") || (stage.ranks[0]?.pid ? `pid ${stage.ranks[0].pid}` : "");
  }

  build() {
    const kept = this.focused;
    this.rows = this.items();
    this.tree.replaceChildren(...this.rows.map((row) => this.row(row)));
    this.focus(this.rows.find((row) => row.id === kept) || this.rows[0], false);
  }

  row(row) {
    const expanded = row.folds ? this.open.has(row.id) : null;
    const summary = this.summary(row);
    row.item = el("div", {
      class: "label", role: "treeitem", tabindex: "-1", "aria-level": row.level, "aria-label": summary,
      "aria-expanded": expanded === null ? null : String(expanded), title: summary,
      onclick: () => { this.focus(row, true); this.toggle(row); }, onfocus: () => this.focus(row, false),
    }, el("span", { class: "fold" }, row.folds ? (expanded ? "▾" : "▸") : ""), el("span", { class: "name" }, isolated(clip(row.title, 60))), el("span", { class: "note" }, row.note || ""));
    row.canvases = row.lanes.map((lane) => el("canvas", { class: `lane ${lane.name === "gpu" ? "gpu" : ""}`, "aria-hidden": "true" }));
    const series = (row.strip || []).map((index) => this.model.gpus.get(index)).filter(Boolean);
    if (series.length) {
      row.series = series;
      row.stripCanvas = el("canvas", { class: "strip", "aria-hidden": "true" });
    }
    row.element = el("div", { class: `row level${row.level}`, role: "none" }, row.item, el("div", { class: "plot" }, row.canvases, row.stripCanvas));
    row.element.row = row;
    return row.element;
  }

  summary(row) {
    const phases = (row.level === 1 ? row.stage : row.rank)?.phases || [];
    const words = phases.slice(0, 3).map(([phase, part]) => `${this.model.phases[phase]?.label ?? "?"} ${share(part)}`);
    return [clip(row.title, 200), row.note, words.join(", ")].filter(Boolean).join("; ");
  }

  toggle(row) {
    if (!row.folds) return;
    if (this.open.has(row.id)) this.open.delete(row.id); else this.open.add(row.id);
    this.build();
    this.focus(this.rows.find((other) => other.id === row.id), true);
    this.draw();
  }

  foldAll(open) {
    this.open.clear();
    for (let before = -1; open && before !== this.open.size;) {
      before = this.open.size;
      for (const row of this.items()) if (row.folds) this.open.add(row.id);
    }
    this.build();
    this.draw();
  }

  focus(row, move) {
    if (!row) return;
    this.focused = row.id;
    for (const other of this.rows) {
      other.item.setAttribute("tabindex", other === row ? "0" : "-1");
      other.item.setAttribute("aria-selected", String(other === row));
    }
    if (move) row.item.focus({ preventScroll: false });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.rows.findIndex((row) => row.id === this.focused), row = this.rows[at];
    if (!row) return;
    const centre = this.cursor ?? undefined;
    const does = {
      ArrowUp: () => this.focus(this.rows[at - 1], true), ArrowDown: () => this.focus(this.rows[at + 1], true),
      k: () => this.focus(this.rows[at - 1], true), j: () => this.focus(this.rows[at + 1], true),
      ArrowLeft: () => this.viewport.pan(-0.25), ArrowRight: () => this.viewport.pan(0.25), h: () => this.viewport.pan(-0.25), l: () => this.viewport.pan(0.25),
      "+": () => this.viewport.zoom(0.5, centre), "=": () => this.viewport.zoom(0.5, centre), "-": () => this.viewport.zoom(2, centre), _: () => this.viewport.zoom(2, centre),
      0: () => this.viewport.set(0, this.model.length), Home: () => this.viewport.set(0, this.viewport.span),
      End: () => this.viewport.set(this.model.length - this.viewport.span, this.model.length),
      Enter: () => this.toggle(row), " ": () => this.toggle(row), "[": () => this.step(row, -1), "]": () => this.step(row, 1),
      Escape: () => this.escape(row),
    }[event.key];
    if (does) { event.preventDefault(); does(); }
  }

  escape(row) {
    const up = row.folds && this.open.has(row.id) ? row : this.rows.find((other) => other.id === row.parent);
    if (up && this.open.has(up.id)) this.toggle(up);
  }

  step(row, by) {
    const lane = row.lanes[0];
    if (!lane || !lane.length) return;
    let index = lane.after(this.cursor ?? this.viewport.from);
    if (this.cursor !== null) index += by;
    index = Math.min(Math.max(index, 0), lane.length - 1);
    this.cursor = (lane.start[index] + lane.end[index]) / 2;
    this.viewport.show(this.cursor);
    this.readout.textContent = this.describe(row, lane, index).join(" · ");
    this.draw();
  }

  describe(row, lane, index) {
    const style = lane.styles[lane.style[index]];
    const words = [row.title, lane.name, style.label, duration(lane.end[index] - lane.start[index]), `at ${(lane.start[index] / 1e9).toFixed(lane.provenanceOf(index) === "exact" ? 6 : 3)} s`];
    const provenance = lane.provenanceOf(index);
    if (lane.batch[index] >= 0) words.push(`micro-batch ${lane.batch[index]}` + (provenance === "exact" ? "" : " (inferred)"));
    words.push(provenance);
    return words;
  }

  hover(event) {
    const canvas = event.target.closest("canvas.lane, canvas.strip");
    const row = event.target.closest(".row")?.row;
    if (!canvas || !row) return this.leave();
    const at = pointerTime(event, canvas, this.viewport);
    const box = this.element.getBoundingClientRect();
    this.line.hidden = false;
    this.line.style.left = event.clientX - box.left + "px";
    const lane = row.lanes[row.canvases.indexOf(canvas)];
    const lines = lane ? this.spanLines(row, lane, at) : this.stripLines(row, at);
    this.tip.replaceChildren(...lines);
    this.tip.hidden = lines.length === 0;
    const left = Math.min(event.clientX - box.left + 14, box.width - this.tip.offsetWidth - 4);
    this.tip.style.left = Math.max(left, 0) + "px";
    this.tip.style.top = event.clientY - box.top + 18 + "px";
    return undefined;
  }

  spanLines(row, lane, at) {
    const index = lane.at(at);
    if (index < 0) return [el("div", { class: "dim" }, lane.isSeen(at) ? (lane.name === "gpu" ? "idle: nothing ran here" : "between two steps") : "not seen: nothing is known of this time")];
    const style = lane.styles[lane.style[index]];
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = this.theme.paint(style);
    const frames = lane.stack[index] >= 0 ? this.model.stacks(lane.stack[index]).slice(-4).reverse() : [];
    return [
      el("div", { class: "strong" }, swatch, style.label, " ", duration(lane.end[index] - lane.start[index])),
      el("div", { class: "dim" }, this.describe(row, lane, index).filter((_, i) => i !== 2 && i !== 3).join(" · ")),
      ...frames.map((frame) => el("div", { class: "mono" }, isolated(clip(frame.function, 80)), el("span", { class: "dim" }, " ", isolated(place(frame))))),
    ];
  }

  stripLines(row, at) {
    return row.series.map((series) => {
      const index = series.at.findLastIndex((time) => time <= at);
      const value = (values) => (values && index >= 0 ? values[index] : null);
      return el("div", {}, `GPU ${series.index}: ${fixed(value(series.power), 0, " W")} of ${fixed(value(series.limit), 0, " W")}, util ${fixed(value(series.util), 0, " %")}`);
    });
  }

  leave() { this.line.hidden = this.tip.hidden = true; }

  draw() {
    const { from, to } = this.viewport;
    measure([...this.rows.flatMap((row) => [...row.canvases, row.stripCanvas]), this.axis, this.overview].filter(Boolean));
    for (const row of this.rows) {
      row.canvases.forEach((canvas, i) => drawLane(canvas, row.lanes[i], from, to, this.theme));
      if (row.stripCanvas) drawStrip(row.stripCanvas, row.series, from, to, this.theme);
    }
    drawAxis(this.axis, from, to, this.theme);
    this.drawOverview();
    if (this.cursor !== null) this.drawCursor();
  }

  drawCursor() {
    for (const row of this.rows) for (const canvas of row.canvases) {
      const context = canvas.getContext("2d");
      context.fillStyle = this.theme.cursor;
      context.fillRect(((this.cursor - this.viewport.from) / this.viewport.span) * canvas.box[0], 0, 1, canvas.box[1]);
    }
  }

  // How many stages work at once, over the whole window, and which part of it is shown below.
  drawOverview() {
    const { context, width, height } = prepare(this.overview);
    const columns = Math.max(Math.floor(width), 1), step = this.model.length / columns;
    if (!this.busy || this.busy.length !== columns) this.busy = this.workingStages(columns, step);
    const stages = Math.max(this.model.view.stages.length, 1);
    context.fillStyle = this.theme.dim;
    context.globalAlpha = 0.7;
    this.busy.forEach((count, x) => context.fillRect(x, height - 2 - (count / stages) * (height - 6), 1, 2));
    context.globalAlpha = 1;
    context.fillStyle = this.theme.dim;
    context.font = "10px system-ui, sans-serif";
    context.textBaseline = "top";
    context.fillText(`${stages}`, 2, 1);
    context.strokeStyle = this.theme.cursor;
    context.globalAlpha = 0.8;
    const left = (this.viewport.from / this.model.length) * width, wide = Math.max((this.viewport.span / this.model.length) * width, 3);
    context.strokeRect(left + 0.5, 0.5, Math.min(wide, width - left) - 1, height - 1);
    context.globalAlpha = 0.14;
    context.fillStyle = this.theme.cursor;
    context.fillRect(left, 0, wide, height);
    context.globalAlpha = 1;
  }

  workingStages(columns, step) {
    const busy = new Float32Array(columns);
    for (const stage of this.model.view.stages) {
      const lane = stage.ranks.length ? (this.model.lanes.get(keyOf(stage.ranks[0].key)) || [])[0] : null;
      for (let i = 0; lane && i < lane.length; i++) {
        if (!lane.isWork(i)) continue;
        for (let x = Math.floor(lane.start[i] / step); x < columns && x * step < lane.end[i]; x++) {
          if (x >= 0) busy[x] += (Math.min(lane.end[i], (x + 1) * step) - Math.max(lane.start[i], x * step)) / step;
        }
      }
    }
    return busy;
  }
}

// A trace file is named by its title: it may not know its place in a pipeline.
function stageName(view, stage) {
  if (view.server.kind === "trace" && stage.ranks[0]?.title) return stage.ranks[0].title;
  return (view.stages.some((other) => other.dp) ? `DP${stage.dp} ` : "") + `PP${stage.pp}`;
}

const place = (frame) => (frame.file ? clip(frame.file.split("/").slice(-2).join("/"), 60) + (known(frame.line) ? ":" + frame.line : "") : "");
