// Live bytes over ticks, stacked by category, with the stages behind, the peak and the budget.

const ABOVE = 40; // pixels above the highest bar, for the names of the peak and the budget
const stack = {};

function drawStack() {
  const drawing = prepared(document.querySelector("#stack canvas")), {context, height} = drawing;
  const highest = Math.max(TOTAL[TIMELINE.peak_tick] ?? 1, budgetWithin() ?? 0);
  stack.most = highest * height / (height - ABOVE);
  stages(drawing);
  bars(drawing);
  budget(drawing);
  peak(drawing);
  context.globalAlpha = 1;
  axes(drawing, stack.most, "tick");
}

/** The budget where the picture can have it without squeezing the rest. */
function budgetWithin() {
  const limit = TIMELINE.budget_bytes;
  return limit !== null && limit < 1.6 * TIMELINE.arena_bytes ? limit : null;
}

/** Pixels that so many bytes are high, in whole ones of the screen. */
function heightOf(size, drawing) {
  return Math.round(size / stack.most * drawing.height * drawing.ratio) / drawing.ratio;
}

/** Every column in the colour of the stage that most of its ticks belong to. */
function stages(drawing) {
  const {context, top, height} = drawing, colours = STAGES.map(colour);
  eachColumn(drawing, (x, start, stop, width) => {
    const counts = [0, 0, 0];
    for (let tick = start; tick < stop; tick++) counts[STAGE[tick]]++;
    context.fillStyle = colours[counts.indexOf(Math.max(...counts))];
    context.globalAlpha = 0.25;
    context.fillRect(x, top, width, height);
  });
  context.globalAlpha = 1;
}

/** In every column the tick at which the most is live. */
function bars(drawing) {
  const {context, top, height} = drawing, colours = CATEGORIES.map(colour);
  eachColumn(drawing, (x, start, stop, width) => {
    let highest = start;
    for (let tick = start; tick < stop; tick++) if (TOTAL[tick] > TOTAL[highest]) highest = tick;
    let below = 0;
    LIVE.forEach((column, category) => {
      const low = heightOf(below, drawing), high = heightOf(below + column[highest], drawing);
      context.fillStyle = colours[category];
      if (column[highest]) context.fillRect(x, top + height - high, width, high - low);
      below += column[highest];
    });
  });
}

function budget(drawing) {
  const {context, left, width, top, height} = drawing, limit = TIMELINE.budget_bytes;
  if (limit === null) return;
  const within = budgetWithin() !== null, y = within ? Math.round(top + height - heightOf(limit, drawing)) + 0.5 : top + 22;
  context.strokeStyle = context.fillStyle = colour("mark");
  if (within) {
    context.setLineDash([6, 4]);
    line(context, left, y, left + width, y);
    context.setLineDash([]);
  }
  const right = xOf(TIMELINE.peak_tick, drawing) < left + width / 2;
  context.textAlign = right ? "right" : "left";
  context.textBaseline = "bottom";
  const text = `budget ${bytes(limit)}${within ? "" : ", above what is drawn"}`;
  context.fillText(text, right ? left + width - 4 : left + 6, y - 2);
}

/** A mark at the peak and its name above; nothing where it is out of sight. */
function peak(drawing) {
  const {context, left, width, top, height} = drawing, tick = TIMELINE.peak_tick;
  if (tick < view.from || tick >= view.to) return;
  const x = xOf(tick + 0.5, drawing), y = top + height - heightOf(TOTAL[tick], drawing);
  context.fillStyle = context.strokeStyle = colour("mark");
  context.beginPath();
  context.arc(x, y, 3.5, 0, 7);
  context.fill();
  line(context, x, y, x, top + 16);
  const text = `peak ${bytes(TOTAL[tick])} at tick ${whole(tick)}: ${TIMELINE.actions[tick]}`;
  const long = context.measureText(text).width, beside = x > left + width / 2 ? x - 6 - long : x + 6;
  context.textAlign = "left";
  context.textBaseline = "top";
  context.fillText(text, Math.min(Math.max(beside, left + 4), left + width - 4 - long), top + 2);
}

function markStack(drawing) {
  const {context, top, height} = drawing, x = crosshair(drawing);
  context.fillRect(x - 2.5, top + height - heightOf(TOTAL[view.tick], drawing) - 2.5, 5, 5);
}
