// Builds and updates the page. All text goes through textContent: what a device or a user sends is never markup.

export const QUALITIES = ["exact", "bounded", "unbounded", "unmodelled", "missing"];

/** Return a new element: `h("td", {class: "n"}, text, child)`. */
export function h(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) found.setAttribute(name, value === true ? "" : value);
  }
  found.append(...children.filter((child) => child !== null && child !== undefined));
  return found;
}

/** Set an element's text, if it is another one: an unchanged text costs no layout. */
export function say(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** A table whose rows are kept by key. `columns`: [heading, class, (item) => text or element]. */
export class Table {
  constructor(caption, columns, empty = "none") {
    this.columns = columns;
    this.body = h("tbody");
    this.rows = new Map();
    this.empty = h("tr", {}, h("td", { colspan: columns.length, class: "soft" }, empty));
    const head = columns.map(([name, kind]) => h("th", { scope: "col", class: kind || false }, name));
    const table = h("table", { "aria-label": caption }, h("thead", {}, h("tr", {}, ...head)), this.body);
    this.element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
  }

  /** Show these items; `fresh` marks rows that were not there before. */
  show(items, key, fresh = false) {
    const left = new Set(this.rows.keys());
    const first = this.rows.size === 0;
    let place = this.body.firstChild;
    for (const item of items) {
      const name = key(item);
      let row = this.rows.get(name);
      left.delete(name);
      if (!row) {
        row = h("tr", { class: fresh && !first ? "new" : false });
        for (const [, kind] of this.columns) row.append(h("td", { class: kind || false }));
        this.rows.set(name, row);
      }
      this.columns.forEach(([, , make], at) => put(row.children[at], make(item)));
      if (row !== place) this.body.insertBefore(row, place);
      else place = place.nextSibling;
    }
    for (const name of left) {
      this.rows.get(name).remove();
      this.rows.delete(name);
    }
    if (this.rows.size === 0) this.body.append(this.empty);
    else this.empty.remove();
  }
}

function put(cell, content) {
  if (content instanceof Node) {
    const before = cell.firstChild;
    if (before === content) return;
    if (!before || before.nodeType === Node.TEXT_NODE || before.outerHTML !== content.outerHTML) cell.replaceChildren(content);
  } else say(cell, content ?? "");
}

/** A list of figures, which `show` updates by name. */
export class Cards {
  constructor(names) {
    this.values = Object.fromEntries(names.map((name) => [name, h("dd")]));
    const cards = names.map((name) => h("dl", { class: "card" }, h("dt", {}, name), this.values[name]));
    this.element = h("div", { class: "cards" }, ...cards);
  }

  show(figures) {
    for (const [name, value] of Object.entries(figures)) say(this.values[name], value);
  }
}

/** A bar of the shares of each quality. */
export function bar(counts, total) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const said = QUALITIES.filter((name) => counts[name]).map((name) => `${counts[name]} ${name}`).join(", ") || "none";
  svg.setAttribute("viewBox", "0 0 100 1");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", said);
  let at = 0;
  for (const name of QUALITIES) {
    const width = total ? (100 * (counts[name] || 0)) / total : 0;
    if (!width) continue;
    const part = document.createElementNS(space, "rect");
    part.setAttribute("class", name);
    part.setAttribute("x", at.toFixed(2));
    part.setAttribute("width", width.toFixed(2));
    part.setAttribute("height", "1");
    part.setAttribute("fill", "currentColor");
    svg.append(part);
    at += width;
  }
  return h("div", { class: "bar" }, svg);
}

export const number = (value, digits = 5) =>
  value === null || value === undefined ? "" : Number(value).toLocaleString("en", { maximumSignificantDigits: digits });
export const whole = (value) => (value === null || value === undefined ? "" : Math.round(value).toLocaleString("en"));
export const clock = (us) => (us ? new Date(us / 1000).toLocaleTimeString("en-GB") : "");
export const seconds = (value) => (value === null || value === undefined ? "" : `${value.toFixed(value < 10 ? 2 : 0)} s`);

/** Say how long ago a moment was, in microseconds since 1970. */
export function ago(us) {
  if (!us) return "";
  const passed = Math.max(0, Date.now() / 1000 - us / 1e6);
  if (passed < 120) return `${Math.round(passed)} s`;
  return passed < 7200 ? `${Math.round(passed / 60)} min` : `${Math.round(passed / 3600)} h`;
}

export const quality = (word) => h("span", { class: word }, word);
export const sensorLink = (name) => h("a", { href: `/sensors?name=${encodeURIComponent(name)}` }, name);
