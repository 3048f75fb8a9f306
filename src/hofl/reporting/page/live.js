/* The live page: asks its own server for news, and shows them in place. */
"use strict";

const PAUSE = 2000;
let mark = null;

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 90) return `about ${Math.ceil(seconds)} s left`;
  return seconds < 5400 ? `about ${Math.round(seconds / 60)} min left` : `about ${(seconds / 3600).toFixed(1)} h left`;
}

function standing({ name, state, rounds, of, left, reason }) {
  const words = state === "running" ? [`round ${rounds} of ${of}`, duration(left)] : state === "stopped" ? [`stopped at round ${rounds} of ${of}`] : [state];
  return element("li", { class: state === "failed" ? "bad" : null }, element("span", {}, name),
    element("span", { class: state === "failed" ? null : "soft" }, words.filter(Boolean).join(", ")),
    element("progress", { max: of || 1, value: state === "finished" ? of || 1 : rounds, "aria-label": `${name}: rounds` }),
    reason ? element("span", { class: "reason" }, reason) : null);
}

function progress(line) {
  const runs = contents.progress ?? [];
  const time = new Date().toLocaleTimeString();
  const whole = runs.length > 1 ? duration(contents.left) : "";
  const empty = runs.length || contents.problem ? null : "No run here yet: the page fills when one starts.";
  renew(document.getElementById("live"), [
    element("p", { class: line || contents.problem ? "bad" : "soft", id: "news" }, line ?? contents.problem ?? `Live, last change seen at ${time}${whole && `; ${whole}`}.`),
    empty ? element("p", {}, empty) : null,
    element("ul", { class: "progress" }, ...runs.map(standing))]);
}

async function look() {
  let pause = PAUSE;
  try {
    const answer = await fetch("data", { cache: "no-store", headers: mark ? { "If-None-Match": mark } : {} });
    if (answer.status === 200) {
      mark = answer.headers.get("ETag");
      show(await answer.json());
      progress();
    } else if (answer.status !== 304) throw new Error(answer.statusText);
  } catch {
    progress("hofl watch has ended or cannot be reached: the page shows what it saw last.");
    mark = null;
    pause = 5 * PAUSE;
  }
  setTimeout(look, pause);
}

document.getElementById("results").before(element("section", { id: "live", "aria-label": "Progress" }));
progress();
setTimeout(look, PAUSE);
