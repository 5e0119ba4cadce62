// Puts the page together and keeps it drawn: theme, size, print.

function ganttToolbar(viewport, gantts) {
  const button = (text, label, action) => el("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
  return el("div", { class: "toolbar", role: "toolbar", "aria-label": "Time axis" },
    button("◀", "Earlier", () => viewport.pan(-0.25)), button("▶", "Later", () => viewport.pan(0.25)),
    button("+", "Zoom in", () => viewport.zoom(0.5)), button("−", "Zoom out", () => viewport.zoom(2)),
    button("turns", "Some turns of the pipeline", () => viewport.set(...viewport.home)),
    button("all", "The whole window", () => viewport.set(0, viewport.length)),
    button("unfold", "Unfold all stages", () => gantts.forEach((gantt) => gantt.foldAll(true))), button("fold", "Fold all stages", () => gantts.forEach((gantt) => gantt.foldAll(false))),
    el("span", { class: "hint keys" }, "in the rows: ", ["↑↓ row", "←→ time", "+ − zoom", "Enter fold", "[ ] span", "0 all"].map((text) => el("kbd", {}, text))));
}

function snapshotPage(doc, theme) {
  const model = buildModel(doc);
  const [from, to] = firstView(model, Math.max(window.innerWidth - 300, 300));
  const viewport = new Viewport(model.length, from, to);
  const gantt = new Gantt(model, viewport, theme, "timeline");
  const flame = new Flame(model, viewport, theme);
  return {
    gantts: [gantt], flame, viewport,
    content: [
      el("header", { class: "top" }, heading(doc), tiles(doc)),
      verdicts(doc),
      section("timeline", "Timeline", doc.view.server.kind === "trace" ? "Each row is a file: its steps on the host, below them its GPU." : "Tall is work, low is waiting. Each row is the main thread of a stage's scheduler.", ganttToolbar(viewport, [gantt]), legend(model, theme), gantt.element),
      stageTable(model), launchTable(doc),
      flame.ranks.length ? section("stacks", "Stacks", "Of the part of the timeline that is shown.", flame.element) : null,
      settingsTable(doc), environment(doc), provenance(doc),
    ],
  };
}

function themeButton(redraw) {
  const order = ["auto", "light", "dark"];
  const button = el("button", { type: "button", class: "quiet theme", title: "Colours: as the system has it, light or dark" }, "colours: auto");
  let shown = "auto";
  button.addEventListener("click", () => {
    const next = shown = order[(order.indexOf(shown) + 1) % order.length];
    button.textContent = "colours: " + next;
    if (next === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = next;
    redraw();
  });
  return button;
}

async function main() {
  const page = document.getElementById("page");
  try {
    const data = await readData();
    const theme = new Theme();
    const comparing = data.schema.startsWith("ppscope.compare/");
    const kind = comparing ? "comparison" : data.view.server.kind === "trace" ? "trace" : "snapshot";
    const shown = comparing ? comparePage(data, theme) : snapshotPage(data, theme);
    const draw = () => { for (const gantt of shown.gantts) gantt.draw(); };
    const restyle = () => {
      theme.read();
      for (const old of document.querySelectorAll(".legend")) old.replaceWith(legend(shown.gantts[0].model, theme));
      draw();
      if (shown.flame) shown.flame.draw();
    };
    document.title = `ppscope ${kind}: ${clip((comparing ? data.comparison.model : data.view.server.model) || "server", 120)}`;
    page.replaceChildren(
      el("div", { class: "brand" }, el("span", {}, el("b", {}, "ppscope"), " " + kind), themeButton(restyle)),
      el("main", {}, shown.content),
      el("footer", {}, comparing ? "" : "ppscope open FILE shows this in a terminal; ppscope open FILE --json prints its data."));
    let wide = page.clientWidth;
    new ResizeObserver(() => { if (page.clientWidth !== wide) { wide = page.clientWidth; draw(); } }).observe(page);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
    // Paper is light whatever the screen is.
    let before;
    const paper = matchMedia("print");
    const print = (on) => {
      if (on) { before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; for (const node of document.querySelectorAll("details")) node.open = true; }
      else if (before) document.documentElement.dataset.theme = before; else delete document.documentElement.dataset.theme;
      restyle();
    };
    paper.addEventListener("change", () => print(paper.matches));
    draw();
    performance.mark("drawn");
    document.documentElement.dataset.ready = "1";
  } catch (error) {
    page.replaceChildren(el("p", { class: "problem", role: "alert" }, `This page cannot be shown: ${error.message}`));
    document.documentElement.dataset.ready = "error";
  }
}

main();
