// Load, forecast and workers, and what they cost beside the least that was possible.
import { Cards, Table, clock, h, number, say, whole } from "./dom.js";
import { colours, library } from "./chart.js";

export const TITLE = "Cost";

export function open(main) {
  const cards = new Cards(["tuples a second", "forecast", "planned for", "capacity", "price an hour", "paid", "least possible"]);
  const told = h("p", { class: "note" });
  const workers = new Table("Workers by type", [["type", "", (item) => item[0]], ["workers", "n", (item) => whole(item[1])]]);
  const chart = h("div", { class: "chart", role: "img", "aria-label": "Tuples a second: load, forecast, capacity" });
  main.append(cards.element, told, chart, h("h2", {}, "Workers by type"), workers.element);
  let plot = null, ended = false;
  const take = async (news) => {
    const last = (name) => news[name].at(-1);
    cards.show({
      "tuples a second": number(last("rate")), forecast: number(last("forecast")), "planned for": number(last("quantile")),
      capacity: number(last("capacity")), "price an hour": news.priced ? number(last("price_h")) : "",
      paid: news.priced ? number(news.paid) : "", "least possible": news.least === null ? "" : number(news.least),
    });
    const since = clock(news.since_s * 1e6);
    say(told, news.priced ? `Paid by the second since ${since}, when this console began to look; the least possible is what somebody pays who knows all rates beforehand.`
      : `No type of worker has a price ([scaler.sizes]). The number of workers is ${news.policy === "fixed" ? "fixed" : `decided by the policy ${news.policy}`}.`);
    workers.show(Object.entries(news.workers).sort(), (item) => item[0]);
    if (!news.time_s.length) return;
    await library();
    if (ended) return;
    const data = [news.time_s, news.rate, news.forecast, news.quantile, news.capacity];
    if (plot) plot.setData(data);
    else plot = chartOf(chart, data);
  };
  return { feeds: { cost: take }, close: () => { ended = true; if (plot) plot.destroy(); } };
}

function chartOf(place, data) {
  const { colour, axis } = colours();
  return new window.uPlot({
    width: place.clientWidth - 20, height: 300, axes: [axis, axis],
    series: [{}, { label: "load", stroke: colour("exact"), width: 1.5 }, { label: "forecast", stroke: colour("bounded"), width: 1.5 },
      { label: "planned for", stroke: colour("bounded"), width: 1, dash: [5, 3] }, { label: "capacity", stroke: colour("soft"), width: 1.5 }],
    bands: [{ series: [3, 2], fill: `${colour("bounded")}22` }],
  }, data, place);
}
