// Queries in CQL that run: what each has written, what stops it, and the newest rows of one; and how far each sink is.
import { actForm } from "./acts.js";
import { Table, h, number, quality, say, whole } from "./dom.js";

export const TITLE = "Queries";

export function open(main, me) {
  const name = new URLSearchParams(location.search).get("name");
  const table = new Table("Queries", [
    ["query", "", (item) => h("a", { href: `/queries?name=${encodeURIComponent(item.query)}` }, item.query)],
    ["rows", "n", (item) => whole(item.rows)],
    ["late", "n", (item) => whole(item.late)],
    ["state", "n", (item) => `${whole(item.state_bytes / 1000)} kB`],
    ["fault", "wrap", (item) => (item.fault ? h("span", { class: "bad" }, item.fault) : "")],
  ], "none; `tsunagi query add` adds one");
  const sinks = new Table("Sinks", [
    ["sink", "", (item) => item.sink],
    ["takes", "", (item) => item.query],
    ["writes to", "", (item) => item.kind],
    ["rows", "n", (item) => whole(item.rows)],
    ["records behind", "n", (item) => whole(item.lag)],
    ["refused", "n", (item) => whole(item.refused)],
    ["instances", "n", (item) => item.nodes.length || h("span", { class: "bad" }, "none runs")],
    ["fault", "wrap", (item) => (item.fault ? h("span", { class: "bad" }, item.fault) : "")],
  ], "none; [[sinks]] of the configuration names them");
  main.append(table.element);
  if (me.role === "operator") {
    main.append(actForm("Add a query, or replace one", "query-add", [["text", "Statement in CQL", "area"]]),
      actForm("Drop a query", "query-drop", [["name", "Query", "text"]]));
  }
  const feeds = { queries: (news) => table.show(news, (item) => item.query) };
  if (name === null) {
    main.append(h("h2", {}, "Sinks"), sinks.element);
    feeds.sinks = (news) => sinks.show(news, (item) => item.sink);
    return { feeds };
  }
  const told = h("p", { class: "note", role: "status" });
  const place = h("div");
  main.append(h("h2", {}, `Newest rows of ${name}`), told, place);
  let columns = "", rows = null;
  feeds.rows = (news) => {
    say(told, news.fault || (news.rows.length ? "" : "no row since this page was opened"));
    if (!news.rows.length) return;
    const names = Object.keys(news.rows[0]).filter((item) => item !== "time" && item !== "quality");
    if (columns !== names.join()) {
      columns = names.join();
      rows = new Table(`Newest rows of ${name}`, [["time", "", (item) => item.time],
        ...names.map((column) => [column, "", (item) => cell(item[column])]), ["quality", "", (item) => quality(item.quality)]]);
      place.replaceChildren(rows.element);
    }
    rows.show(news.rows, (item) => JSON.stringify(item));
  };
  return { feeds, query: name };
}

function cell(value) {
  if (typeof value === "number") return number(value, 8);
  return value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
}
