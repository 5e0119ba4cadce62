// Building blocks: elements whose text is always text, and numbers that say "–" when they are not known.

function el(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

const NONE = "–";
const known = (value) => value !== null && value !== undefined;
const fixed = (value, digits, unit = "") => (known(value) ? value.toFixed(digits) + unit : NONE);
const share = (value, digits = 0) => (known(value) ? (value * 100).toFixed(digits) + " %" : NONE);
const clip = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);

function duration(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return (ns / 1e9).toFixed(size >= 1e10 ? 1 : 2) + " s";
  if (size >= 1e6) return (ns / 1e6).toFixed(size >= 1e8 ? 0 : size >= 1e7 ? 1 : 2) + " ms";
  return (ns / 1e3).toFixed(size >= 1e5 ? 0 : 1) + " µs";
}

// Left-to-right marks would let a name in another script reorder what stands beside it.
const isolated = (text) => el("bdi", {}, text);

function table(columns, rows, label) {
  const head = el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.class }, column.name)));
  const body = rows.map((row) =>
    el("tr", { class: row.class }, row.cells.map((cell, at) => el(at ? "td" : "th", { class: columns[at].class, scope: at ? null : "row" }, cell))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

function section(id, title, hint, ...content) {
  return el("section", { id, "aria-labelledby": id + "-title" },
    el("div", { class: "section-head" }, el("h2", { id: id + "-title" }, title), hint ? el("p", { class: "hint" }, hint) : null), content);
}

function copyButton(text, what) {
  if (!navigator.clipboard) return null;
  const button = el("button", { type: "button", class: "quiet", "aria-label": "Copy " + what }, "copy");
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "not allowed"; }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  return button;
}
