// Edges and their sensors, how much of the results is exact, and a map where the sensors table has lat and lon.
import { actForm } from "./acts.js";
import { killButton } from "./kill.js";
import { QUALITIES, Cards, Table, ago, bar, h, number, say, whole } from "./dom.js";

export const TITLE = "Fleet";
const SPACE = "http://www.w3.org/2000/svg";
const SIZE = [800, 400];

const RECOVERY = [["eps", "eps", "number", "tolerated error, standard deviations"], ["delta", "delta", "number", "probability of the bound"],
  ["helpers", "Helpers", "number", "most a slot"], ["unbounded", "Values wider than eps", ["tag", "withhold"]]];

export function open(main, me) {
  const cards = new Cards(["edges", "edges out", "sensors", "results a second", "latency", ...QUALITIES]);
  const find = h("input", { type: "search", name: "edge" });
  const table = new Table("Edges", [
    ["edge", "", (item) => h("a", { href: `/sensors?edge=${encodeURIComponent(item.edge)}` }, item.edge)],
    ["state", "", (item) => (item.alive ? h("span", { class: "exact" }, "alive") : h("span", { class: "missing" }, item.heard_us ? "out" : "not heard"))],
    ["heard", "n", (item) => (item.alive ? "" : ago(item.heard_us))],
    ["sensors", "n", (item) => whole(item.sensors)],
    ["results", "", (item) => bar(item, item.sensors)],
    ...QUALITIES.map((name) => [name, "n", (item) => (item[name] ? h("span", { class: name }, whole(item[name])) : "0")]),
    ["not exact for", "n", (item) => ago(item.since_us)],
    ...(me.kills ? [["", "", (item) => killButton(item.edge)]] : []),
  ]);
  const map = document.createElementNS(SPACE, "svg");
  const mapped = h("section", { hidden: true, "aria-label": "Map" }, h("h2", {}, "Map"));
  map.setAttribute("class", "map");
  map.setAttribute("viewBox", `0 0 ${SIZE.join(" ")}`);
  mapped.append(map);
  const job = h("p", { class: "note" });
  main.append(cards.element, job, mapped, h("h2", {}, "Edges"),
    h("form", { class: "find", onsubmit: (event) => event.preventDefault() }, h("label", {}, "Find an edge", find)), table.element);
  if (me.role === "operator") main.append(actForm("Change what the recovery aims at", "recovery", RECOVERY));

  let newest = null;
  const draw = () => {
    if (!newest) return;
    const total = (name) => newest.edges.reduce((sum, item) => sum + item[name], 0);
    cards.show({
      edges: whole(newest.edges.length),
      "edges out": whole(newest.edges.filter((item) => !item.alive).length),
      sensors: whole(total("sensors")),
      "results a second": number(newest.rate),
      latency: newest.spark.latency_s === undefined ? "" : `${newest.spark.latency_s.toFixed(2)} s`,
      ...Object.fromEntries(QUALITIES.map((name) => [name, whole(total(name))])),
    });
    const learner = newest.learner;
    say(job, learner.needed ? `The learner has ${learner.steps} of ${learner.needed} steps for the next model${learner.fitting ? ", and fits one" : ""}.` : "");
    const wanted = find.value.toLowerCase();
    const shown = newest.edges.filter((item) => item.edge.toLowerCase().includes(wanted));
    shown.sort((one, other) => one.alive - other.alive || other.missing - one.missing || one.edge.localeCompare(other.edge));
    table.show(shown, (item) => item.edge);
  };
  find.addEventListener("input", draw);
  return { feeds: { fleet: (news) => { newest = news; draw(); }, places: (news) => drawMap(map, mapped, news) } };
}

function drawMap(map, section, places) {
  section.hidden = places.length === 0;
  if (section.hidden) return;
  const lats = places.map((item) => item[1]), lons = places.map((item) => item[2]);
  const range = (values) => [Math.min(...values), Math.max(...values)];
  const [south, north] = range(lats), [west, east] = range(lons);
  const narrow = Math.cos((((south + north) / 2) * Math.PI) / 180) || 1;
  const scale = Math.min((SIZE[0] - 40) / ((east - west) * narrow || 1), (SIZE[1] - 40) / (north - south || 1));
  while (map.children.length > places.length) map.lastChild.remove();
  places.forEach(([name, lat, lon, word], place) => {
    let dot = map.children[place];
    if (!dot) {
      dot = document.createElementNS(SPACE, "circle");
      dot.append(document.createElementNS(SPACE, "title"));
      dot.setAttribute("r", "5");
      map.append(dot);
    }
    dot.setAttribute("cx", (SIZE[0] / 2 + (lon - (east + west) / 2) * narrow * scale).toFixed(1));
    dot.setAttribute("cy", (SIZE[1] / 2 - (lat - (north + south) / 2) * scale).toFixed(1));
    dot.setAttribute("class", word);
    say(dot.firstChild, `${name}: ${word}`);
  });
}
