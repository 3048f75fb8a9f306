/* The report: tables and figures from the contents that the page carries. */
"use strict";

let rows = [];
let metric = "score";
function take(values) {
  contents = values;
  rows = contents.groups.flatMap((group, number) => group.rows.map((row) => ({ ...row, group: number })));
  rows.forEach((row, k) => {
    row.colour = COLOURS[k % COLOURS.length];
    row.name = rows.filter((other) => other.label === row.label).length > 1 ? `${row.label} (table ${row.group + 1})` : row.label;
  });
  metric = (rows.find((row) => row.metric !== "score")?.metric ?? "score").replaceAll("_", " ");
}
const finished = (row) => {
  const seeds = new Map();
  for (const cell of row.cells) if (cell.state === "finished" && !seeds.has(cell.seed)) seeds.set(cell.seed, cell);
  return [...seeds.values()];
};
const percent = (value, digits = 2) => (100 * value).toFixed(digits);
const UNITS = ["B", "KiB", "MiB", "GiB"];
const bytes = (value) => {
  for (const unit of UNITS) {
    if (Math.abs(value) < 1024 || unit === "GiB") return `${unit === "B" ? value : value.toFixed(value < 10 ? 2 : 1)} ${unit}`;
    value /= 1024;
  }
};
const SHOW = {
  score: (v) => `${percent(v)} %`, loss: (v) => v.toFixed(4), perplexity: (v) => v.toFixed(2), rouge_l: (v) => `${percent(v)} %`, peak: bytes, cohort: bytes, uplink: bytes,
  downlink: bytes, compute: (v) => d3.format(".3~s")(v), seconds: (v) => (v < 5400 ? `${v.toFixed(0)} s` : `${(v / 3600).toFixed(1)} h`),
};
const title = (key) => (key === "score" ? metric : contents.measures[key].title);

/* Rows of different tables are not comparable: a figure shows one table at a time. */
const tables = () => contents.groups.length < 2 ? [] : [{
  name: "table", label: "of", options: Object.fromEntries(contents.groups.map((_, k) => [k, `table ${k + 1}`])) }];
const inTable = (state) => rows.filter((row) => row.group === Number(state.table ?? 0));

/* Mean over finished seeds, with the deviation; of a row without any, over those that run. */
function bands(chosen, key, along) {
  const found = [];
  for (const row of chosen) {
    // A seed that is still running must not cut short those that have ended.
    const ended = finished(row);
    const cells = ended.length ? ended : row.cells.filter((cell) => cell.series.round.length);
    if (!cells.length) continue;
    const length = Math.min(...cells.map((cell) => cell.series.round.length));
    for (let n = 0; n < length; n++) {
      const values = cells.map((cell) => cell.series[key][n]);
      if (values.some((value) => value === null)) continue;
      const mean = d3.mean(values);
      const spread = values.length > 1 ? d3.deviation(values) : 0;
      found.push({ row: row.name, x: d3.mean(cells, (cell) => cell.series[along][n]), mean, low: mean - spread, high: mean + spread, seeds: cells.length });
    }
  }
  return found;
}
const shownRows = (data) => rows.filter((row) => data.some((point) => point.row === row.name));
const entries = (data) => shownRows(data).map((row) => ({ name: row.name, colour: row.colour }));
const scale = () => ({ type: "ordinal", domain: rows.map((row) => row.name), range: rows.map((row) => row.colour) });
/* Ticks at round numbers; of bytes, at round numbers of their unit. */
function byteTicks(low, high, count) {
  const power = Math.max(0, Math.min(3, Math.floor(Math.log2(Math.max(high, 1)) / 10)));
  const unit = 1024 ** power;
  return { ticks: d3.ticks(low / unit, high / unit, count).map((value) => value * unit), tickFormat: (value) => `${d3.format("~r")(value / unit)} ${UNITS[power]}` };
}
function axis(key, data, width) {
  const [low, high] = d3.extent(data, (point) => point.x);
  return key === "uplink" ? byteTicks(low, high, Math.max(2, width / 120)) : { ticks: d3.ticks(low, high, Math.max(3, width / 90)).filter((value) => key !== "round" || Number.isInteger(value)), ...(key === "round" ? { tickFormat: "d" } : {}) };
}
const BYTES = new Set(["peak", "cohort", "uplink", "downlink"]);
function measureAxis(key, values, count) {
  const [low, high] = d3.extent(values);
  return BYTES.has(key) && low < high ? byteTicks(low, high, count) : { ticks: count, tickFormat: SHOW[key] };
}

