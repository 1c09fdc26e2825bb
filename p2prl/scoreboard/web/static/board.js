// Keeps the page up to date, searches while typing and shows points of the curve. The page works without it: everything
// was rendered and escaped on the server, and texts are only ever set as text.
"use strict";

const POLL_MS = 5000;
const SETTLE_MS = 300; // after an event: a burst of receipts redraws once
const SEARCH_MS = 250; // after the last key: one request per word, not per letter

let curve = null;
let shownTag = null;
let searchTimer = 0;
let searches = 0;
let settleTimer = 0;
let live = false;

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
  if (!live) setTimeout(poll, POLL_MS);
}

// The server says when something changed. While that connection is away the page asks by itself.
function listen() {
  if (document.body.dataset.static) return;
  const events = new EventSource("/api/v1/events");
  events.addEventListener("open", () => { live = true; });
  events.addEventListener("change", () => {
    clearTimeout(settleTimer);
    settleTimer = setTimeout(() => redraw().catch(() => {}), SETTLE_MS);
  });
  events.addEventListener("error", () => {
    if (live || events.readyState === EventSource.CLOSED) {
      live = false;
      setTimeout(poll, POLL_MS);
    }
  });
}

async function fetchPage() {
  const answer = await fetch(location.pathname + location.search, { cache: "no-cache" });
  return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
}

// Replace the whole page, and keep what the visitor typed, where the caret is and which rows are open.
async function redraw() {
  const fresh = await fetchPage();
  if (fresh === null) return;
  const field = searchField();
  const typed = field ? [field.value, field.selectionStart, document.activeElement === field] : null;
  replace("board", fresh);
  document.body.dataset.head = fresh.body.dataset.head;
  document.title = fresh.title;
  curve = null;
  enhance();
  const renewed = searchField();
  if (typed !== null && renewed !== null) {
    renewed.value = typed[0];
    if (typed[2]) {
      renewed.focus();
      renewed.setSelectionRange(typed[1], typed[1]);
    }
  }
}

function replace(id, fresh) {
  const open = Array.from(document.querySelectorAll("details[open]"), (row) => row.id);
  const node = fresh.getElementById(id);
  if (node === null) return;
  document.getElementById(id).replaceWith(document.adoptNode(node));
  for (const name of open) document.getElementById(name)?.setAttribute("open", "");
}

function searchField() {
  return document.querySelector("#find input[name=q]");
}

function enhance() {
  const copy = document.getElementById("copy-command");
  if (copy) copy.addEventListener("click", () => copyCommand(copy));
  const form = document.getElementById("find");
  if (form) {
    form.addEventListener("input", () => {
      clearTimeout(searchTimer);
      searchTimer = setTimeout(search, SEARCH_MS);
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      search();
    });
  }
  const chart = document.getElementById("chart");
  if (chart && !document.body.dataset.static) {
    const plot = chart.querySelector(".plot");
    plot.addEventListener("pointermove", (event) => point(chart, plot, event));
    plot.addEventListener("pointerleave", hidePoint);
  }
}

// Ask the server, which searches all rows. The address keeps the query, so that reloading and sharing keep it too.
async function search() {
  clearTimeout(searchTimer);
  const query = searchField().value.trim();
  const kept = new URLSearchParams(location.search);
  kept.delete("cursor");
  kept.delete("window");
  kept.delete("q");
  if (query) kept.set("q", query);
  const text = kept.toString();
  history.replaceState(null, "", text ? "/?" + text : "/");
  const asked = ++searches;
  const fresh = await fetchPage().catch(() => null);
  if (fresh === null || asked !== searches) return;
  replace("people", fresh);
  replace("validators", fresh);
}

async function copyCommand(button) {
  const field = document.getElementById("join-command");
  try {
    await navigator.clipboard.writeText(field.value);
  } catch {
    // Without https there is no clipboard API: select the text and use the older command.
    field.select();
    document.execCommand("copy");
  }
  const label = button.textContent;
  button.textContent = button.dataset.copied;
  setTimeout(() => { button.textContent = label; }, 1500);
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
  const wanted = first + ((at - box.left) / box.width) * span;
  const places = chart.dataset.axis === "time" ? columns.ended_at.map((time) => Date.parse(time)) : columns.step;
  let best = -1;
  places.forEach((candidate, i) => {
    if (columns.reward_mean[i] === null) return;
    if (best < 0 || Math.abs(candidate - wanted) < Math.abs(places[best] - wanted)) best = i;
  });
  if (best >= 0) showPoint(plot, columns, best, ((places[best] - first) / span) * 1000);
}

function showPoint(plot, columns, i, x) {
  const cursor = document.getElementById("chart-cursor");
  const tip = document.getElementById("chart-tip");
  cursor.setAttribute("visibility", "visible");
  cursor.setAttribute("x1", x);
  cursor.setAttribute("x2", x);
  const low = columns.reward_low[i];
  const band = low === null ? "" : `  (${low.toFixed(3)} – ${columns.reward_high[i].toFixed(3)})`;
  const when = columns.ended_at[i] ? `, ${columns.ended_at[i].slice(0, 16).replace("T", " ")} UTC` : "";
  const oldest = columns.oldest_version[i];
  const newest = columns.newest_version[i];
  const versions = oldest === newest ? `version ${newest.toLocaleString("en-US")}` : `versions ${oldest.toLocaleString("en-US")}–${newest.toLocaleString("en-US")}`;
  tip.textContent =
    `step ${columns.step[i].toLocaleString("en-US")}${when}\nreward ${columns.reward_mean[i].toFixed(3)}${band}\n` +
    `${columns.groups[i].toLocaleString("en-US")} groups, ${versions}`;
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
listen();
if (!document.body.dataset.static) setTimeout(poll, POLL_MS);
