// The arena: every buffer a rectangle, ticks to the right, addresses upwards.

/** Where a buffer is drawn, along pixels of the screen; at least one wide and high. */
function rectangle(buffer, drawing) {
  const {top, height, ratio} = drawing, low = BUFFERS.offset[buffer];
  const snap = (place) => Math.round(place * ratio) / ratio;
  const yOf = (address) => snap(top + height - address / TIMELINE.arena_bytes * height);
  const x = snap(xOf(BUFFERS.born[buffer], drawing)), y = yOf(low + BUFFERS.bytes[buffer]);
  return {
    x, y,
    width: Math.max(snap(xOf(BUFFERS.dies[buffer], drawing)) - x, 1 / ratio),
    height: Math.max(yOf(low) - y, 1 / ratio),
  };
}

function drawArena() {
  const drawing = prepared(document.querySelector("#arena canvas")), {context} = drawing, gap = 1 / drawing.ratio;
  const colours = CATEGORIES.map(colour);
  context.save();
  clip(drawing);
  for (const buffer of BY_SIZE) {
    if (BUFFERS.dies[buffer] <= view.from || BUFFERS.born[buffer] >= view.to) continue;
    const {x, y, width, height} = rectangle(buffer, drawing);
    context.fillStyle = colours[BUFFERS.category[buffer]];
    context.fillRect(x, y, width - (width > 4 * gap ? gap : 0), height - (height > 4 * gap ? gap : 0));
  }
  context.restore();
  axes(drawing, TIMELINE.arena_bytes, "tick");
}

function clip({context, left, top, width, height}) {
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
}

/** The buffer at a tick and a place of the picture; null for none. */
function bufferAt(tick, y, area) {
  const address = (1 - (y - area.top) / area.height) * TIMELINE.arena_bytes;
  const within = (buffer) =>
    BUFFERS.offset[buffer] <= address && address < BUFFERS.offset[buffer] + BUFFERS.bytes[buffer];
  return liveAt(tick).find(within) ?? null;
}

function markArena(drawing) {
  const {context} = drawing;
  context.save();
  clip(drawing);
  crosshair(drawing);
  for (const buffer of view.chosen?.buffers ?? []) outline(drawing, buffer, 1.2);
  if (view.buffer !== null) outline(drawing, view.buffer, 2.2);
  context.restore();
}

function outline(drawing, buffer, thickness) {
  const {x, y, width, height} = rectangle(buffer, drawing);
  for (const [style, more] of [["paper", 2], ["mark", 0]]) {
    drawing.context.strokeStyle = colour(style);
    drawing.context.lineWidth = thickness + more;
    drawing.context.strokeRect(x, y, width, height);
  }
  drawing.context.lineWidth = 1;
}
