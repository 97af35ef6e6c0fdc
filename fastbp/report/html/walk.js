const WALK = JSON.parse(document.getElementById("walk").textContent), STOPS = WALK.stops;
const SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"};
const ROLES = {copy: "residual, copy", sum: "residual, sum"};
const NAMED = 24; // tokens that are named along the edges of dS

const byId = (id) => document.getElementById(id);
const visible = (token) => Array.from(token, (character) => SIGNS[character] ?? character).join("");
const shape = (sizes) => sizes.join("×");

/** A size with two digits. */
function short(size) {
  return size === 0 || (size >= 0.01 && size < 100)
    ? String(Number(size.toPrecision(2))) : size.toExponential(1).replace("+", "");
}

function bytes(count) {
  if (count < 1024) return `${count} B`;
  return count < 1 << 20 ? `${(count / 1024).toFixed(1)} KiB` : `${(count / 1048576).toFixed(1)} MiB`;
}

/** An element with a class and children: texts or elements. */
function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children);
  return element;
}

const card = (title, ...children) => make("div", "card", make("h3", "", title), ...children);

function draw(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

// One logarithmic scale for all bars of the page.
const SIZES = STOPS.flatMap((stop) => stop.rows).filter((size) => size > 0);
const LOW = Math.log10(SIZES.reduce((one, other) => Math.min(one, other), Infinity));
const HIGH = Math.log10(SIZES.reduce((one, other) => Math.max(one, other), 0));

/** Of a bar's whole length, in percent. */
function share(size) {
  return size > 0 ? 4 + 96 * (Math.log10(size) - LOW) / (HIGH - LOW || 1) : 0;
}

const middle = (rows) => [...rows].sort((one, other) => one - other)[rows.length >> 1];

function label(stop) {
  if (stop.op === "linear_cross_entropy") return "loss and head";
  return ROLES[stop.role] ?? (stop.op === "linear" ? `linear ${stop.weights[0].name.split(".").pop()}` : stop.op);
}

function where(stop) {
  const [first, last] = [stop.ticks[0], stop.ticks[stop.ticks.length - 1]];
  const ticks = first === last ? first : `${first} to ${last}`;
  const when = stop.ticks.length ? `at tick ${ticks} of ${WALK.actions}` : "no kernel runs";
  return `stop ${stop.stop} of ${WALK.stops_in_all}${stop.block === null ? "" : `, block ${stop.block}`}, ${when}`;
}

function need(each) {
  const always = each.kind === "parameter" ? "a weight" : "given";
  const how = each.how === "there" ? always : `${bytes(each.bytes)}, ${each.how}`;
  const item = make("li", "need", make("code", "", `${each.tensor} ${shape(each.shape)}`), make("span", each.how, how));
  const runs = each.runs.map((run) => `at tick ${run.tick} by ${run.action}`);
  if (runs.length) item.append(make("span", "when", runs.join(", ")));
  return item;
}

function needs(stop) {
  return card("Needs from forward", make("ul", "",
    ...(stop.needs.length ? stop.needs.map(need) : [make("li", "soft", "nothing")])));
}

function weight(each) {
  const name = make("code", "", `d:${each.name} ${shape(each.shape)}`);
  const item = make("li", "weight", name, make("span", "", `norm ${short(each.norm)}`));
  if (!each.finished) item.append(make("span", "when", "so far: the lookup adds to it at the end"));
  return item;
}

function weights(stop) {
  const finished = stop.weights.every((each) => each.finished);
  return card(finished ? "Weights finished here" : "Weights", make("ul", "", ...stop.weights.map(weight)));
}

function flow(gradient) {
  const [name, part] = gradient.gradient.split("+");
  const size = ` ${shape(gradient.shape)}, norm ${short(gradient.norm)}`;
  return make("span", "", part ? "a part of " : "", make("code", "", name), size);
}

function flows(stop) {
  const lines = make("p", "flow", "in: ", flow(stop.incoming));
  if (stop.added) lines.append(make("br"), "and ", flow(stop.added));
  lines.append(make("br"), "out: ", stop.outgoing ? flow(stop.outgoing) : "to its weights alone");
  return lines;
}

function row(size, i) {
  const bar = make("div", "bar");
  bar.style.width = `${share(size)}%`;
  const token = make("span", "figure", visible(WALK.tokens[i]));
  return make("div", "row", token, make("div", "", bar), make("span", "figure", short(size)));
}

function gradient(stop) {
  const scale = SIZES.length ? `, from ${short(10 ** LOW)} to ${short(10 ** HIGH)}` : "";
  return card("The gradient, a bar a row", flows(stop), make("div", "rows", ...stop.rows.map(row)),
    make("p", "soft", `One logarithmic scale for all stops${scale}.`));
}

/** dS as a lower triangle: a colour a sign, the stronger the further from 0. */
function triangle({ds}, largest) {
  const picture = draw("svg", {viewBox: "0 0 402 402", role: "img", "aria-label": "dS, a row a query, a column a key"});
  const named = ds.length <= NAMED, edge = named ? 22 : 0, side = (400 - edge) / ds.length;
  const tokens = WALK.tokens.map(visible);
  ds.forEach((values, i) => values.forEach((value, j) => {
    const place = {x: edge + j * side, y: edge + i * side, width: side, height: side};
    if (j > i) {
      if (named) picture.append(draw("rect", {...place, class: "future"}));
      return;
    }
    const colour = value < 0 ? "minus" : "plus", opacity = Math.sqrt(Math.abs(value) / largest).toFixed(3);
    const cell = draw("rect", {...place, class: "cell", style: `fill: var(--${colour}); fill-opacity: ${opacity}`});
    cell.append(draw("title", {}, `query ${i} (${tokens[i]}), key ${j} (${tokens[j]}): ${value.toExponential(2)}`));
    picture.append(cell);
  }));
  if (named) tokens.forEach((token, i) => {
    const centre = edge + (i + 0.5) * side;
    picture.append(draw("text", {x: centre, y: 15, "text-anchor": "middle"}, token.slice(0, 3)));
    picture.append(draw("text", {x: edge - 6, y: centre + 4, "text-anchor": "end"}, token.slice(0, 2)));
  });
  return picture;
}

function scores(found) {
  const largest = found.ds.flat().reduce((one, other) => Math.max(one, Math.abs(other)), 0) || 1;
  const keys = ["plus", "minus"].map((name) => {
    const key = make("span", "key");
    key.style.background = `var(--${name})`;
    return key;
  });
  const agreement = `dS·K is the program's dQ, dSᵀ·Q its dK, within ${found.disagreement.toExponential(0)}.`;
  return card(`dS of head ${found.head}`,
    make("p", "soft", "A row a query, a column a key; the future is exactly 0."), triangle(found, largest),
    make("p", "soft", keys[0], " above 0, ", keys[1],
      ` below; the strongest is ${largest.toExponential(1)}. ${agreement}`));
}

function table() {
  const {norm, rows} = WALK.table;
  const line = (text, figure) => make("li", "weight", text, make("span", "", figure));
  return card("The table's gradient, twice", make("ul", "",
    line("from the head, at the first stop", `${rows.head} rows, norm ${short(norm.head)}`),
    line("from the lookup, here", `${rows.lookup} rows, norm ${short(norm.lookup)}`),
    line("together", `norm ${short(norm.whole)}`)));
}

/** Scrolls the column alone: the page stays where it is. */
function reveal(button) {
  const column = document.querySelector("nav"), place = button.offsetTop;
  if (place < column.scrollTop) column.scrollTop = place;
  else column.scrollTop = Math.max(column.scrollTop, place + button.offsetHeight - column.clientHeight);
}

function light(index) {
  byId("model").querySelectorAll("button").forEach((button, i) => {
    button.classList.toggle("here", i === index);
    button.classList.toggle("behind", i < index);
    if (i !== index) button.removeAttribute("aria-current");
    else {
      button.setAttribute("aria-current", "step");
      reveal(button);
    }
  });
}

let here = 0;

function show(index) {
  here = Math.min(STOPS.length - 1, Math.max(0, index));
  const stop = STOPS[here];
  byId("title").textContent = `${label(stop)}: ${stop.node}`;
  byId("where").textContent = where(stop);
  const formula = make("p", "formula", stop.formula.join("\n"));
  byId("left").replaceChildren(card("Its derivative", formula, make("p", "", stop.words)), needs(stop));
  if (stop.weights.length) byId("left").append(weights(stop));
  byId("right").replaceChildren(gradient(stop));
  if (stop.scores) byId("right").append(scores(stop.scores));
  if (stop.op === "embedding") byId("right").append(table());
  light(here);
  byId("slider").value = here + 1;
  byId("back").disabled = here === 0;
  byId("on").disabled = here === STOPS.length - 1;
  try {
    history.replaceState(null, "", `#${here + 1}`);
  } catch {
    // A notebook's frame has no address.
  }
}

function about() {
  const {config} = WALK, text = [...WALK.tokens, WALK.targets[WALK.targets.length - 1]].map(visible).join("");
  byId("about").textContent = `“${text}”: from the loss, ${WALK.loss.toFixed(4)}, back to the embedding, one op at a`
    + " time. Use the buttons or the arrow keys.";
  byId("about-run").textContent = `decoder ${WALK.decoder}: ${config.blocks} blocks, width ${config.width},`
    + ` ${config.heads} heads, ${WALK.dtype}; policy ${WALK.policy}, ${WALK.peak_bytes} bytes of activations at the peak`;
}

function model() {
  let block;
  STOPS.forEach((stop, i) => {
    if (stop.block !== block) {
      block = stop.block;
      const name = block === null ? (i ? "below the blocks" : "above the blocks") : `block ${block}`;
      byId("model").append(make("li", "block", name));
    }
    const inStream = stop.role !== "op" || stop.block === null, bar = make("span", "size");
    bar.style.setProperty("--share", `${share(middle(stop.rows))}%`);
    const button = make("button", inStream ? "" : "inner", make("span", "name", label(stop)), bar);
    button.addEventListener("click", () => show(i));
    byId("model").append(make("li", "", button));
  });
}

function listen() {
  byId("slider").max = STOPS.length;
  byId("slider").addEventListener("input", (event) => show(event.target.value - 1));
  byId("back").addEventListener("click", () => show(here - 1));
  byId("on").addEventListener("click", () => show(here + 1));
  document.addEventListener("keydown", (event) => {
    const steps = {
      ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: STOPS.length - 1,
    };
    if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    show(steps[event.key]);
  });
}

about();
model();
listen();
document.documentElement.style.setProperty("--top", `${document.querySelector("main").offsetTop}px`);
show((Number(location.hash.slice(1)) || 1) - 1);
