// Stacks of one thread over the part of the window that is shown, as a flame view: the root on top, wider is longer.

const FLAME_ROWS = 40, FLAME_NODES = 1200;

function flameTree(model, lane, from, to) {
  const weights = new Map();
  let total = 0;
  for (let i = lane.after(from); i < lane.length && lane.start[i] < to; i++) {
    const took = Math.min(lane.end[i], to) - Math.max(lane.start[i], from);
    total += took;
    weights.set(lane.stack[i], (weights.get(lane.stack[i]) || 0) + took);
  }
  const phases = new Map(model.doc.stacks.id.map((id, i) => [id, model.view.stack_phases[i]]));
  const root = { name: "all", file: "", line: null, weight: total, own: 0, phases: new Map(), children: new Map() };
  for (const [stack, took] of weights) {
    let node = root;
    for (const frame of model.stacks(stack)) {
      const key = frame.function + "\0" + frame.file;
      if (!node.children.has(key)) node.children.set(key, { name: frame.function, file: frame.file, line: frame.line, weight: 0, own: 0, phases: new Map(), children: new Map() });
      node = node.children.get(key);
      node.weight += took;
      node.phases.set(phases.get(stack), (node.phases.get(phases.get(stack)) || 0) + took);
    }
    node.own += took;
  }
  return root;
}

// What every stack has in common says nothing: it becomes a count.
function skipTrunk(root) {
  let node = root, skipped = 0;
  while (node.children.size === 1) {
    const [only] = node.children.values();
    if (only.children.size === 0 || only.weight < node.weight * 0.995) break;
    node = only;
    skipped += 1;
  }
  return { node, skipped };
}

class Flame {
  constructor(model, viewport, theme) {
    Object.assign(this, { model, viewport, theme, focus: null });
    const ranks = model.view.stages.flatMap((stage) => stage.ranks);
    this.ranks = ranks.filter((rank) => (model.lanes.get(keyOf(rank.key)) || []).some((lane) => lane.provenance === "sampled" && lane.length));
    this.rank = el("select", { "aria-label": "Rank of the stacks", onchange: () => this.pickThread() },
      this.ranks.map((rank, i) => el("option", { value: i }, `PP${rank.key[1]} TP${rank.key[2]}` + (rank.key[0] ? ` DP${rank.key[0]}` : ""))));
    this.thread = el("select", { "aria-label": "Thread of the stacks", onchange: () => this.reset() });
    this.body = el("div", { class: "flame", role: "group", "aria-label": "Flame view; Enter on a frame widens it" });
    this.said = el("p", { class: "dim small" });
    this.element = el("div", {}, el("div", { class: "toolbar" }, this.rank, this.thread, el("button", { type: "button", onclick: () => this.reset() }, "whole stack")), this.body, this.said);
    viewport.onChange(() => { clearTimeout(this.timer); this.timer = setTimeout(() => this.reset(), 120); });
    this.pickThread();
  }

  pickThread() {
    const rank = this.ranks[this.rank.value || 0];
    this.lanes = rank ? this.model.lanes.get(keyOf(rank.key)).filter((lane) => lane.provenance === "sampled") : [];
    this.thread.replaceChildren(...this.lanes.map((lane, i) => el("option", { value: i }, clip(i ? lane.name : "main thread", 60))));
    this.reset();
  }

  reset() { this.focus = null; this.draw(); }

  draw() {
    const lane = this.lanes[this.thread.value || 0];
    if (!lane) { this.body.replaceChildren(el("p", { class: "dim" }, "No stacks were seen.")); return; }
    const { node, skipped } = skipTrunk(flameTree(this.model, lane, this.viewport.from, this.viewport.to));
    const root = this.focus ? this.find(node, this.focus) || node : node;
    const nodes = [];
    const place_ = (item, depth, left, path) => {
      if (depth >= FLAME_ROWS || nodes.length >= FLAME_NODES || item.weight / root.weight < 0.0015) return;
      nodes.push(this.node(item, depth, left, item.weight / root.weight, root.weight, path));
      this.depth = Math.max(this.depth, depth);
      let at = left;
      for (const [key, child] of [...item.children].sort((a, b) => b[1].weight - a[1].weight)) {
        place_(child, depth + 1, at, [...path, key]);
        at += child.weight / root.weight;
      }
    };
    this.depth = 0;
    place_(root, 0, 0, this.focus || []);
    this.body.replaceChildren(...nodes);
    this.body.style.height = (this.depth + 1) * 21 + "px";
    const hidden = skipped ? `${skipped} frames that every stack has are left out · ` : "";
    this.said.textContent = `${hidden}${duration(root.weight)} of stacks between ${duration(this.viewport.from)} and ${duration(this.viewport.to)}, sampled`;
  }

  find(node, path) { return path.reduce((at, key) => at && at.children.get(key), node); }

  node(item, depth, left, wide, total, path) {
    const phase = [...item.phases].sort((a, b) => b[1] - a[1])[0];
    const style = phase && this.model.phases[phase[0]];
    const text = `${clip(item.name, 120)} ${place(item)}`;
    const what = `${text}: ${share(item.weight / total, 1)}, ${share(item.own / total, 1)} in itself` + (style ? `; ${style.label}` : "");
    const button = el("button", { type: "button", class: "frame " + (style ? style.kind : ""), title: what, "aria-label": what, onclick: () => { this.focus = path; this.draw(); } },
      el("span", {}, isolated(clip(item.name, 120))), el("span", { class: "dim" }, " ", isolated(place(item))));
    button.style.left = left * 100 + "%";
    button.style.width = wide * 100 + "%";
    button.style.top = depth * 21 + "px";
    if (style) button.style.setProperty("--phase", this.theme.paint(style));
    return button;
  }
}