function curves() {
  const kinds = () => ({ score: `${metric} (%)`, test_loss: "test loss", train_loss: "training loss" });
  return figure({
    id: "curves", caption: "Learning curves", about: "Mean over seeds; the band is one sample deviation to each side.",
    choices: () => [{ name: "y", label: "show", options: kinds() }, { name: "x", label: "against", options: contents.axes }, ...tables()],
    draw(state, width) {
      const factor = state.y === "score" ? 100 : 1;
      const data = bands(inTable(state), state.y, state.x).map((p) => ({ ...p, mean: factor * p.mean, low: factor * p.low, high: factor * p.high }));
      if (!data.length) return { data, empty: "no round has been evaluated yet" };
      const plot = Plot.plot({
        width, height: Math.min(340, 0.7 * width), marginLeft: 48, marginRight: 16, marginBottom: 36, color: scale(),
        x: { label: contents.axes[state.x], ...axis(state.x, data, width) }, y: { label: kinds()[state.y], grid: true },
        marks: [
          Plot.areaY(data, { x: "x", y1: "low", y2: "high", fill: "row", fillOpacity: 0.16 }),
          Plot.lineY(data, { x: "x", y: "mean", stroke: "row", strokeWidth: 2 }),
          Plot.dot(data, { x: "x", y: "mean", fill: "row", r: 2.5 }),
          Plot.tip(data, Plot.pointer({ x: "x", y: "mean", title: (p) => `${p.row}\n${p.mean.toPrecision(4)} at ${p.x}`, fill: "Canvas" })),
        ],
      });
      return { data, plot, legend: entries(data), said: `${shownRows(data).length} rows, ${kinds()[state.y]} against ${contents.axes[state.x]}.` };
    },
  });
}

function dominated(point, all, xMore, yMore) {
  const better = (a, b, more) => (more ? a >= b : a <= b);
  return all.some((o) => (o.x !== point.x || o.y !== point.y) && better(o.x, point.x, xMore) && better(o.y, point.y, yMore));
}

function pareto() {
  const choices = () => {
    const keys = Object.keys(contents.measures).filter((key) => rows.some((row) => row.measures[key]));
    const options = Object.fromEntries(keys.map((key) => [key, title(key)]));
    return [{ name: "x", label: "across", options, value: keys.includes("peak") ? "peak" : keys[0] }, { name: "y", label: "up", options, value: "score" }, ...tables()];
  };
  return figure({
    id: "pareto", caption: "Trade-offs", about: "Means of the rows. Grey: another row is at least as good in both. The line joins the others.",
    choices,
    draw(state, width) {
      const all = inTable(state).filter((row) => row.measures[state.x] && row.measures[state.y])
        .map((row) => ({ row: row.name, x: row.measures[state.x].mean, y: row.measures[state.y].mean, colour: row.colour }));
      if (!all.length) return { data: all, empty: "no finished row has both" };
      const [xMore, yMore] = [state.x, state.y].map((key) => contents.measures[key].more);
      const data = all.map((point) => ({ ...point, frontier: !dominated(point, all, xMore, yMore) }));
      const front = d3.sort(data.filter((point) => point.frontier), (point) => point.x);
      const plot = Plot.plot({
        width, height: Math.min(340, 0.75 * width), marginLeft: 64, marginRight: 24, marginBottom: 36, inset: 18,
        x: { label: `${title(state.x)} (${xMore ? "more" : "less"} is better)`, ...measureAxis(state.x, all.map((p) => p.x), Math.max(2, width / 130)) },
        y: { label: `${title(state.y)} (${yMore ? "more" : "less"} is better)`, ...measureAxis(state.y, all.map((p) => p.y), 5), grid: true },
        marks: [
          Plot.line(front, { x: "x", y: "y", stroke: "currentColor", strokeDasharray: "4 3", strokeOpacity: 0.6 }),
          Plot.dot(data, { x: "x", y: "y", r: 6, fill: (p) => (p.frontier ? p.colour : "#9aa0a6"), stroke: "currentColor", strokeOpacity: 0.4 }),
          Plot.tip(data, Plot.pointer({ x: "x", y: "y", title: (p) => `${p.row}\n${SHOW[state.x](p.x)}, ${SHOW[state.y](p.y)}`, fill: "Canvas" })),
        ],
      });
      const listed = data.map((p) => ({ name: p.frontier ? p.row : `${p.row} (dominated)`, colour: p.frontier ? p.colour : "#9aa0a6" }));
      return { data: data.map(({ colour, ...rest }) => rest), plot, legend: listed, said: `${front.length} of ${data.length} rows are not dominated.` };
    },
  });
}

