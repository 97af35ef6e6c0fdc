// The timeline of the profile, in arrays that answer quickly: what lives at a tick, and under which name.

const PROFILE = JSON.parse(document.getElementById("profile").textContent);
const TIMELINE = PROFILE.timeline;
const TICKS = TIMELINE.actions.length;
const CATEGORIES = TIMELINE.categories;
const LIVE = CATEGORIES.map((name) => Float64Array.from(TIMELINE.live_bytes[name]));
const TOTAL = Float64Array.from({length: TICKS}, (_, tick) => LIVE.reduce((sum, column) => sum + column[tick], 0));
const BUFFERS = Object.fromEntries(
  Object.entries(TIMELINE.buffers).map(([key, column]) => [key, Float64Array.from(column)]));
const HELD = TIMELINE.held;
const BY_BIRTH = order(BUFFERS.born, 1);
const BY_SIZE = order(BUFFERS.bytes, -1);
const FIRST_HELD = firstHeld();
const STAGES = ["forward", "recompute", "backward"];
const STAGE = stageOfTicks();

function order(column, sign) {
  return Uint32Array.from(column.keys()).sort((one, other) => sign * (column[one] - column[other]) || one - other);
}

/** For every buffer where its tensors begin in HELD, which has them buffer by buffer; one more for the end. */
function firstHeld() {
  const first = new Uint32Array(BUFFERS.born.length + 1).fill(HELD.buffer.length);
  for (let i = HELD.buffer.length - 1; i >= 0; i--) first[HELD.buffer[i]] = i;
  return first;
}

function stageOfTicks() {
  const stages = new Uint8Array(TICKS);
  TIMELINE.stages.forEach(([start, name], run) => {
    stages.fill(STAGES.indexOf(name), start, TIMELINE.stages[run + 1]?.[0] ?? TICKS);
  });
  return stages;
}

/** How many entries of a column, read in an order in which it rises, are at most `value`. */
function countUpTo(value, column, sorted) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[sorted[middle]] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The buffers that are live during a tick, the largest first. */
function liveAt(tick) {
  const live = [];
  const until = countUpTo(tick, BUFFERS.born, BY_BIRTH);
  for (let i = 0; i < until; i++) if (BUFFERS.dies[BY_BIRTH[i]] > tick) live.push(BY_BIRTH[i]);
  return live.sort((one, other) => BUFFERS.bytes[other] - BUFFERS.bytes[one] || one - other);
}

/** Which entry of HELD a buffer has during a tick, or gets from it. */
function heldAt(buffer, tick) {
  let found = FIRST_HELD[buffer];
  while (found + 1 < FIRST_HELD[buffer + 1] && HELD.born[found + 1] <= tick) found++;
  return found;
}

function categoryOf(buffer) {
  return CATEGORIES[BUFFERS.category[buffer]];
}

/** A tensor's name without the rows of a slice. */
function withoutRows(name) {
  return name.replace(/\[\d+:\d+\]$/, "");
}
