// Which ticks are shown, which one is pointed to, and where they are on a canvas.

const MARGIN = {left: 74, right: 12, top: 6, bottom: 24};
const NEAREST = 8; // ticks that are shown at least
const view = {from: 0, to: Math.max(TICKS, 1), tick: TIMELINE.peak_tick, buffer: null, held: false, chosen: null, dragged: null};

/** A canvas at the screen's resolution; drawing is in CSS pixels. Returns its context and its inner rectangle. */
function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1, box = canvas.parentElement.getBoundingClientRect();
  canvas.width = Math.round(box.width * ratio);
  canvas.height = Math.round(box.height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "12px system-ui, 'Liberation Sans', sans-serif";
  return {context, ratio, ...inner(canvas)};
}

function inner(canvas) {
  const box = canvas.parentElement.getBoundingClientRect();
  return {
    left: MARGIN.left, top: MARGIN.top,
    width: box.width - MARGIN.left - MARGIN.right, height: box.height - MARGIN.top - MARGIN.bottom,
  };
}

function xOf(tick, area) {
  return area.left + (tick - view.from) / (view.to - view.from) * area.width;
}

function tickAt(x, area) {
  const tick = Math.floor(view.from + (x - area.left) / area.width * (view.to - view.from));
  return Math.min(Math.max(tick, view.from), view.to - 1);
}

/** Shows ticks [from, to), at least a few and none that there is not. */
function show(from, to) {
  const count = Math.min(Math.max(Math.round(to - from), Math.min(NEAREST, TICKS)), TICKS);
  view.from = Math.min(Math.max(Math.round(from), 0), TICKS - count);
  view.to = view.from + count;
}

/** Closer by a factor, the tick that is pointed to staying where it is. */
function zoom(factor) {
  const count = (view.to - view.from) / factor, share = (view.tick - view.from) / (view.to - view.from);
  show(view.tick - share * count, view.tick - share * count + count);
}

/** Brings the tick that is pointed to into sight. */
function follow() {
  if (view.tick >= view.from && view.tick < view.to) return;
  const count = view.to - view.from;
  show(view.tick - count / 2, view.tick + count / 2);
}

/** Calls back for every pixel column of an area: (x, first tick, tick behind the last, width of the column). */
function eachColumn(area, call) {
  const columns = Math.floor(area.width * area.ratio), step = 1 / area.ratio, each = (view.to - view.from) / columns;
  for (let i = 0; i < columns; i++) {
    const start = Math.floor(view.from + i * each);
    call(area.left + i * step, start, Math.max(start + 1, Math.floor(view.from + (i + 1) * each)), step);
  }
}

/** Round steps from 0 on, about so many up to `most`; powers of two where bytes are counted. */
function steps(most, count, binary) {
  let step = 1;
  if (binary) while (most / step > count) step *= 2;
  else for (let i = 0; most / step > count; i++) step *= i % 3 === 1 ? 2.5 : 2;
  return Array.from({length: Math.floor(most / step) + 1}, (_, i) => i * step);
}

/** The lines and numbers of both axes. */
function axes(drawing, most, title) {
  const {context, left, top, width, height} = drawing;
  context.fillStyle = colour("quiet");
  context.strokeStyle = colour("line");
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const value of steps(most, height / 42, true)) {
    const y = Math.round(top + height - value / most * height) + 0.5;
    line(context, left - 4, y, left, y);
    context.fillText(bytes(value), left - 7, Math.min(Math.max(y, top + 6), top + height - 3));
  }
  line(context, left - 0.5, top, left - 0.5, top + height);
  line(context, left, top + height + 0.5, left + width, top + height + 0.5);
  context.textBaseline = "top";
  const gap = steps(view.to - view.from, width / 90, false)[1] ?? 1;
  for (let tick = Math.ceil(view.from / gap) * gap; tick < view.to; tick += gap) {
    const x = Math.round(xOf(tick + 0.5, drawing)) + 0.5, text = whole(tick), half = context.measureText(text).width / 2;
    line(context, x, top + height, x, top + height + 4);
    if (x + half < left + width - context.measureText(title).width - 12) {
      context.textAlign = "center";
      context.fillText(text, x, top + height + 7);
    }
  }
  context.textAlign = "right";
  context.fillText(title, left + width, top + height + 7);
}

/** The line at the tick that is pointed to, and the ticks that the mouse is dragged across. Returns where it is. */
function crosshair(drawing) {
  const {context, top, height} = drawing, x = xOf(view.tick + 0.5, drawing);
  context.strokeStyle = context.fillStyle = colour("mark");
  if (view.dragged !== null) {
    const [from, to] = [view.dragged, view.tick].sort((one, other) => one - other).map((tick) => xOf(tick, drawing));
    context.globalAlpha = 0.2;
    context.fillRect(from, top, to - from, height);
    context.globalAlpha = 1;
  }
  line(context, x, top, x, top + height);
  return x;
}

function line(context, x, y, toX, toY) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(toX, toY);
  context.stroke();
}
