// Forms of what an operator can do. Each shows what it would do before it does it.
import { h, say } from "./dom.js";
import { ask } from "./main.js";

/**
 * A form of an act. `fields`: [name, label, kind, hint], where kind is number, text, area, or a list of choices.
 * An empty field is left out: it is then as configured.
 */
export function actForm(title, act, fields) {
  const inputs = fields.map(([name, label, kind, hint]) => {
    const input = kind === "area" ? h("textarea", { name, rows: 4, cols: 60, required: true })
      : Array.isArray(kind) ? h("select", { name }, h("option", { value: "" }, "as configured"), ...kind.map((item) => h("option", { value: item }, item)))
        : h("input", { name, type: kind === "number" ? "number" : "text", step: "any" });
    return [name, kind, input, h("label", {}, hint ? `${label} (${hint})` : label, input)];
  });
  const told = h("pre", { class: "said", role: "status" });
  const doIt = h("button", { type: "button", disabled: true }, "Do it");
  let shown = null;
  const given = () => Object.fromEntries(inputs.filter(([, , input]) => input.value !== "").map(([name, kind, input]) =>
    [name, kind === "number" || (name === "batch_size" && /^\d+$/.test(input.value)) ? Number(input.value) : input.value]));
  const send = async (preview) => {
    const wanted = given();
    try {
      const found = await ask(`/api/acts/${act}`, { preview, fields: preview ? wanted : shown });
      say(told, (preview ? "It would do this:\n" : "Done:\n") + found.said.join("\n"));
      shown = preview ? wanted : null;
    } catch (error) {
      say(told, error.message);
      shown = null;
    }
    doIt.disabled = shown === null;
  };
  doIt.addEventListener("click", () => send(false));
  const form = h("form", { class: "act", onsubmit: (event) => { event.preventDefault(); send(true); },
    oninput: () => { shown = null; doIt.disabled = true; } },
    h("div", { class: "find" }, ...inputs.map((item) => item[3])), h("button", {}, "Show what it does"), doIt, told);
  return h("details", {}, h("summary", {}, title), form);
}
