// The library of charts (uPlot), which is loaded by those pages alone that draw one.
import { h } from "./dom.js";

let loading = null;

/** Load the library, once. */
export function library() {
  loading ||= new Promise((done, failed) => {
    document.head.append(h("link", { rel: "stylesheet", href: "/static/uplot/uPlot.min.css" }));
    document.head.append(h("script", { src: "/static/uplot/uPlot.iife.min.js", onload: done, onerror: () => failed(new Error("the library of charts does not load")) }));
  });
  return loading;
}

/** Return the colours of the page: a function of their names, and the settings of an axis. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return { colour, axis: { stroke: colour("soft"), grid: { stroke: colour("line") }, ticks: { stroke: colour("line") } } };
}
