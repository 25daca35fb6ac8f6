// What was set aside: records that could not be used, and values that came late.
import { Table, clock, h, whole } from "./dom.js";

export const TITLE = "Troubles";

export function open(main) {
  const reasons = new Table("Dead letters by reason", [
    ["topic", "", (item) => item.topic],
    ["reason", "", (item) => item.reason],
    ["records", "n", (item) => whole(item.count)],
  ]);
  const late = new Table("Late values", [
    ["edge", "", (item) => item.edge],
    ["reason", "", (item) => item.reason],
    ["values", "n", (item) => whole(item.values)],
  ]);
  const letters = new Table("Dead letters", [
    ["time", "", (item) => clock(item.at_us)],
    ["topic", "", (item) => `${item.topic}/${item.partition} ${item.offset}`],
    ["reason", "", (item) => item.reason],
    ["detail", "wrap", (item) => item.detail],
    ["key", "wrap", (item) => item.key],
    ["value", "wrap", (item) => h("code", {}, item.value)],
    ["bytes", "n", (item) => whole(item.bytes)],
  ]);
  const alerts = new Table("Alerts", [
    ["state", "", (item) => h("span", { class: item.state === "firing" ? "bad" : "soft" }, item.state)],
    ["severity", "", (item) => item.severity],
    ["alert", "", (item) => item.alert],
    ["since", "", (item) => new Date(item.since).toLocaleTimeString("en-GB")],
    ["what it says", "wrap", (item) => item.summary],
    ["what to do", "wrap", (item) => item.description],
  ], "none fires");
  const acts = new Table("What operators did", [
    ["time", "", (item) => clock(item.at_us)],
    ["who", "", (item) => item.by],
    ["what", "wrap", (item) => item.what],
  ], "nothing");
  const unknown = h("p", { class: "note" }, "No Prometheus is named ([console] prometheus), so alerts are not shown.");
  const told = h("p", { class: "note" });
  main.append(h("h2", {}, "Alerts"), unknown, alerts.element, told, h("h2", {}, "Dead letters by reason"), reasons.element, h("h2", {}, "Late values by edge"), late.element,
    h("h2", {}, "Newest dead letters"), letters.element, h("h2", {}, "What operators did"), acts.element);
  const take = (news) => {
    unknown.hidden = news.alerts !== null;
    alerts.element.hidden = news.alerts === null;
    alerts.show(news.alerts || [], (item) => `${item.alert}/${item.summary}`);
    const from = Object.entries(news.counted_from).map(([topic, offset]) => `${topic} ${offset} to ${news.ends[topic]}`);
    told.textContent = `Counted: ${from.join(", ")}.`;
    reasons.show(news.reasons, (item) => `${item.topic}/${item.reason}`);
    late.show(news.late, (item) => `${item.edge}/${item.reason}`);
    acts.show(news.acts, (item) => `${item.at_us}/${item.by}`, true);
    letters.show(news.letters, (item) => `${item.topic}/${item.partition}/${item.offset}`, true);
  };
  return { feeds: { troubles: take } };
}
