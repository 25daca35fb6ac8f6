// Buttons that kill a process, where the console was started with --chaos.
import { h } from "./dom.js";
import { ask } from "./main.js";

const buttons = new Map();

/** Return the button of a node; it stays the same element, so that a table does not make it anew. */
export function killButton(node) {
  if (!buttons.has(node)) {
    const press = async (event) => {
      const button = event.currentTarget;
      button.disabled = true;
      try { await ask("/api/kill", { node }); }
      catch (error) { button.title = error.message; }
      setTimeout(() => { button.disabled = false; }, 3000);
    };
    buttons.set(node, h("button", { type: "button", class: "kill", "aria-label": `Kill ${node}`, onclick: press }, "Kill"));
  }
  return buttons.get(node);
}