const choicesOfCells = (has) => Object.fromEntries(rows.flatMap((row) =>
  row.cells.filter(has).map((cell) => [cell.path, `${row.name}, seed ${cell.seed}`])));
const cellOf = (path) => rows.flatMap((row) => row.cells).find((cell) => cell.path === path);

function ofOneCell({ id, caption, about, has, empty, start, draw }) {
  const choices = () => {
    const options = choicesOfCells(has);
    return [{ name: "cell", label: "run", options, value: start?.(options) }];
  };
  return figure({ id, caption, about, choices, draw: (state, width) => {
    const cell = cellOf(state.cell);
    return cell ? draw(cell, width) : { data: [], empty };
  } });
}

const clientAxis = (count, width) => ({ label: "client", ticks: d3.range(0, count, Math.max(1, Math.ceil(count / (width / 28)))) });

function participation() {
  return ofOneCell({
    id: "participation", caption: "Participation", about: "Bars: rounds that a client was drawn in. Ticks: what the sampling policy expects.",
    has: (cell) => cell.expected.length, empty: "No finished run has an audit of its sampling.",
    draw(cell, width) {
      const data = cell.expected.map((expected, client) => ({ client, boundary: cell.boundaries[client] ?? null, realised: cell.realised[client], expected }));
      const plot = Plot.plot({
        width, height: 260, marginLeft: 40, marginBottom: 36, x: clientAxis(data.length, width), y: { label: "rounds", grid: true },
        marks: [Plot.barY(data, { x: "client", y: "realised", fill: "#1f77b4", fillOpacity: 0.75 }),
          Plot.tickY(data, { x: "client", y: "expected", stroke: "#e07a00", strokeWidth: 3 }), Plot.ruleY([0])],
      });
      return { data, plot, legend: [{ name: "realised", colour: "#1f77b4" }, { name: "expected", colour: "#e07a00" }] };
    },
  });
}

function boundaryMap() {
  return ofOneCell({
    id: "boundaries", caption: "Boundaries of the fleet", about: "Each column is a client's model: blocks below its boundary (light) and the blocks it backpropagates through (dark).",
    has: (cell) => cell.boundaries.length && cell.blocks, empty: "No finished run says where its clients cut the model.",
    start: (options) => Object.keys(options).find((key) => d3.max(cellOf(key).boundaries) > 0),
    draw(cell, width) {
      const data = cell.boundaries.map((boundary, client) => ({ client, boundary, first_order: cell.blocks - boundary, budget: cell.budgets[client] ?? "" }));
      const parts = data.flatMap((one) => [{ ...one, from: 0, to: one.boundary, bottom: true }, { ...one, from: one.boundary, to: cell.blocks, bottom: false }]);
      const budgets = data.some((one) => one.budget);
      const plot = Plot.plot({
        width, height: 260, marginLeft: 40, marginBottom: 36, x: clientAxis(data.length, width), y: { label: "block", domain: [0, cell.blocks], grid: true, ticks: d3.ticks(0, cell.blocks, 6).filter(Number.isInteger), tickFormat: "d" },
        marks: [Plot.barY(parts, { x: "client", y1: "from", y2: "to", fill: (p) => (p.bottom ? "#9cc4e8" : "#1f77b4"), title: (p) => `client ${p.client}: boundary ${p.boundary}${p.budget ? ", " + p.budget : ""}` })],
      });
      return { data: budgets ? data : data.map(({ budget, ...rest }) => rest), plot, legend: [{ name: "bottom", colour: "#9cc4e8" }, { name: "top (backpropagation)", colour: "#1f77b4" }] };
    },
  });
}

function signal() {
  return figure({
    id: "signal", caption: "Signal-to-noise ratio of the scalars", about: "Mean over seeds, zeroth-order rows only. Below 1 (the line) rounding outweighs what the scalars measure.",
    choices: () => [{ name: "x", label: "against", options: contents.axes }],
    draw(state, width) {
      const data = bands(rows, "snr", state.x).map(({ row, x, mean, seeds }) => ({ row, x, mean: Math.max(mean, 1e-3), seeds }));
      if (!data.length) return { data, empty: "No run measured it: it belongs to zeroth-order bottoms." };
      const plot = Plot.plot({
        width, height: 260, marginLeft: 52, marginBottom: 36, color: scale(), x: { label: contents.axes[state.x], ...axis(state.x, data, width) },
        y: { type: "log", label: "ratio", grid: true, tickFormat: "~g", ticks: 4 },
        marks: [Plot.ruleY([1], { strokeDasharray: "4 3" }), Plot.lineY(data, { x: "x", y: "mean", stroke: "row", strokeWidth: 2 }), Plot.dot(data, { x: "x", y: "mean", fill: "row", r: 2.5 })],
      });
      return { data, plot, legend: entries(data) };
    },
  });
}

