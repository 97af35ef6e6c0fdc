// Numbers as people read them, and elements.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytes(size) {
  let power = 0;
  while (power < UNITS.length - 1 && size >= (power ? 1023.95 : 1024) * 1024 ** power) power++;
  return power ? `${(size / 1024 ** power).toFixed(1)} ${UNITS[power]}` : `${size} B`;
}

function whole(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

function digits(value) {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

function seconds(time) {
  if (time === null || time === undefined) return "–";
  if (time === 0) return "0";
  return time >= 0.9995 ? `${digits(time)} s` : time >= 0.9995e-3 ? `${digits(time * 1e3)} ms` : `${digits(time * 1e6)} µs`;
}

/** A count with a unit behind it: "1.2 GFLOP", "340 MB". */
function large(value, unit) {
  const [factor, prefix] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([least]) => value >= least) ?? [1, ""];
  return value ? `${factor > 1 ? digits(value / factor) : whole(value)} ${prefix}${unit}` : "0";
}

function percent(share) {
  return share === null || share === undefined ? "–" : `${(share * 100).toFixed(1)} %`;
}

/** An element with properties (class, data-…, onclick) and what stands in it. */
function element(tag, properties, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (typeof value === "function") made[name] = value;
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...inside.filter((each) => each !== null));
  return made;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name.replaceAll(" ", "-")}`).trim();
}

function swatch(name) {
  return element("i", {class: "swatch", style: `background: var(--${name.replaceAll(" ", "-")})`});
}
