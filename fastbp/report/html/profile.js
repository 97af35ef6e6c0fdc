// Puts the page together and listens.

const CHARTS = [["#stack", drawStack, markStack], ["#arena", drawArena, markArena]];
const CLICK = 4; // pixels that the mouse may move in a click
let due = null;

function drawAll() {
  for (const [, draw] of CHARTS) draw();
  markAll();
}

function markAll() {
  for (const [name, , mark] of CHARTS) {
    const drawing = prepared(document.querySelector(`${name} .over`));
    mark(drawing);
  }
  tellTick();
}

/** Draws before the next frame, once however often it is asked for; only the marks where `all` is not wanted. */
function redraw(all) {
  if (due === null) requestAnimationFrame(() => {
    const draw = due;
    due = null;
    draw();
  });
  if (all || due === null) due = all ? drawAll : due ?? markAll;
}

function headline() {
  const {policy, peak, update, budget_bytes: limit, categories, extra_flops_share: extra} = PROFILE;
  const time = update?.seconds, rest = Object.entries(categories ?? {});
  const entry = (name, value, ...small) =>
    element("div", {}, element("dt", {}, name),
      element("dd", {}, value, ...small.filter((each) => each !== null).map((each) => element("small", {}, each))));
  const spread = time ? `${seconds(time.min)} to ${seconds(time.max)}` : "";
  const again = extra === undefined ? null : `${percent(extra)} more FLOPs than without recomputation`;
  document.getElementById("headline").append(
    entry("policy", policy, limit === null ? "no budget" : `budget ${whole(limit)} bytes (${bytes(limit)})`, again),
    entry("peak of activations", `${whole(peak.bytes)} bytes`,
      `${bytes(peak.bytes)}; at most ${whole(TOTAL[peak.tick])} are live, at tick ${whole(peak.tick)}`),
    time ? entry("an update", seconds(time.median), update.share_of_peak === null || update.share_of_peak === undefined
      ? spread : `${spread}; ${percent(update.share_of_peak)} of the FMA peak`) : "",
    rest.length ? entry("all memory at the peak", bytes(rest.reduce((sum, [, size]) => sum + size, 0)),
      element("span", {class: "legend"}, ...rest.filter(([, size]) => size).map(([name, size]) =>
        element("span", {}, swatch(name), `${name} ${bytes(size)}`)))) : "",
  );
}

function legend() {
  const entry = (name, note) => element("span", {}, swatch(name), note ? `${name} (${note})` : name);
  const used = CATEGORIES.filter((_, i) => LIVE[i].some(Boolean));
  const behind = STAGES.filter((_, i) => STAGE.includes(i));
  document.getElementById("legend").append(
    ...used.map((name) => entry(name)), element("span", {}, "stages:"), ...behind.map((name) => entry(name)));
}

/** Points to a tick, and to a buffer of it or none. */
function point(tick, buffer) {
  view.tick = Math.min(Math.max(tick, 0), TICKS - 1);
  view.buffer = buffer !== null && BUFFERS.born[buffer] <= view.tick && BUFFERS.dies[buffer] > view.tick ? buffer : null;
}

function listenToMouse(name) {
  const over = document.querySelector(`${name} .over`);
  let pressed = null, last = null;
  const place = (event) => {
    const box = over.getBoundingClientRect(), area = inner(over), y = event.clientY - box.top;
    const x = event.clientX - box.left, tick = tickAt(x, area);
    return {x, tick, buffer: name === "#arena" ? bufferAt(tick, y, area) : null};
  };
  over.addEventListener("pointermove", (event) => {
    const where = `${event.clientX} ${event.clientY}`, still = where === last;
    last = where;
    if (still || (view.held && pressed === null)) return; // a page that grows under the mouse has not moved it
    const {x, tick, buffer} = place(event);
    view.dragged = pressed !== null && Math.abs(x - pressed.x) > CLICK ? pressed.tick : null;
    point(tick, buffer);
    redraw(false);
  });
  over.addEventListener("pointerdown", (event) => {
    pressed = place(event);
    over.setPointerCapture(event.pointerId);
  });
  over.addEventListener("pointerup", (event) => {
    const {x, tick, buffer} = place(event), start = pressed;
    pressed = view.dragged = null;
    if (start === null) return;
    if (Math.abs(x - start.x) > CLICK) {
      show(Math.min(tick, start.tick), Math.max(tick, start.tick) + 1);
    } else {
      view.held = !view.held;
      point(tick, buffer);
    }
    redraw(true);
  });
  over.addEventListener("pointercancel", () => {
    pressed = view.dragged = null;
    redraw(false);
  });
  over.addEventListener("dblclick", () => press("0", false));
}

