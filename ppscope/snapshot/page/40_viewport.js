// The part of the window that is shown, shared by everything that has a time axis.

class Viewport {
  constructor(length, from, to) {
    this.length = length;
    this.listeners = [];
    this.from = 0;
    this.to = length;
    this.home = [from, to];
    this.waiting = true; // nobody has drawn it yet
    this.set(from, to);
    this.waiting = false;
  }

  onChange(listener) { this.listeners.push(listener); }

  get span() { return this.to - this.from; }

  set(from, to) {
    const span = Math.min(Math.max(to - from, 2e3), this.length);
    this.from = Math.min(Math.max(from, 0), this.length - span);
    this.to = this.from + span;
    if (!this.waiting) {
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; for (const listener of this.listeners) listener(this); });
    }
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.set(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(part) { this.set(this.from + this.span * part, this.to + this.span * part); }

  show(at) { if (at < this.from || at > this.to) this.set(at - this.span / 2, at + this.span / 2); }
}

// Wide enough for some turns of the pipeline: the work of one turn gets a few pixels.
function firstView(model, width) {
  const turns = [], starts = [];
  for (const lanes of model.lanes.values()) {
    const lane = lanes[0];
    let began = -1;
    for (let i = 0; i < Math.min(lane.length, 4000); i++) {
      if (lane.isWork(i) && began < 0) began = lane.start[i];
      else if (!lane.isWork(i) && began >= 0) { turns.push(lane.start[i] - began); starts.push(began); began = -1; }
    }
  }
  turns.sort((a, b) => a - b);
  const usual = turns[Math.floor(turns.length * 0.7)] || 2e8;
  const span = Math.min(Math.max(usual * (width / 44), 1e6), model.length);
  // Where there is work: a profile may be idle for most of its time.
  starts.sort((a, b) => a - b);
  const busy = starts.length ? starts[Math.floor(starts.length * 0.6)] : model.length * 0.6;
  const from = Math.min(Math.max(busy - span * 0.1, 0), model.length - span);
  return [from, from + span];
}

function pointerTime(event, element, viewport) {
  const box = element.getBoundingClientRect();
  return viewport.from + ((event.clientX - box.left) / box.width) * viewport.span;
}

// Drag pans, two fingers and ctrl+wheel zoom; a plain wheel scrolls the page as everywhere.
function attachPointer(element, viewport, plotOf) {
  const fingers = new Map();
  element.addEventListener("wheel", (event) => {
    const plot = plotOf(event);
    if (!plot) return;
    if (event.ctrlKey || event.metaKey || event.altKey) {
      event.preventDefault();
      viewport.zoom(Math.exp(event.deltaY * 0.0025), pointerTime(event, plot, viewport));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      viewport.pan((event.deltaX || event.deltaY) / plot.clientWidth);
    }
  }, { passive: false });
  element.addEventListener("pointerdown", (event) => {
    const plot = plotOf(event);
    if (!plot || event.button) return;
    fingers.set(event.pointerId, { x: event.clientX, plot });
    plot.setPointerCapture(event.pointerId);
  });
  element.addEventListener("pointermove", (event) => {
    const finger = fingers.get(event.pointerId);
    if (!finger) return;
    const others = [...fingers.entries()].filter(([id]) => id !== event.pointerId);
    if (others.length) {
      const other = others[0][1].x;
      const before = Math.abs(finger.x - other), now = Math.abs(event.clientX - other);
      if (before > 8 && now > 8) viewport.zoom(before / now, pointerTime(event, finger.plot, viewport));
    } else {
      viewport.pan((finger.x - event.clientX) / finger.plot.clientWidth);
    }
    finger.x = event.clientX;
  });
  for (const name of ["pointerup", "pointercancel"]) element.addEventListener(name, (event) => fingers.delete(event.pointerId));
  element.addEventListener("dblclick", (event) => {
    const plot = plotOf(event);
    if (plot) viewport.zoom(0.4, pointerTime(event, plot, viewport));
  });
}
