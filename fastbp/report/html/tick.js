// What is live at the tick that is pointed to, in words beside the charts.

function tellTick() {
  const tick = view.tick, live = liveAt(tick), panel = document.getElementById("hover");
  panel.dataset.tick = tick;
  panel.dataset.bytes = TOTAL[tick];
  panel.replaceChildren(
    element("h3", {}, `tick ${whole(tick)} of ${whole(TICKS)}`),
    element("p", {}, `${STAGES[STAGE[tick]]}: `, element("b", {id: "action"}, TIMELINE.actions[tick]), view.held ? " (held)" : ""),
    card(totals(tick, live)),
    view.buffer === null ? "" : card(buffer(view.buffer, tick)),
    element("div", {class: "scroll"}, tensors(live, tick)),
  );
  document.getElementById("range").textContent =
    `ticks ${whole(view.from)} to ${whole(view.to - 1)} of ${whole(TICKS)}`;
}

function card(inside) {
  return element("div", {class: "card"}, ...inside);
}

function pairs(rows) {
  const line = ([name, ...value]) => element("tr", {}, element("td", {class: "words"}, name), element("td", {}, ...value));
  return element("table", {}, element("tbody", {}, ...rows.filter(Boolean).map(line)));
}

function totals(tick, live) {
  const rows = CATEGORIES.map((name, i) => LIVE[i][tick] && [element("span", {}, swatch(name), name), whole(LIVE[i][tick])]);
  const count = `${live.length} ${live.length === 1 ? "tensor" : "tensors"}`;
  return [element("b", {id: "total"}, `${whole(TOTAL[tick])} bytes`), ` (${bytes(TOTAL[tick])}) in ${count}`, pairs(rows)];
}

/** The life of the tensor that a buffer holds: when it is written, read and freed, and what it costs to have again. */
function buffer(index, tick) {
  const held = heldAt(index, tick), last = HELD.last_read[held], next = held + 1 < FIRST_HELD[index + 1];
  const at = (when) => `tick ${whole(when)}: ${TIMELINE.actions[when] ?? "the end"}`;
  const dies = HELD.dies[held];
  return [
    element("b", {id: "pointed"}, HELD.tensor[held]),
    pairs([
      [element("span", {}, swatch(categoryOf(index)), categoryOf(index)), `${whole(BUFFERS.bytes[index])} bytes`],
      ["address", whole(BUFFERS.offset[index])],
      ["written first", at(HELD.born[held])],
      ["read last", last === null ? "never" : at(last)],
      next ? ["taken over", `by ${HELD.tensor[held + 1]}, ${at(HELD.born[held + 1])}`] : ["freed", at(dies)],
      ["to have it again", HELD.flops[held] ? large(HELD.flops[held], "FLOP") : "not by a forward op"],
    ]),
  ];
}

function tensors(live, tick) {
  const row = (index) => element("tr", {class: index === view.buffer ? "pointed" : null},
    element("td", {class: "words"}, swatch(categoryOf(index)), HELD.tensor[heldAt(index, tick)]),
    element("td", {title: categoryOf(index)}, whole(BUFFERS.bytes[index])));
  return element("table", {id: "live"}, element("tbody", {}, ...live.map(row)));
}
