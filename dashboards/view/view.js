// Follows a run and asks queries. What the server sends as HTML is its own templates' output; answers are put in as text.
"use strict";

const find = (id) => document.getElementById(id);
const seen = { runs: document.body.dataset.runs, report: document.body.dataset.report };
const RETRY_S = 5;
const LONG = 60; // characters of a cell that are broken into lines

class Refused extends Error {}

const runShown = () => find("report").dataset.run;
const generationShown = () => find("generation")?.value ?? "";

function say(text) {
  if (find("status").textContent !== text) find("status").textContent = text;
}

// The answer to a request; a Refused with the server's words if it says no.
async function request(path, parameters = {}, options = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value);
  const query = new URLSearchParams(given).toString();
  const answer = await fetch(query ? `${path}?${query}` : path, { cache: "no-store", ...options });
  if (!answer.ok) throw new Refused((await answer.json().catch(() => ({}))).error ?? `the server says ${answer.status}`);
  return answer;
}

// --- Taking over what has changed, so that focus, scroll, open tables and chosen values stay as they are.

const keyOf = (node) =>
  node.id || node.dataset?.key || (node.nodeName === "FIGURE" && node.querySelector("figcaption").textContent) || null;

function changeInto(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.nodeName === "svg") {
    old.replaceWith(document.importNode(fresh, true));
    return;
  }
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  changeChildren(old, fresh);
}

function changeChildren(old, fresh) {
  const keyed = new Map([...old.children].map((child) => [keyOf(child), child]));
  let place = old.firstChild;
  for (const child of fresh.childNodes) {
    const key = keyOf(child);
    let match = null;
    if (key !== null) match = keyed.get(key) ?? null;
    else if (place !== null && keyOf(place) === null) match = place;
    if (match === null || match.nodeName !== child.nodeName) {
      old.insertBefore(document.importNode(child, true), place);
      continue;
    }
    if (match === place) place = place.nextSibling;
    else old.insertBefore(match, place);
    changeInto(match, child);
  }
  while (place !== null) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

async function takeOver(path, id, parameters) {
  const answer = await request(path, parameters);
  const text = await answer.text();
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById(id);
  changeInto(find(id), fresh);
  return answer.headers.get("ETag");
}

async function updateReport() {
  const before = runShown();
  seen.report = await takeOver("/report", "report", { run: before, generation: generationShown() });
  if (before !== runShown()) document.title = `roundscope: ${runShown()}`;
}

// --- Following

const visible = () =>
  document.hidden && new Promise((go) => document.addEventListener("visibilitychange", go, { once: true }));

async function follow() {
  let waitS = RETRY_S;
  try {
    const changes = await (await request("/changes", { run: runShown(), report: seen.report })).json();
    waitS = changes.wait_s;
    if (changes.runs !== seen.runs) seen.runs = await takeOver("/runs", "runs", { run: runShown() });
    if (changes.report !== seen.report) await updateReport();
    say("");
  } catch (problem) {
    say(problem instanceof Refused ? problem.message : "The server does not answer: is `roundscope view` still going on?");
  }
  setTimeout(async () => {
    await visible();
    follow();
  }, waitS * 1000);
}

document.addEventListener("change", async (event) => {
  if (event.target.id !== "generation") return;
  const address = new URL(location);
  address.searchParams.set("run", runShown());
  if (event.target.value) address.searchParams.set("generation", event.target.value);
  else address.searchParams.delete("generation");
  history.replaceState(null, "", address);
  try {
    await updateReport();
    say("");
  } catch (problem) {
    say(problem.message);
  }
});

// --- Asking. What was typed is kept for each query as long as the tab is open.

const kept = (name) => `roundscope ${name}`;
const query = find("query");
const sql = find("sql");
let original = sql.defaultValue;

async function choose() {
  const chosen = query.value;
  const before = sql.value;
  try {
    const found = await (await request("/query", { name: chosen })).json();
    if (query.value !== chosen) return;
    original = found.sql;
    if (sql.value === before) sql.value = sessionStorage.getItem(kept(chosen)) ?? original; // else: typed meanwhile
    find("asks").textContent = found.question;
    say("");
  } catch (problem) {
    say(problem.message);
  }
}

function keep() {
  if (sql.value === original) sessionStorage.removeItem(kept(query.value));
  else sessionStorage.setItem(kept(query.value), sql.value);
}

const element = (name, text = "", attributes = {}) => {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

function makeTable(answer) {
  const n = answer.rows.length;
  const caption = `${n.toLocaleString("en")} ${n === 1 ? "row" : "rows"} in ${answer.seconds.toPrecision(2)} s`;
  const box = element("div", "", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Rows of the query" });
  const table = element("table");
  const side = (i, cell = "") => ({ class: answer.numbers[i] ? "number" : cell.length > LONG ? "long" : "" });
  const head = element("tr");
  head.append(...answer.columns.map((name, i) => element("th", name, { scope: "col", ...side(i) })));
  const body = element("tbody");
  for (const cells of answer.rows) {
    const row = element("tr");
    row.append(...cells.map((cell, i) => element("td", cell, side(i, cell))));
    body.append(row);
  }
  const top = element("thead");
  top.append(head);
  table.append(element("caption", caption), top, body);
  box.append(table);
  return box;
}

async function ask() {
  const button = find("run");
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  find("answer").replaceChildren(element("p", "Asking …"));
  try {
    const body = JSON.stringify({ sql: sql.value, run: runShown() || null });
    const headers = { "Content-Type": "application/json" };
    const answer = await (await request("/ask", {}, { method: "POST", headers, body })).json();
    if (answer.error) throw new Refused(answer.error);
    find("answer").replaceChildren(...answer.notes.map((note) => element("p", note)), makeTable(answer));
  } catch (problem) {
    find("answer").replaceChildren(element("p", problem.message, { class: "warning" }));
  }
  button.removeAttribute("aria-disabled");
}

query.addEventListener("change", choose);
sql.addEventListener("input", keep);
sql.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
});
find("question").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
find("original").addEventListener("click", () => {
  sql.value = original;
  keep();
});

// A browser may have kept the choice of an earlier visit.
if (query.value === query.querySelector("[selected]").value) sql.value = sessionStorage.getItem(kept(query.value)) ?? original;
else choose();
follow();
