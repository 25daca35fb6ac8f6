// Queries in CQL that run: what each has written, what stops it, and the newest rows of one.
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
  main.append(table.element);
  if (me.role === "operator") {
    main.append(actForm("Add a query, or replace one", "query-add", [["text", "Statement in CQL", "area"]]),
      actForm("Drop a query", "query-drop", [["name", "Query", "text"]]));
  }
  const feeds = { queries: (news) => table.show(news, (item) => item.query) };
  if (name === null) return { feeds };
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