/** What a key does; returns whether it does anything. */
function press(key, shift) {
  const by = shift ? 10 : 1, moves = {ArrowLeft: -by, ArrowRight: by, PageUp: -100, PageDown: 100, Home: -TICKS, End: TICKS};
  if (key in moves) point(view.tick + moves[key], view.buffer);
  else if (key === "ArrowUp" || key === "ArrowDown") chooseNext(key === "ArrowUp" ? -1 : 1);
  else if (key === "p") point(TIMELINE.peak_tick, null);
  else if (key === "+" || key === "-") zoom(key === "+" ? 2 : 0.5);
  else if (key === "0" || key === "Escape") show(0, TICKS);
  else return false;
  if (key in moves || key === "p") follow();
  if (key === "Escape") view.held = false;
  redraw(true);
  return true;
}

/** The next tensor of the tick, in the order of the list beside the charts. */
function chooseNext(step) {
  const live = liveAt(view.tick), here = live.indexOf(view.buffer);
  if (live.length) view.buffer = live[here < 0 ? (step > 0 ? 0 : live.length - 1) : (here + step + live.length) % live.length];
}

function listenToKeys() {
  const charts = document.getElementById("charts");
  charts.addEventListener("keydown", (event) => {
    const typed = event.target.tagName === "BUTTON" && (event.key === "Enter" || event.key === " ");
    if (!typed && !event.ctrlKey && !event.metaKey && !event.altKey && press(event.key, event.shiftKey)) event.preventDefault();
  });
  for (const button of charts.querySelectorAll("button")) button.onclick = () => press(button.dataset.key, false);
}

function tensorTable() {
  const rows = tensorRows();
  const name = (value, row) => {
    const onclick = () => {
      view.chosen = view.chosen === row ? null : row;
      if (!row.buffers.some((index) => BUFFERS.born[index] < view.to && BUFFERS.dies[index] > view.from)) show(0, TICKS);
      drawAll();
      filter();
      document.querySelector('.name[aria-pressed="true"]')?.focus({preventScroll: true});
      if (view.chosen) document.getElementById("charts").scrollIntoView({block: "nearest"});
    };
    return element("button", {type: "button", class: "name", "aria-pressed": String(view.chosen === row), onclick}, value);
  };
  name.words = true;
  const kind = (value) => element("span", {}, swatch(value), value);
  kind.words = true;
  const columns = columnsOf("tensors", ["tensor", "tensor", name], ["category", "category", kind],
    ["bytes", "bytes", whole], ["lives", "lives", whole], ["first written", "born", whole],
    ["last read", "last", (value) => value === null ? "never" : whole(value)], ["freed", "dies", whole],
    ["ticks live", "ticks", whole], ["to have it again", "flops", (value) => value ? large(value, "FLOP") : "–"]);
  const refill = table(document.querySelector("#tensors .table"), columns, rows, 2);
  const input = document.getElementById("filter");
  const filter = () => refill(rows.filter((row) => row.tensor.toLowerCase().includes(input.value.trim().toLowerCase())));
  input.addEventListener("input", filter);
}

function opTable() {
  const rate = (value) => value ? digits(value) : "–";
  const name = (value) => element("span", {}, ...value.split(/(?<=_)/).flatMap((part) => [part, element("wbr")]));
  name.words = true;
  const columns = columnsOf("ops", ["op", "op", name], ["direction", "direction"], ["calls", "calls", whole],
    ["time", "seconds", seconds], ["share of time", "share", percent],
    ["in products", "product_flops", (value) => large(value, "FLOP")], ["moved", "moved_bytes", (value) => large(value, "B")],
    ["GFLOP/s", "gflops", rate], ["GB/s", "gb_per_s", rate], ["of its limit", "share_of_limit", percent],
    ["limit", "limit"]);
  table(document.querySelector("#ops .table"), columns, PROFILE.ops ?? [], 3);
}

function blockTable() {
  const size = (value) => `${whole(value)} (${bytes(value)})`;
  const columns = columnsOf("blocks", ["block", (row) => String(row.block)], ["forward", "forward_seconds", seconds],
    ["recomputed", "recompute_seconds", seconds], ["backward", "backward_seconds", seconds],
    ["bytes kept", "kept_bytes", size], ["bytes recomputed", "recomputed_bytes", size]);
  table(document.querySelector("#blocks .table"), columns, PROFILE.blocks ?? [], null);
}

function start() {
  headline();
  legend();
  for (const [name] of CHARTS) listenToMouse(name);
  listenToKeys();
  tensorTable();
  opTable();
  blockTable();
  drawAll();
  new ResizeObserver(() => redraw(true)).observe(document.getElementById("charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(true));
}

start();