function memory() {
  const measured = () => rows.flatMap((row) => {
    const largest = new Map();
    for (const cell of finished(row)) for (const [b, peak] of Object.entries(cell.peaks)) largest.set(+b, Math.max(peak, largest.get(+b) ?? 0));
    return [...largest].map(([boundary, peak]) => ({ row: row.name, boundary, peak_bytes: peak }));
  });
  return figure({
    id: "memory", caption: "Memory of a client", about: "Largest measured peak of a participation, by the boundary at which the client cuts the model.",
    draw(_, width) {
      const peaks = measured();
      if (!peaks.length) return { data: peaks, empty: "no finished run measured a peak" };
      const plot = Plot.plot({
        width, height: 60 + 22 * peaks.length, marginLeft: 84, marginRight: 20, marginBottom: 36, color: scale(),
        x: { label: "peak", ...byteTicks(0, d3.max(peaks, (p) => p.peak_bytes), Math.max(2, width / 130)), grid: true }, y: { label: null, axis: null }, fy: { label: null, tickFormat: () => "" },
        marks: [Plot.barX(peaks, { x: "peak_bytes", y: (p, k) => k, fill: "row", title: (p) => `${p.row}, boundary ${p.boundary}: ${bytes(p.peak_bytes)}` }),
          Plot.text(peaks, { x: 0, y: (p, k) => k, text: (p) => `boundary ${p.boundary}`, textAnchor: "end", dx: -6 }), Plot.ruleX([0])],
      });
      return { data: peaks, plot, legend: entries(peaks) };
    },
  });
}

function bills() {
  const planned = rows.flatMap((row) => row.cells.slice(0, 1).flatMap((cell) => cell.bill.map((cost) => ({
    row: row.name, budget: cost.budget, boundary: cost.boundary, peak: bytes(cost.peak_bytes),
    ...Object.fromEntries(Object.entries(cost.items ?? {}).map(([item, size]) => [item, bytes(size)])) }))));
  return planned.length ? [element("h3", {}, "Memory bill"), element("p", { class: "soft" }, "What the planner counted for each budget, before the run."), tableOf(planned, "Memory bill")] : [];
}

const spread = (value, show, digits) => (!value ? "-" : value.deviation === null ? show(value.mean, digits) : `${show(value.mean, digits)} (${show(value.deviation, digits)})`);

/* A value in a few words: a fleet's list has an entry for every client. All of it is in the configuration. */
function brief(value, most = 48) {
  const text = JSON.stringify(value);
  if (text.length <= most) return text;
  return Array.isArray(value) ? `${value.length} entries, ${text.slice(0, most)}...` : `${text.slice(0, most)}...`;
}

function scores(group, number) {
  const costs = ["peak", "cohort", "uplink", "downlink", "compute", "seconds"];
  const more = ["perplexity", "rouge_l"].filter((key) => group.rows.some((row) => row.measures[key]));
  const heads = ["method", "seeds", `${metric} %`, `against ${group.reference} (${percent(contents.level, 0)} %)`, "p", "loss", ...[...more, ...costs].map(title)];
  const body = group.rows.map((row) => {
    const done = finished(row).length;
    const gap = row.chosen === false ? null : row.difference;
    const known = gap && gap.low !== null;
    const sure = known && (gap.low > 0 || gap.high < 0);
    const cells = [
      done === row.cells.length ? String(done) : `${done} of ${row.cells.length}`,
      spread(row.measures.score, percent),
      gap ? `${gap.mean >= 0 ? "+" : ""}${percent(gap.mean)}${known ? ` [${percent(gap.low)}, ${percent(gap.high)}]${sure ? " *" : ""}` : " in every seed"}` : "-",
      known ? (gap.p_value < 0.001 ? "< 0.001" : gap.p_value.toFixed(3)) : "-",
      spread(row.measures.loss, (v) => v.toFixed(4)),
      ...more.map((key) => spread(row.measures[key], SHOW[key])),
      ...costs.map((key) => (row.measures[key] ? SHOW[key](row.measures[key].mean) : "-")),
    ];
    const mark = row.chosen ? [" ", element("span", { class: "tag" }, "best of grid")] : [];
    return element("tr", {}, element("th", { scope: "row" }, row.label, ...mark), ...cells.map((text) => element("td", {}, text)));
  });
  const differs = Object.entries(group.differs).map(([key, [first, here]]) => `${key}: ${brief(here)} instead of ${brief(first)}`);
  const problems = group.rows.flatMap((row) => row.cells.filter((cell) => cell.state !== "finished").map((cell) =>
    element("li", { class: cell.state === "failed" ? "bad" : "soft" }, `${row.label}, seed ${cell.seed}: ${cell.state}`
      + (cell.problem ? `: ${cell.problem}` : cell.state === "unfinished" ? `, ${cell.rounds} of ${cell.of} rounds` : ""))));
  return element("section", {}, element("h3", {}, [contents.groups.length > 1 ? `Table ${number + 1}` : "Table", group.name].filter(Boolean).join(": ")),
    differs.length ? element("p", { class: "bad" }, `Not comparable with table 1 (${differs.join("; ")}).`) : null,
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table ${number + 1}` },
      element("table", { class: "scores" }, element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), element("tbody", {}, ...body))),
    problems.length ? element("ul", {}, ...problems) : null);
}

function answers() {
  const having = rows.flatMap((row) => row.cells.filter((cell) => cell.answers.length).slice(0, 1).map((cell) => [row, cell]));
  if (!having.length) return [];
  const names = Object.keys(having[0][1].answers[0]);
  return [element("h2", {}, "Sample answers"), element("p", { class: "soft" }, "Greedy answers to fixed prompts of the test set, before and after training."),
    ...having.map(([row, cell]) => element("details", { class: "answers", "data-run": `answers ${cell.path}` },
      element("summary", {}, `${row.name}, seed ${cell.seed}`),
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Sample answers of ${row.name}` },
        element("table", {}, element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
          element("tbody", {}, ...cell.answers.map((answer) => element("tr", {}, ...names.map((name) => element("td", { class: "text" }, answer[name])))))))))];
}

