// Shows the page that the address names, and keeps one stream of news for it.
import { h, say } from "./dom.js";
import * as cost from "./cost.js";
import * as fleet from "./fleet.js";
import * as slots from "./slots.js";
import * as sensors from "./sensors.js";
import * as queries from "./queries.js";
import * as troubles from "./troubles.js";

const PAGES = { "/": fleet, "/slots": slots, "/sensors": sensors, "/queries": queries, "/cost": cost, "/troubles": troubles };
const main = document.getElementById("main");
const link = document.getElementById("link");
const who = document.getElementById("who");
let close = () => {};

/** Ask the console; throw an error with its words if it refuses. */
export async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  const answer = await fetch(path, options);
  const found = await answer.json();
  if (answer.status === 401) showLogin();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

/** Listen to feeds: {name: (news) => ...}, and to the rows of a query. Return a function that ends it. */
function listen(feeds, query) {
  const wanted = new URLSearchParams({ feeds: Object.keys(feeds).join(",") });
  if (query) wanted.set("query", query);
  const source = new EventSource(`/api/events?${wanted}`);
  source.onopen = () => say(link, "");
  source.onerror = () => say(link, "The console does not answer; trying again.");
  for (const [name, take] of Object.entries(feeds)) {
    source.addEventListener(name, (event) => {
      const news = JSON.parse(event.data);
      if (news && news.faults) say(link, news.faults.map((item) => `${item.what}: ${item.fault}`).join("; "));
      take(news);
    });
  }
  return () => source.close();
}

async function show() {
  close();
  close = () => {};
  const page = PAGES[location.pathname] || fleet;
  for (const item of document.querySelectorAll("nav a")) {
    if (item.getAttribute("href") === location.pathname) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  const me = await ask("/api/me");
  showWho(me);
  if (me.role === null) return showLogin();
  document.title = `${page.TITLE} · Tsunagi`;
  const heading = h("h1", {}, page.TITLE);
  main.replaceChildren(heading);
  const opened = page.open(main, me);
  const end = opened.feeds ? listen(opened.feeds, opened.query) : () => {};
  close = () => { end(); if (opened.close) opened.close(); };
}

function showWho(me) {
  if (!me.login || me.role === null) return who.replaceChildren();
  const leave = h("button", { type: "button", onclick: async () => { await ask("/api/logout", {}); go(location.pathname); } }, "Log out");
  who.replaceChildren(h("span", {}, `${me.user} (${me.role})`), leave);
}

function showLogin() {
  close();
  close = () => {};
  const user = h("input", { name: "user", autocomplete: "username", required: true });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const told = h("p", { class: "bad", role: "alert" });
  const send = async (event) => {
    event.preventDefault();
    try {
      await ask("/api/login", { user: user.value, password: password.value });
      show();
    } catch (error) { say(told, error.message); }
  };
  document.title = "Log in · Tsunagi";
  main.replaceChildren(h("form", { class: "login", onsubmit: send }, h("h1", {}, "Log in"),
    h("label", {}, "Name", user), h("label", {}, "Password", password), h("button", {}, "Log in"), told));
  user.focus();
}

/** Go to an address of this console without loading anew. */
export function go(address) {
  history.pushState(null, "", address);
  show();
}

document.addEventListener("click", (event) => {
  const found = event.target.closest("a");
  if (!found || found.origin !== location.origin || !(found.pathname in PAGES)) return;
  if (found.hash || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(found.pathname + found.search);
  main.focus();
});
window.addEventListener("popstate", show);
show();
