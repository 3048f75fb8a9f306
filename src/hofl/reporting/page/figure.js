/* Elements, figures that redraw themselves, and how they are saved: as CSV, SVG or PNG. */
"use strict";

let contents = JSON.parse(document.getElementById("contents").textContent);
const COLOURS = ["#1f77b4", "#e07a00", "#2a9d4a", "#c63a3a", "#8a63c9", "#8c6d4f", "#d05aa8", "#6b7480", "#a3a000", "#1aa6b8"];

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function save(name, type, content) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function csv(rows) {
  if (!rows.length) return "";
  const names = Object.keys(rows[0]);
  // A leading = + - @ that is not a number would be run as a formula by a spreadsheet.
  const quoted = (value) => {
    let text = value === null || value === undefined ? "" : String(value);
    if (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text))) text = "'" + text;
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [names, ...rows.map((row) => names.map((name) => row[name]))]
    .map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

function svgText(svg) {
  const copy = svg.cloneNode(true);
  const style = getComputedStyle(svg);
  const ground = getComputedStyle(document.body).backgroundColor;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("style", `color:${style.color};background:${ground};font:11px system-ui,sans-serif`);
  return new XMLSerializer().serializeToString(copy);
}

function pngOf(svg) {
  const { width, height } = svg.viewBox.baseVal;
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => {
      const canvas = element("canvas", { width: 2 * width, height: 2 * height });
      canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
      canvas.toBlob(resolve, "image/png");
    };
    image.onerror = () => reject(new Error("the picture cannot be drawn"));
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svgText(svg));
  });
}

function tableOf(rows, caption = null) {
  if (!rows.length) return element("p", {}, "no data");
  const names = Object.keys(rows[0]);
  const shown = (value) => (value === null || value === undefined ? "-"
    : typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(5) : String(value));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption ?? "data" },
    element("table", {}, caption ? element("caption", { class: "soft" }, caption) : null,
      element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...rows.map((row) =>
        element("tr", {}, ...names.map((name) => element("td", {}, shown(row[name]))))))));
}

/* A figure redraws itself when a choice, its width or the contents of the page change. */
const figures = [];
function figure({ id, caption, about, choices = () => [], draw }) {
  const chart = element("div", { class: "chart" });
  const data = element("details", {}, element("summary", {}, "data"));
  const state = {};
  let table = [];
  let offered = "";
  const controls = element("span", { class: "choices" });
  function control({ name, label, options, value }) {
    if (!(state[name] in options)) state[name] = value ?? Object.keys(options)[0];
    const entries = Object.entries(options).map(([key, text]) =>
      element("option", { value: key, selected: key === state[name] ? "" : null }, text));
    const select = element("select", { name, onchange: () => { state[name] = select.value; render(); } }, ...entries);
    return element("label", {}, label, select);
  }
  function offer() {
    const offers = choices().filter(({ options }) => Object.keys(options).length);
    if (JSON.stringify(offers) === offered) return;
    offered = JSON.stringify(offers);
    for (const name of Object.keys(state)) if (!offers.some((one) => one.name === name)) delete state[name];
    const focused = controls.contains(document.activeElement) ? document.activeElement.name : null;
    controls.replaceChildren(...offers.map(control));
    controls.querySelector(`select[name="${focused}"]`)?.focus();
  }
  const picture = () => chart.querySelector("svg[role=img]");
  const button = (text, action) => element("button", { type: "button", onclick: action, "aria-label": `${caption}: save as ${text}` }, text);
  const saves = [
    button("CSV", () => save(`${id}.csv`, "text/csv", csv(table))),
    button("SVG", () => picture() && save(`${id}.svg`, "image/svg+xml", svgText(picture()))),
    button("PNG", async () => picture() && save(`${id}.png`, "image/png", await pngOf(picture()))),
  ];
  function render() {
    offer();
    const drawn = draw(state, Math.max(260, chart.clientWidth || 400));
    table = drawn.data;
    chart.replaceChildren(...(drawn.legend ? [legend(drawn.legend)] : []), drawn.plot ?? element("p", {}, drawn.empty ?? "nothing to show"));
    const svg = drawn.plot;
    if (svg) {
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", `${caption}. ${drawn.said ?? about} The data follow as a table.`);
      chart.dataset.points = String(table.length);
    }
    for (const part of [...saves, data]) part.hidden = !svg;
    data.replaceChildren(data.firstChild, tableOf(table, caption));
  }
  const node = element("figure", { id }, element("figcaption", {}, caption), element("p", {}, about),
    element("div", { class: "bar" }, controls, ...saves), chart, data);
  let width = 0;
  new ResizeObserver(() => {
    if (chart.clientWidth !== width) { width = chart.clientWidth; render(); }
  }).observe(chart);
  figures.push(() => { if (width) render(); });
  return node;
}

function legend(entries) {
  return element("ul", { class: "legend", "aria-hidden": "true" }, ...entries.map(({ name, colour }) =>
    element("li", {}, element("span", { class: "swatch", style: `background:${colour}` }), name)));
}