function differences() {
  const keys = Object.entries(contents.differences);
  if (!keys.length) return element("p", {}, "The rows were made with the same settings.");
  return tableOf(keys.map(([key, values]) => Object.fromEntries([["setting", key], ...rows.map((row, k) => [row.name, values[k] === null ? "-" : brief(values[k])])])), "Settings in which rows differ");
}

function origins() {
  return rows.flatMap((row) => row.cells.map((cell) => element("details", { class: "origin", "data-run": cell.path },
    element("summary", {}, `${row.name}, seed ${cell.seed} (${cell.state})`),
    element("p", {}, `folder ${cell.path}, digest ${cell.digest || "-"}`),
    element("pre", { tabindex: 0, "aria-label": "configuration" }, Object.entries(cell.config).map(([key, value]) => `${key} = ${JSON.stringify(value)}`).join("\n")),
    element("pre", { tabindex: 0, "aria-label": "environment" }, JSON.stringify(cell.environment, null, 2)))));
}

/* The sections beside the figures, each rebuilt from the contents. */
const SECTIONS = {
  about() {
    const all = rows.flatMap((row) => row.cells);
    const done = all.filter((cell) => cell.state === "finished").length;
    return [element("h1", {}, contents.title),
      element("p", { class: "soft" }, `${rows.length} rows, ${done} of ${all.length} runs finished. Made by hofl ${contents.version} from the files of the runs.`)];
  },
  results: () => [element("h2", {}, "Results"),
    element("p", { class: "soft" }, "Means over seeds with the sample standard deviation. Differences are paired by seed, with the interval of Student's t; * marks those that exclude zero."),
    ...contents.groups.map(scores)],
  drawn: null,
  answers,
  bill: bills,
  differing: () => [element("h2", {}, "What differs"), differences()],
  origins: () => [element("h2", {}, "Where the numbers come from"), ...origins()],
};

/* What has not changed stays as it is, with its focus and its selection; what was open stays open. */
function renew(home, nodes) {
  const fresh = element("div", {}, ...nodes);
  const opened = new Set([...home.querySelectorAll("details[open]")].map((one) => one.dataset.run));
  for (const one of fresh.querySelectorAll("details")) one.open = opened.has(one.dataset.run);
  if (fresh.innerHTML === home.innerHTML) return;
  const shifts = [...home.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  home.replaceChildren(...fresh.childNodes);
  home.querySelectorAll(".scroll").forEach((one, k) => { one.scrollLeft = shifts[k] ?? 0; });
}

function show(values) {
  take(values);
  document.title = contents.title;
  for (const [name, make] of Object.entries(SECTIONS)) if (make) renew(document.getElementById(name), make());
  for (const redraw of figures) redraw();
}

document.getElementById("report").append(...Object.keys(SECTIONS).map((id) => element("section", { id })));
document.getElementById("drawn").append(element("h2", {}, "Figures"),
  element("div", { class: "figures" }, curves(), pareto(), memory(), participation(), boundaryMap(), signal()));
show(contents);
