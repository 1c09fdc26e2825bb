// Keeps the page fresh and adds what needs a pointer. The page is whole without it: everything here was already
// rendered and escaped on the server, and texts are only ever set as text.
"use strict";

const POLL_MS = 5000;

let curve = null;
let shownTag = null;

async function poll() {
  try {
    const answer = await fetch("/api/v1/run", { cache: "no-cache" });
    const head = answer.ok ? (await answer.json()).ledger.head : "waiting";
    const tag = answer.headers.get("ETag");
    if (head !== document.body.dataset.head || (shownTag !== null && tag !== shownTag)) await redraw();
    shownTag = tag;
  } catch {
    // The board is away; the next round asks again.
  }
  setTimeout(poll, POLL_MS);
}

async function redraw() {
  const answer = await fetch(location.pathname + location.search, { cache: "no-cache" });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const find = document.getElementById("find");
  const wanted = find ? find.value : "";
  const typing = find !== null && document.activeElement === find;
  document.getElementById("board").replaceWith(document.adoptNode(fresh.getElementById("board")));
  document.body.dataset.head = fresh.body.dataset.head;
  document.title = fresh.title;
  curve = null;
  enhance(wanted, typing);
}

function enhance(wanted = "", typing = false) {
  const copy = document.getElementById("copy-link");
  if (copy) copy.addEventListener("click", () => copyLink(copy));
  const find = document.getElementById("find");
  if (find && document.getElementById("people")) {
    find.hidden = false;
    find.value = wanted;
    find.addEventListener("input", () => filterRows(find.value));
    if (wanted) filterRows(wanted);
    if (typing) find.focus();
  }
  const chart = document.getElementById("chart");
  if (chart) {
    const plot = chart.querySelector(".plot");
    plot.addEventListener("pointermove", (event) => point(chart, plot, event));
    plot.addEventListener("pointerleave", hidePoint);
  }
}

async function copyLink(button) {
  const field = document.getElementById("join-link");
  try {
    await navigator.clipboard.writeText(field.value);
  } catch {
    // Without https there is no clipboard to write to: select, and let the old way copy.
    field.select();
    document.execCommand("copy");
  }
  const label = button.textContent;
  button.textContent = button.dataset.copied;
  setTimeout(() => { button.textContent = label; }, 1500);
}

function filterRows(text) {
  const wanted = text.trim().toLowerCase();
  for (const row of document.querySelectorAll("#people tbody tr")) {
    const who = row.querySelector(".who");
    row.hidden = !(who.textContent + " " + who.title).toLowerCase().includes(wanted);
  }
}

async function point(chart, plot, event) {
  const at = event.clientX;
  if (curve === null) {
    curve = fetch("/api/v1/metrics?points=" + chart.dataset.points).then((answer) => answer.json());
  }
  let columns;
  try {
    columns = await curve;
  } catch {
    curve = null;
    return;
  }
  const box = plot.getBoundingClientRect();
  const first = Number(chart.dataset.first);
  const span = Math.max(1, Number(chart.dataset.last) - first);
  const step = first + ((at - box.left) / box.width) * span;
  let best = -1;
  columns.step.forEach((candidate, i) => {
    if (columns.reward_mean[i] === null) return;
    if (best < 0 || Math.abs(candidate - step) < Math.abs(columns.step[best] - step)) best = i;
  });
  if (best >= 0) showPoint(plot, columns, best, ((columns.step[best] - first) / span) * 1000);
}

function showPoint(plot, columns, i, x) {
  const cursor = document.getElementById("chart-cursor");
  const tip = document.getElementById("chart-tip");
  cursor.setAttribute("visibility", "visible");
  cursor.setAttribute("x1", x);
  cursor.setAttribute("x2", x);
  const low = columns.reward_low[i];
  const band = low === null ? "" : `  (${low.toFixed(3)} – ${columns.reward_high[i].toFixed(3)})`;
  const oldest = columns.oldest_version[i];
  const newest = columns.newest_version[i];
  const versions = oldest === newest ? `version ${newest}` : `versions ${oldest}–${newest}`;
  tip.textContent =
    `step ${columns.step[i]}\nreward ${columns.reward_mean[i].toFixed(3)}${band}\n` +
    `${columns.groups[i]} groups, ${versions}`;
  tip.hidden = false;
  const left = (x / 1000) * plot.clientWidth;
  const room = left + tip.offsetWidth + 12 < plot.clientWidth;
  tip.style.left = `${Math.max(0, room ? left + 12 : left - tip.offsetWidth - 12)}px`;
}

function hidePoint() {
  const tip = document.getElementById("chart-tip");
  const cursor = document.getElementById("chart-cursor");
  if (tip) tip.hidden = true;
  if (cursor) cursor.setAttribute("visibility", "hidden");
}

enhance();
setTimeout(poll, POLL_MS);
