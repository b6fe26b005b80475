"use strict";
// Draws nothing. Chooses which drawings are shown, plays the structures that were found, sorts tables.
(() => {
// Text is only ever set as text (never as markup): a title or a word may hold anything.
function html(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const field = (legend, ...items) => html("fieldset", {}, html("legend", {}, legend), ...items);

function check(checked, change, ...label) {
  const input = html("input", { type: "checkbox", onchange: (event) => change(event.target.checked) });
  input.checked = checked;
  return html("label", {}, input, ...label);
}

// ---------------------------------------------------------------- structures

// Shows what one player's run found at evaluation k, and says how many parts are right there.
function showFrame(player, k) {
  const steps = player.dataset.steps.split(" "), kept = Number(player.dataset.learned);
  for (const panel of all('[data-panel="learned"]', player)) {
    const { unit, noun } = panel.dataset, parts = all("[data-seen]", panel);
    for (const part of parts) {
      const found = part.dataset.seen[k] === "1", truth = part.matches(".right, .missed");
      const kind = noun !== undefined ? (found ? "plain" : "absent")
        : truth ? (found ? "right" : "missed") : (found ? "wrong" : "absent");
      part.setAttribute("class", `part ${kind}`);
    }
    const having = (kinds) => parts.filter((part) => part.matches(kinds));
    const names = having(".plain").map((part) => part.dataset.part).join(", ");
    panel.querySelector("b").textContent = k === kept ? "learned" : `step ${Number(steps[k]).toLocaleString("en")}`;
    panel.querySelector("span").textContent = noun === undefined
      ? `${having(".right").length} of ${having(".right, .missed").length} ${unit}` : noun && names ? `${noun} ${names}` : "";
  }
  // The page has what the model shows of itself for some evaluations only: the last one up to k counts.
  const models = all(".model", player);
  const shown = models.filter((model) => Number(model.dataset.frame) <= k).pop() || models[0];
  models.forEach((model) => { model.hidden = model !== shown; });
  const right = all('[data-panel="learned"] .right', player).length;
  const missed = all('[data-panel="learned"] .missed', player).length;
  return `step ${Number(steps[k]).toLocaleString("en")}${right + missed ? `: ${right} of ${right + missed} right` : ""}`;
}

function playStructures() {
  const players = all(".player");
  if (!players.length) return;
  let player = players[0], timer = null;
  const slider = html("input", { type: "range", min: 0, "aria-label": "evaluation", oninput: () => show(Number(slider.value)) });
  const output = html("output", {});
  const play = html("button", { type: "button", onclick: () => (timer ? stop() : start()) }, "Play");
  const select = html("select", { "aria-label": "run", onchange: () => open(players[select.value]) },
    ...players.map((one, k) => html("option", { value: k }, one.dataset.name)));
  player.before(html("div", { class: "controls" }, ...(players.length > 1 ? [select] : []), play, slider, output));

  function show(k) {
    slider.value = k;
    output.textContent = showFrame(player, k);
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  function start() {
    const last = Number(slider.max);
    if (Number(slider.value) >= last) show(0);
    play.textContent = "Pause";
    timer = setInterval(() => (Number(slider.value) < last ? show(Number(slider.value) + 1) : stop()), 220);
  }
  function open(one) {
    stop();
    player.hidden = true;
    player = one;
    player.hidden = false;
    slider.max = player.dataset.steps.split(" ").length - 1;
    show(Number(player.dataset.learned));
  }
  open(player);
}

// ---------------------------------------------------------------- curves

function chooseCurves() {
  const section = document.getElementById("curves");
  if (!section) return;
  const drawings = all("figure > svg", section), legend = all("#curves-legend > span");
  const view = { x: drawings.find((one) => !one.matches("[hidden]")).dataset.x, y: "suits" };
  const shown = new Set(legend.filter((one) => !one.hidden).map((one) => one.dataset.group));
  // y: "suits" leaves the choice to each chart, and so does a scale that a chart does not have.
  const redraw = () => {
    for (const figure of all("figure", section)) {
      const every = all(":scope > svg", figure), against = every.filter((one) => one.dataset.x === view.x);
      const chosen = against.find((one) => one.dataset.y === view.y) || against.find((one) => "suits" in one.dataset)
        || (figure.closest("details") && every[0]);
      every.forEach((one) => one.toggleAttribute("hidden", one !== chosen));
      figure.hidden = !chosen || !all("g[data-group]:not([hidden])", chosen).length;
    }
    document.getElementById("curves-none").hidden = all("#curves-main figure").some((figure) => !figure.hidden);
  };
  const radio = (key, names) => Object.entries(names).map(([value, label]) => {
    const input = html("input", { type: "radio", name: key, value, onchange: () => { view[key] = value; redraw(); } });
    input.checked = value === view[key];
    return html("label", {}, input, label);
  });
  const has = (key, value) => drawings.some((one) => one.dataset[key] === value);
  const axes = Object.entries({ step: "step", evaluations: "evaluations", seconds: "time" }).filter(([axis]) => has("x", axis));
  const controls = document.getElementById("curves-controls");
  if (axes.length > 1) controls.append(field("against", ...radio("x", Object.fromEntries(axes))));
  if (has("y", "log") && has("y", "linear")) {
    controls.append(field("up", ...radio("y", { suits: "as suits", linear: "linear", log: "log" })));
  }
  if (!legend.length) return;
  const turn = (group, on) => {
    shown[on ? "add" : "delete"](group);
    all(`#curves g[data-group="${group}"]`).forEach((one) => one.toggleAttribute("hidden", !on));
  };
  const boxes = legend.map((one) => check(shown.has(one.dataset.group),
    (on) => { turn(one.dataset.group, on); redraw(); }, ...one.childNodes));
  const every = (label, on) => html("button", { type: "button", onclick: () => {
    legend.forEach((one) => turn(one.dataset.group, on));
    boxes.forEach((box) => { box.querySelector("input").checked = on; });
    redraw();
  } }, label);
  document.getElementById("curves-legend").replaceWith(
    html("div", { class: "controls", id: "curves-groups" }, field("shown", every("all", true), every("none", false), ...boxes)));
}

// ---------------------------------------------------------------- tables

// Sorts the rows of a table by the column whose head was clicked.
function sortable(table) {
  const body = table.tBodies[0], rows = [...body.rows];
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const cellOf = (row, c) => ({ text: row.cells[c].textContent, value: row.cells[c].dataset.value });
  const order = (a, b) => (a.value !== undefined && b.value !== undefined ? Number(a.value) - Number(b.value) || 0
    : a.text.localeCompare(b.text, "en", { numeric: true }));
  function sort(c) {
    const down = heads[c].getAttribute("aria-sort") === "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[c].setAttribute("aria-sort", down ? "descending" : "ascending");
    // What has no number in a column of numbers stays at the end, whichever way it is sorted; then what is empty.
    const numbers = rows.some((row) => cellOf(row, c).value !== undefined);
    const last = ({ text, value }) => (text === "–" ? 2 : numbers && (value === undefined || value === "Infinity") ? 1 : 0);
    const cells = new Map(rows.map((row) => [row, cellOf(row, c)]));
    body.append(...[...rows].sort((a, b) => (last(cells.get(a)) - last(cells.get(b)))
      || order(cells.get(a), cells.get(b)) * (down ? -1 : 1)));
  }
  heads.forEach((head, c) => head.replaceChildren(
    html("button", { type: "button", onclick: () => sort(c) }, head.textContent)));
}

function sortTables() {
  all("table.sortable").forEach(sortable);
  for (const place of all(".matrix")) {
    const table = place.querySelector("table");
    const only = check(false, (on) => table.classList.toggle("only-differing", on), "only what differs (≠)");
    if (table.querySelector(".differs")) place.prepend(html("div", { class: "controls" }, only));
  }
}

// Says above a table that there is more of it than is seen.
function hintAtMore() {
  for (const box of all(".scroll")) {
    const hint = html("p", { class: "hint", hidden: "" });
    box.before(hint);
    const look = () => {
      const across = box.scrollWidth > box.clientWidth + 2, down = box.scrollHeight > box.clientHeight + 2;
      hint.hidden = !(across || down);
      hint.textContent = `scroll for more ${[across && "columns →", down && "rows ↓"].filter(Boolean).join(" and ")}`;
    };
    new ResizeObserver(look).observe(box);
  }
}

// ---------------------------------------------------------------- contents

// What the address names is unfolded; a browser opens what is around it, not what is in it.
function unfoldTarget() {
  const open = () => {
    const part = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const folded = part && part.querySelector(":scope > details.part");
    if (folded) folded.open = true;
  };
  addEventListener("hashchange", open);
  all("nav a").forEach((link) => link.addEventListener("click", () => setTimeout(open)));
  open();
}

// One part that fails must not take the others with it; the console still hears of it.
for (const start of [playStructures, chooseCurves, sortTables, hintAtMore, unfoldTarget]) {
  try {
    start();
  } catch (error) {
    reportError(error);
  }
}
})();
