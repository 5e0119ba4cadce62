// A comparison: the figures side by side, findings that went and came, both Gantts on one scale.

function figure(value, unit) {
  if (!known(value)) return NONE;
  if (typeof value === "string") return value;
  if (unit === "share") return share(value, Math.abs(value) < 0.1 ? 1 : 0);
  if (unit === "ms") return duration(value * 1e6);
  return value.toFixed(Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0) + (unit ? " " + unit : "");
}

function compareTable(comparison) {
  const columns = [{ name: "figure" }, { name: "before", class: "number" }, { name: "after", class: "number" }, { name: "change", class: "number" }, { name: "" }];
  const rows = comparison.figures.map((row) => ({
    class: row.verdict === "better" ? "good" : row.verdict === "worse" ? "bad" : "",
    cells: [isolated(row.name), figure(row.before, row.unit), figure(row.after, row.unit), known(row.ratio) ? "×" + row.ratio.toFixed(2) : NONE, row.verdict !== "same" ? row.verdict || "" : known(row.noise) ? `same (swings by ±${(row.noise * 100).toFixed(0)} %)` : "same (too few samples to tell)"],
  }));
  return section("figures", "Before and after", "Means over each window. Busy: the stage computes. Host works: its scheduler thread does anything but wait.", table(columns, rows, "Figures before and after"));
}

function compareFindings(comparison) {
  const list = (title, findings, kind) => el("div", { class: "outcome " + kind }, el("h3", {}, `${findings.length} ${title}`), el("ul", {}, findings.map((finding) =>
    el("li", {}, el("code", {}, finding.id), known(finding.stage) ? ` PP${finding.stage}` : "", " ", el("span", { class: "dim" }, isolated(clip(finding.summary, 300)))))));
  const { resolved, appeared, remaining, unknown_after, unknown_before } = comparison.findings;
  const judged = comparison.comparable ? [list("resolved", resolved, "good"), list("new", appeared, "bad"), list("still there", remaining, "warn")] : [list("in both", remaining, "warn")];
  const apart = comparison.comparable ? ["not known after", "not known before"] : ["only in the first", "only in the second"];
  const hint = comparison.comparable && unknown_after.length + unknown_before.length ? "Not known: that side lacks the evidence which the finding rests on; look for longer." : "";
  return section("outcome", "Findings", hint, el("div", { class: "outcomes" }, judged,
    unknown_after.length ? list(apart[0], unknown_after, "") : null, unknown_before.length ? list(apart[1], unknown_before, "") : null));
}

function compareSettings(comparison) {
  const rows = comparison.settings.map((row) => ({ cells: [el("code", {}, isolated(clip(row.name, 200))), isolated(clip(row.before ?? NONE, 300)), isolated(clip(row.after ?? NONE, 300))] }));
  return section("changed", "Settings that differ", "", rows.length ? table([{ name: "setting" }, { name: "before" }, { name: "after" }], rows, "Settings that differ") : el("p", { class: "dim" }, "None: the two ran with the same settings."));
}

function comparePage(data, theme) {
  const { comparison } = data;
  const models = [buildModel(data.before), buildModel(data.after)];
  const length = Math.max(models[0].length, models[1].length);
  const [from, to] = firstView(models[0], Math.max(window.innerWidth - 300, 300));
  const viewport = new Viewport(length, from, to);
  const gantts = models.map((model, i) => {
    model.length = length;
    return new Gantt(model, viewport, theme, i ? "after" : "before");
  });
  const reasons = comparison.refused.map((reason) => el("li", {}, isolated(reason)));
  return {
    gantts, viewport,
    content: [
      el("header", { class: "top" }, el("div", { class: "heading" }, el("h1", {}, isolated(clip(comparison.model || "Comparison", 300))),
        el("p", { class: "facts" }, el("span", {}, isolated(clip(comparison.before, 200))), el("span", {}, "→"), el("span", {}, isolated(clip(comparison.after, 200)))))),
      reasons.length ? el("div", { class: "verdict high" }, el("p", { class: "summary" }, "These two cannot be compared"), el("ul", {}, reasons)) : null,
      comparison.summary.length ? el("ul", { class: "said" }, comparison.summary.map((line) => el("li", {}, isolated(line)))) : null,
      compareTable(comparison), compareFindings(comparison), compareSettings(comparison),
      section("timeline", "Timelines on one scale", "", ganttToolbar(viewport, gantts), legend(models[0], theme),
        el("h3", {}, "before"), gantts[0].element, el("h3", {}, "after"), gantts[1].element),
    ],
  };
}
