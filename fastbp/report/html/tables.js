// Tables that sort by a click on a heading, or by Enter on it.

const ROWS_AT_FIRST = 25;

/**
 * A table of `rows` within an element, sorted by the number of a column, or null for the order that they come in. A
 * column has a heading, the value that it sorts by, how that is written, and whether it is of words; the first click
 * sorts words upwards and numbers downwards. Returns a function that shows other rows.
 */
function table(where, columns, rows, sortedBy) {
  const state = {column: sortedBy, down: true, rows, all: false};
  const refill = () => where.replaceChildren(...filled(state, columns, refill));
  refill();
  return (others) => {
    state.rows = others;
    refill();
  };
}

function filled(state, columns, refill) {
  const shown = state.column === null ? state.rows : sorted(state.rows, columns[state.column].value, state.down);
  const few = state.all ? shown : shown.slice(0, ROWS_AT_FIRST);
  const body = few.map((row) => element("tr", {}, ...columns.map((column) => cell(column, row))));
  const made = element("table", {}, head(state, columns, refill), element("tbody", {}, ...body));
  if (few.length === shown.length) return [made];
  const more = () => {
    state.all = true;
    refill();
  };
  const text = `${few.length} of ${whole(shown.length)} are shown: show all`;
  return [made, element("button", {type: "button", class: "more", onclick: more}, text)];
}

function head(state, columns, refill) {
  const heading = (column, i) => {
    const onclick = () => {
      state.down = state.column === i ? !state.down : !column.words;
      state.column = i;
      refill();
      document.getElementById(id)?.focus();
    };
    const id = `${column.of}-${i}`, direction = state.down ? "descending" : "ascending";
    return element("th", {class: column.words ? "words" : null, scope: "col", "aria-sort": state.column === i ? direction : null},
      element("button", {type: "button", id, onclick}, column.title));
  };
  return element("thead", {}, element("tr", {}, ...columns.map(heading)));
}

function cell(column, row) {
  const written = column.written ? column.written(column.value(row), row) : column.value(row);
  return element("td", {class: column.words ? "words" : null}, written);
}

/** Rows by a value, upwards or downwards; equal ones and those without a value keep their order. */
function sorted(rows, value, down) {
  const compare = (one, other) => {
    if (one === other) return 0;
    if (one === null || one === undefined) return 1;
    if (other === null || other === undefined) return -1;
    const rises = typeof one === "string" ? one.localeCompare(other, "en", {numeric: true}) : one - other;
    return down ? -rises : rises;
  };
  return rows.map((row, i) => [row, i]).sort(([one, i], [other, j]) => compare(value(one), value(other)) || i - j)
    .map(([row]) => row);
}

/** Columns of a table that is called so: (title, key or function, how it is written); words are written as they are. */
function columnsOf(name, ...columns) {
  return columns.map(([title, value, written]) => ({
    of: name, title, written, words: !written || written.words,
    value: typeof value === "function" ? value : (row) => row[value],
  }));
}

/** Tensors with all their lives together: a row a name and category, slices of one among each other. */
function tensorRows() {
  const rows = new Map();
  HELD.tensor.forEach((full, i) => {
    const tensor = withoutRows(full), index = HELD.buffer[i], category = categoryOf(index), key = `${category} ${tensor}`;
    const row = rows.get(key) ??
      {tensor, category, bytes: 0, lives: 0, born: Infinity, last: null, dies: 0, ticks: 0, flops: 0, buffers: []};
    rows.set(key, row);
    row.bytes = Math.max(row.bytes, BUFFERS.bytes[index]);
    row.born = Math.min(row.born, HELD.born[i]);
    row.dies = Math.max(row.dies, HELD.dies[i]);
    if (HELD.last_read[i] !== null) row.last = Math.max(row.last ?? 0, HELD.last_read[i]);
    row.flops = Math.max(row.flops, HELD.flops[i]);
    row.ticks += HELD.dies[i] - HELD.born[i];
    row.lives++;
    row.buffers.push(index);
  });
  return [...rows.values()];
}
