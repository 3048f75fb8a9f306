/* Charts of a command: lines side by side, or stacked bars. */
"use strict";

const colourOf = (k) => COLOURS[k % COLOURS.length];

function panel({ title, x_label, y_label, lines }, number) {
  const points = lines.flatMap((line, k) => line.x.map((x, i) => ({ line: line.name, x, y: line.y[i], marked: i === line.mark, k })));
  return figure({
    id: `panel-${number}`, caption: title, about: `${y_label} against ${x_label}`,
    draw: (_, width) => ({
      data: points.map(({ k, ...rest }) => rest),
      legend: lines.map((line, k) => ({ name: line.name, colour: colourOf(k) })),
      plot: points.length ? Plot.plot({
        width, height: Math.min(360, 0.75 * width), marginLeft: 60, marginRight: 16, marginBottom: 36,
        x: { label: x_label, ticks: Math.max(3, width / 90) }, y: { label: y_label, grid: true },
        marks: [
          Plot.lineY(points, { x: "x", y: "y", z: "line", stroke: (p) => colourOf(p.k), strokeWidth: 2 }),
          Plot.dot(points.filter((p) => p.marked), { x: "x", y: "y", r: 5, fill: (p) => colourOf(p.k) }),
          Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: (p) => `${p.line}\n${p.y.toPrecision(4)} at ${p.x}`, fill: "Canvas" })),
        ],
      }) : null,
    }),
  });
}

function stacked({ title, x_label, y_label, names, counts }) {
  const parts = counts.flatMap((row, position) => row.map((count, k) => ({ position, part: names[k], count, k })));
  return figure({
    id: "bars", caption: title, about: `${y_label} by ${x_label}`,
    draw: (_, width) => ({
      data: parts.map(({ k, ...rest }) => rest),
      legend: names.map((name, k) => ({ name, colour: colourOf(k) })),
      plot: Plot.plot({
        width, height: 340, marginLeft: 52, marginBottom: 36, y: { label: y_label, grid: true },
        x: { label: x_label, ticks: d3.range(0, counts.length, Math.max(1, Math.ceil(counts.length / (width / 28)))) },
        marks: [Plot.barY(parts, { x: "position", y: "count", fill: (p) => colourOf(p.k), order: "k", title: (p) => `${p.position}, ${p.part}: ${p.count}` }), Plot.ruleY([0])],
      }),
    }),
  });
}

document.getElementById("report").append(
  element("h1", {}, contents.title),
  element("div", { class: "figures" }, ...(contents.panels ?? []).map(panel), ...(contents.bars ? [stacked(contents.bars)] : [])));
