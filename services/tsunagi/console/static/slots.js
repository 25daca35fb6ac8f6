// Who owns each slot and who stands by; takeovers as they happen.
import { actForm } from "./acts.js";
import { killButton } from "./kill.js";
import { Cards, Table, clock, h, seconds, whole } from "./dom.js";

export const TITLE = "Slots";
const CAUSES = { died: "its owner died", silent: "its owner was silent", left: "its owner stopped", moved: "it was moved" };

const STANDBY = [["slot", "Slot", "number", "empty: all"], ["batch_size", "B", "text", "tuples, or inf"], ["policy", "Policy", ["model", "fixed"]],
  ["max_bandwidth", "Most bandwidth", "number", "bytes/s"], ["max_recovery_s", "Longest recovery", "number", "s"],
  ["priority", "Priority", ["recovery", "bandwidth"]]];
const MOVE = [["slot", "Slot", "number"], ["worker", "To the worker", "text"]];
const SCALE = [["workers", "Workers", "number", "empty: as the policy says"]];

export function open(main, me) {
  const cards = new Cards(["slots", "without owner", "without ready standby", "takeovers"]);
  const slots = new Table("Slots", [
    ["slot", "n", (item) => item.slot],
    ["owner", "", (item) => item.owner || h("span", { class: "missing" }, item.promoting ? `${item.promoting} is taking it over` : "nobody")],
    ["epoch", "n", (item) => item.epoch],
    ["step", "n", (item) => item.step],
    ["lag", "n", (item) => whole(item.lag)],
    ["standby", "", (item) => item.standby || h("span", { class: "missing" }, "nobody")],
    ["ready", "", (item) => (item.ready ? "yes" : h("span", { class: "unbounded" }, item.reason))],
    ["behind", "n", (item) => whole(item.behind)],
    ["B", "n", (item) => (item.batch_size === null ? "" : item.batch_size || "∞")],
    ["most bandwidth", "n", (item) => (item.max_bandwidth === null ? "" : `${whole(item.max_bandwidth)} B/s`)],
    ["longest recovery", "n", (item) => (item.max_recovery_s === null ? "" : seconds(item.max_recovery_s))],
    ["declared", "wrap", (item) => item.declared],
  ]);
  const takeovers = new Table("Takeovers", [
    ["time", "", (item) => clock(item.seen_us)],
    ["slot", "n", (item) => item.slot],
    ["from", "", (item) => item.former],
    ["to", "", (item) => item.owner],
    ["because", "", (item) => CAUSES[item.cause] || item.cause],
    ["unheard for", "n", (item) => ((item.cause === "died" || item.cause === "silent") && item.heard_us ? seconds((item.seen_us - item.heard_us) / 1e6) : "")],
    ["detected in", "n", (item) => seconds(item.phases.detect)],
    ["promoted in", "n", (item) => seconds(item.phases.promote)],
    ["caught up in", "n", (item) => (item.phases.catch_up !== undefined ? seconds(item.phases.catch_up) : item.caught_up_us ? "done" : "under way")],
    ["epoch", "n", (item) => item.epoch],
  ], "none since the console began");
  const nodes = new Table("Nodes", [
    ["node", "", (item) => item.node],
    ["role", "", (item) => item.role],
    ["state", "", (item) => (item.alive ? h("span", { class: "exact" }, "alive") : h("span", { class: item.leaving ? "soft" : "missing" }, item.leaving ? "has left" : `silent for ${item.age_s} s`))],
    ["overloaded", "", (item) => (item.overloaded_s ? `for ${item.overloaded_s} s` : "")],
    ["slots", "wrap", (item) => Object.entries(item.slots).map(([slot, role]) => `${slot} ${role}`).join(", ")],
    ["process", "", (item) => `${item.host} ${item.pid}`],
    ...(me.kills ? [["", "", (item) => killButton(item.node)]] : []),
  ]);
  const live = h("p", { class: "note", role: "log", "aria-live": "polite" });
  main.append(cards.element, h("h2", {}, "Takeovers"), live, takeovers.element, h("h2", {}, "Slots"), slots.element);
  if (me.role === "operator") main.append(actForm("Change how standbys stand by", "standby", STANDBY), actForm("Move a slot", "move", MOVE));
  main.append(h("h2", {}, "Nodes"), nodes.element);
  if (me.role === "operator") main.append(actForm("Change the number of workers", "scale", SCALE));
  let told = null;
  const take = (news) => {
    cards.show({
      slots: news.slots.length,
      "without owner": news.slots.filter((item) => !item.owner).length,
      "without ready standby": news.slots.filter((item) => !item.ready).length,
      takeovers: news.takeovers.length,
    });
    takeovers.show(news.takeovers, (item) => `${item.slot}/${item.epoch}`, true);
    slots.show(news.slots, (item) => item.slot);
    nodes.show(news.nodes, (item) => item.node);
    const last = news.takeovers[0];
    const name = last ? `${last.slot}/${last.epoch}` : "";
    if (told !== null && last && told !== name) live.textContent = `${clock(last.seen_us)}: slot ${last.slot} went from ${last.former} to ${last.owner}.`;
    told = name;
  };
  return { feeds: { slots: take } };
}
