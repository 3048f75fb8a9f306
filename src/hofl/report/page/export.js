/* Elements, and how a figure is saved: its data as CSV, its picture as SVG or PNG. */
"use strict";

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
