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
  const told = h("p", { class: "note" });
  main.append(told, h("h2", {}, "Dead letters by reason"), reasons.element, h("h2", {}, "Late values by edge"), late.element,
    h("h2", {}, "Newest dead letters"), letters.element);
  const take = (news) => {
    const from = Object.entries(news.counted_from).map(([topic, offset]) => `${topic} ${offset} to ${news.ends[topic]}`);
    told.textContent = `Counted: ${from.join(", ")}.`;
    reasons.show(news.reasons, (item) => `${item.topic}/${item.reason}`);
    late.show(news.late, (item) => `${item.edge}/${item.reason}`);
    letters.show(news.letters, (item) => `${item.topic}/${item.partition}/${item.offset}`, true);
  };
  return { feeds: { troubles: take } };
}
