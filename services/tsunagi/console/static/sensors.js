// Search of sensors; of one of them its last hours: value, band, quality, and truths that came late.
import { QUALITIES, Cards, Table, ago, h, number, quality, say, sensorLink, whole } from "./dom.js";
import { colours, library } from "./chart.js";
import { ask, go } from "./main.js";

export const TITLE = "Sensors";
const AGAIN_MS = 2000;

export function open(main) {
  const asked = new URLSearchParams(location.search);
  const name = asked.get("name");
  return name === null ? search(main, asked) : one(main, name, Number(asked.get("hours")) || 1);
}

function search(main, asked) {
  const find = h("input", { type: "search", name: "find", value: asked.get("find") || "" });
  const edge = h("input", { type: "search", name: "edge", value: asked.get("edge") || "" });
  const word = h("select", { name: "quality" }, h("option", { value: "" }, "any"),
    ...QUALITIES.map((item) => h("option", { value: item, selected: item === asked.get("quality") }, item)));
  const told = h("p", { class: "note", role: "status" });
  const table = new Table("Sensors", [
    ["sensor", "", (item) => sensorLink(item.sensor)],
    ["edge", "", (item) => item.edge],
    ["group", "", (item) => item.group],
    ["value", "n", (item) => number(item.value)],
    ["±", "n", (item) => (item.bound ? number(item.bound, 3) : "")],
    ["unit", "", (item) => item.unit],
    ["quality", "", (item) => quality(item.quality)],
    ["for", "n", (item) => ago(item.since_us)],
  ]);
  const look = async () => {
    const wanted = new URLSearchParams({ find: find.value, edge: edge.value, quality: word.value });
    try {
      const found = await ask(`/api/sensors?${wanted}`);
      const more = found.found > found.sensors.length ? `, the first ${found.sensors.length} are shown` : "";
      say(told, `${whole(found.found)} sensors${more}`);
      table.show(found.sensors, (item) => item.sensor);
    } catch (error) { say(told, error.message); }
  };
  const send = (event) => { event.preventDefault(); look(); };
  main.append(h("form", { class: "find", onsubmit: send, oninput: look }, h("label", {}, "Name or group contains", find),
    h("label", {}, "Edge", edge), h("label", {}, "Quality", word)), told, table.element);
  look();
  const timer = setInterval(look, AGAIN_MS);
  return { close: () => clearInterval(timer) };
}

function one(main, name, hours) {
  const cards = new Cards(["value", "bound", "quality", "since", "edge", "group"]);
  const choice = h("select", { name: "hours", onchange: () => go(`/sensors?name=${encodeURIComponent(name)}&hours=${choice.value}`) },
    ...[0.1, 1, 6, 24, 168].map((item) => h("option", { value: item, selected: item === hours }, item < 1 ? "6 minutes" : item === 1 ? "1 hour" : item < 168 ? `${item} hours` : "a week")));
  const chart = h("div", { class: "chart", role: "img", "aria-label": `Values of ${name} with their bounds` });
  const told = h("p", { class: "note", role: "status" }, "reading the log");
  const helped = h("p", { class: "note" });
  main.append(h("h2", {}, name), cards.element, helped, h("form", { class: "find" }, h("label", {}, "Show the last", choice)), told, chart);
  let plot = null, ended = false;
  const look = async () => {
    try {
      const found = await ask(`/api/sensor?name=${encodeURIComponent(name)}`);
      cards.show({
        value: found.value === null ? "none" : `${number(found.value)} ${found.unit}`,
        bound: found.bound ? `± ${number(found.bound, 3)}` : "measured",
        quality: found.quality, since: ago(found.since_us), edge: found.edge, group: found.group,
      });
      const estimated = found.quality === "bounded" || found.quality === "unbounded";
      say(helped, !estimated ? "" : "It is estimated from the sensors of its slot" + (found.helpers.length ? `, and with the help of ${found.helpers.join(", ")}` : "") + ".");
    } catch (error) { say(told, error.message); }
  };
  const draw = async () => {
    try {
      const [found] = await Promise.all([ask(`/api/history?name=${encodeURIComponent(name)}&hours=${hours}`), library()]);
      if (ended) return;
      say(told, `${whole(found.values)} values${found.whole ? "" : "; older ones were left out"}; ${whole(found.late.length)} came late`);
      if (plot) plot.destroy();
      plot = found.values ? chartOf(chart, found) : null;
    } catch (error) { say(told, error.message); }
  };
  look();
  draw();
  const timer = setInterval(look, AGAIN_MS);
  const again = setInterval(draw, 30_000);
  return { close: () => { ended = true; clearInterval(timer); clearInterval(again); if (plot) plot.destroy(); } };
}

function chartOf(place, found) {
  const { colour, axis } = colours();
  const measured = found.value.map((value, at) => (found.quality[at] === "exact" || found.quality[at] === "unmodelled" ? value : null));
  const estimated = found.value.map((value, at) => (found.quality[at] === "bounded" || found.quality[at] === "unbounded" ? value : null));
  const low = found.value.map((value, at) => (value === null ? null : value - (found.bound[at] || 0)));
  const high = found.value.map((value, at) => (value === null ? null : value + (found.bound[at] || 0)));
  const late = new Map(found.late);
  const truths = found.time_s.map((at) => (late.has(at) ? late.get(at) : null));
  const options = {
    width: place.clientWidth - 20, height: 320, axes: [axis, axis],
    series: [{}, { label: "measured", stroke: colour("exact"), width: 1.5 }, { label: "estimated", stroke: colour("bounded"), width: 1.5, dash: [5, 3] },
      { label: "low", stroke: colour("bounded"), width: 0.5 }, { label: "high", stroke: colour("bounded"), width: 0.5 },
      { label: "came late", stroke: colour("missing"), paths: () => null, points: { show: true, size: 6 } }],
    bands: [{ series: [4, 3], fill: `${colour("bounded")}33` }],
  };
  return new window.uPlot(options, [found.time_s, measured, estimated, low, high, truths], place);
}
