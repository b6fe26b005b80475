"use strict";
// Makes a page that can be read as it is one to choose in: structures over time, curves as one likes, sorted tables.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// Text is only ever set as text (never as markup): a title or a word may hold anything.
function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}
const html = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const range = (n) => Array.from({ length: n }, (_, k) => k);
const round = (x) => Math.round(x * 100) / 100;

// Seven colours and four dashes: 28 groups before two look alike, and dashes help where colours do not.
const DASHES = ["", "8 4", "2 3", "10 3 2 3"];
const lookOf = (k) => data.groups[k].look;
const look = (k) => ({ stroke: `var(--c${lookOf(k) % 7})`, "stroke-dasharray": DASHES[lookOf(k) % 4] || null });
const swatch = (k) => svg("svg", { class: "swatch", viewBox: "0 0 30 12", "aria-hidden": "true" },
  svg("line", { x1: 1, x2: 29, y1: 6, y2: 6, "stroke-width": 2.5, ...look(k) }));

function check(label, checked, change, ...before) {
  const input = html("input", { type: "checkbox", onchange: (event) => change(event.target.checked) });
  input.checked = checked;
  return html("label", {}, input, ...before, label);
}

// ---------------------------------------------------------------- structures

const DRAWINGS = {
  SpanningTree: { unit: "edge", draw: drawGraph },
  ProjectiveTree: { unit: "arc", draw: drawArcs, stacked: true },
  NonProjectiveTree: { unit: "arc", draw: drawArcs, stacked: true },
  KSubset: { unit: "item", draw: drawCells, stacked: true },
  Categorical: { unit: "class", noun: "category", draw: drawCells, stacked: true },
  Permutation: { unit: "place", draw: drawCells },
};
// Subsets of the pairs of particles are drawn as the graphs they are.
const drawingOf = ({ structure, options, nodes }) => (nodes ? DRAWINGS.SpanningTree : DRAWINGS[structure])
  || { unit: "part", draw: drawCells, stacked: (options.shape || [0]).length === 1 };

// Each part with its mark. Missed ones come first, so that what was chosen is drawn over them.
function compare(truth, chosen) {
  const keys = (parts) => new Set(parts.map(String));
  if (!truth) return chosen.map((part) => ({ part, mark: "plain" }));
  const [wanted, had] = [keys(truth), keys(chosen)];
  return [
    ...truth.filter((part) => !had.has(String(part))).map((part) => ({ part, mark: "missed" })),
    ...chosen.map((part) => ({ part, mark: wanted.has(String(part)) ? "right" : "wrong" })),
  ];
}

const countRight = (truth, chosen) => compare(truth, chosen).filter(({ mark }) => mark === "right").length;

const structureSvg = (width, height, kind, ...children) => svg("svg", {
  class: `structure ${kind}`, viewBox: `0 0 ${round(width)} ${round(height)}`, width: round(width),
  height: round(height), role: "img", "data-figure": "structure" }, ...children);

// Edge e of the undirected edges in triu order (i < j, row by row).
function edgeNodes(e, n) {
  let i = 0;
  for (; e >= n - 1 - i; i++) e -= n - 1 - i;
  return [i, i + 1 + e];
}

function drawGraph(scene, example, marks) {
  const paths = (scene.drawing.paths || [])[example];
  const n = scene.nodes || scene.options.num_nodes || (paths ? paths.length : 2);
  const size = 150, pad = 16;
  const angle = (k) => 2 * Math.PI * k / n - Math.PI / 2;
  const trails = paths || range(n).map((k) => [[Math.cos(angle(k)), Math.sin(angle(k))]]);
  const ends = trails.map((trail) => trail[trail.length - 1]);
  const xs = trails.flat().map((p) => p[0]), ys = trails.flat().map((p) => p[1]);
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  const [width, height] = [Math.max(...xs) - left, Math.max(...ys) - top];
  const scale = (size - 2 * pad) / (Math.max(width, height) || 1);
  const place = ([x, y]) => [x - left - width / 2, y - top - height / 2].map((v) => round(size / 2 + v * scale));
  const nodes = ends.map(place);
  return structureSvg(size, size, "graph",
    // The older a stretch of the paths, the fainter.
    ...range(trails[0].length - 1).map((s) => svg("path", { class: "trail",
      opacity: round(0.12 + 0.7 * (s + 1) / (trails[0].length - 1)),
      d: trails.map((trail) => `M${place(trail[s]).join(" ")}L${place(trail[s + 1]).join(" ")}`).join("") })),
    ...marks.map(({ part, mark }) => {
      const [a, b] = edgeNodes(part[0], n).map((k) => nodes[k] || [0, 0]);
      return svg("line", { class: `edge ${mark}`, x1: a[0], y1: a[1], x2: b[0], y2: b[1], "data-part": String(part) });
    }),
    ...nodes.map(([x, y]) => svg("circle", { class: "dot", cx: x, cy: y, r: 4.2 })));
}

function drawArcs(scene, example, marks, everything) {
  const given = (scene.drawing.words || scene.drawing.labels || [])[example];
  const last = Math.max(1, ...everything.flat());
  const words = ["root", ...(given || range(last).map((k) => String(k + 1)))];
  const gap = 7, widths = words.map((word) => Math.max(30, 7 * word.length + gap));
  const x = words.map((_, k) => widths.slice(0, k).reduce((a, b) => a + b, 0) + widths[k] / 2);
  const height = (a, b) => 10 + 13 * Math.min(7, Math.abs(a - b));
  const top = round(Math.max(...everything.map(([h, d]) => height(h, d)), 20) * 0.78 + 8);
  const arcs = marks.flatMap(({ part, mark }) => {
    const [head, dependent] = part, up = round(top - height(head, dependent));
    const [a, b] = [round(x[head]), round(x[dependent] - 3 * Math.sign(dependent - head))];
    const line = `M${a} ${top} C${a} ${up} ${b} ${up} ${b} ${top - 4}`;
    return [
      svg("path", { class: `edge ${mark}`, d: line, "data-part": String(part) }),
      svg("path", { class: `tip ${mark}`, d: `M${b} ${top}l-3 -6h6z` }),
    ];
  });
  return structureSvg(x[x.length - 1] + widths[words.length - 1] / 2, top + 20, "arc", ...arcs,
    ...words.map((word, k) => svg("text", { class: "word", x: round(x[k]), y: top + 14 }, word)));
}

// Rows of cells: one row for one index (wrapped), a grid for two, leading axes as rows for more.
function drawCells(scene, example, marks, everything) {
  const { shape: given, size: side, num_items: items, num_classes: classes } = scene.options;
  const seen = range((everything[0] || [0]).length).map((axis) => 1 + Math.max(0, ...everything.map((part) => part[axis])));
  const shape = given || (side && [side, side]) || ((items || classes) && [items || classes]) || seen;
  const total = shape.reduce((a, b) => a * b, 1);
  const columns = shape.length === 1 ? Math.min(20, total) : shape[shape.length - 1];
  const cell = shape.length === 1 ? 22 : Math.max(5, Math.min(22, 150 / columns));
  const inner = round(cell - (cell > 10 ? 4 : 1));
  const flat = (part) => part.reduce((index, k, axis) => index * shape[axis] + k, 0);
  const at = (index) => [round((index % columns) * cell + 2), round(Math.floor(index / columns) * cell + 2)];
  const box = (index, more) => {
    const [x, y] = at(index);
    return svg("rect", { x, y, width: inner, height: inner, rx: cell > 10 ? 3 : 0, ...more });
  };
  const cross = (index) => {
    const [x, y] = at(index), a = round(inner * 0.3), b = round(inner * 0.4);
    return svg("path", { class: "cross", d: `M${x + a} ${y + a}l${b} ${b}m0 ${-b}l${-b} ${b}` });
  };
  return structureSvg(columns * cell + 4, Math.ceil(total / columns) * cell + 4, "cells",
    ...range(total).map((index) => box(index, { class: "cell" })),
    ...marks.map(({ part, mark }) => box(flat(part), { class: `cell ${mark}`, "data-part": String(part) })),
    ...marks.filter(({ mark }) => mark === "wrong").map(({ part }) => cross(flat(part))));
}

// Rows of digits from 0 (paper) to full (ink). One canvas pixel each; the style makes them larger.
function drawImage(rows, full, figure, label) {
  const [width, height] = [rows[0].length, rows.length];
  const canvas = html("canvas", { class: "image", width, height, role: "img", "aria-label": label, "data-figure": figure });
  const context = canvas.getContext("2d"), pixels = context.createImageData(width, height);
  [...rows.join("")].forEach((digit, k) => { pixels.data[4 * k + 3] = 255 * parseInt(digit, 16) / full; });
  context.putImageData(pixels, 0, 0);
  return canvas;
}

// What the model shows of itself. The page has that for some evaluations only: the last one up to k counts.
function drawModel({ illustrations, steps, maps }, k, noun) {
  if (!illustrations.length) return [];
  const { frame, prototypes, samples } = illustrations.filter((shown) => shown.frame <= k).pop() || illustrations[0];
  const at = `step ${steps[frame].toLocaleString("en")}`;
  const members = (c) => maps[k].filter((parts) => parts.some((part) => part[0] === c)).length;
  const say = (n) => (n ? `${n} example${n > 1 ? "s" : ""}` : "no example");
  const block = (title, note, figures) => (figures.length
    ? [html("h3", {}, title), html("p", { class: "note" }, note), html("div", { class: "images" }, ...figures)] : []);
  return [
    ...block(`What each ${noun} decodes to`,
      `The probability of each pixel at ${at}, and how many of the ${maps[k].length} examples below have that ${noun}.`,
      prototypes.map((rows, c) => html("figure", { "data-class": c, class: members(c) ? null : "unused" },
        drawImage(rows, 15, "prototype", `what ${noun} ${c} decodes to at ${at}`),
        html("figcaption", {}, html("b", {}, `${noun} ${c}`), html("br"), say(members(c)))))),
    ...block("Samples from the model", `At ${at}: a ${noun} at random, then each pixel at random. All steps share the same draws.`,
      samples.map((rows, s) => html("figure", {}, drawImage(rows, 15, "sample", `sample ${s + 1} at ${at}`)))),
  ];
}

function drawLegend({ unit, draw }, truth) {
  const example = (mark) => (draw === drawCells
    ? svg("rect", { class: `cell ${mark}`, x: 9, y: 1, width: 10, height: 10, rx: 2 })
    : svg("line", { class: `edge ${mark}`, x1: 2, x2: 28, y1: 6, y2: 6 }));
  const texts = truth ? { right: `right ${unit}`, wrong: `wrong ${unit} (dashed)`, missed: `missed ${unit} (thin)` } : {};
  $("structures-legend").replaceChildren(...Object.entries(texts).map(([mark, text]) => html("span", {},
    svg("svg", { class: "swatch", viewBox: "0 0 30 12", "aria-hidden": "true" }, example(mark)), text)));
}

// The cards of one run: true, first and learned beside each other. Returns what redraws the last of
// the three (and the model itself) at another evaluation, and says how many parts are right there.
function drawCards({ structures: found }, model) {
  const scene = data.scenes[found.scene], truth = scene.true, kind = drawingOf(scene);
  const noun = kind.noun || "structure", images = scene.drawing.images || [];
  const chosen = (k, example) => found.maps[k][example] || [];
  const figure = (example, panel, title, parts) => {
    const wanted = truth && truth[example];
    const marks = panel === "true" ? parts.map((part) => ({ part, mark: "true" })) : compare(wanted, parts);
    // Every panel of an example has the same size: it depends on all parts ever seen in it.
    const everything = [...(wanted || []), ...found.maps.flatMap((map) => map[example] || [])];
    const drawing = kind.draw(scene, example, marks, everything);
    const named = kind.noun && parts.length ? `${noun} ${parts.join(", ")}` : "";
    const counted = () => `${countRight(wanted, parts)} of ${wanted.length} ${kind.unit}${wanted.length === 1 ? "" : "s"}`;
    const text = panel === "true" ? "" : wanted ? counted() : named;
    drawing.setAttribute("aria-label", `example ${example + 1}, ${title} ${text}`);
    return html("figure", { "data-panel": panel }, drawing, html("figcaption", {}, html("b", {}, title), html("br"), text));
  };
  const learned = (example, k) =>
    figure(example, "learned", k === found.learned ? "learned" : `step ${found.steps[k]}`, chosen(k, example));
  const first = found.steps[0] === 0 ? found.start : `step ${found.steps[0]}`;
  const cards = range(found.maps[0].length).map((example) => html("div", { class: "card", "data-example": example },
    html("h3", {}, `example ${example + 1}`), html("div", { class: "example" },
      images[example] ? drawImage(images[example], 1, "image", `example ${example + 1}`) : null,
      html("div", { class: "panels" },
        truth ? figure(example, "true", "true", truth[example]) : null,
        figure(example, "untrained", first, chosen(0, example)), learned(example, found.learned)))));
  // Sentences that would not fit into half a page get all of it.
  const broad = kind.draw === drawArcs && found.maps[0].some((arcs) => arcs.length > 11);
  $("structures-cards").className = `cards${kind.stacked ? " stacked" : ""}${images.length ? " pictured" : ""}${broad ? " broad" : ""}`;
  $("structures-cards").replaceChildren(...cards);
  $("structures-note").textContent = `${truth ? "The truth, what" : "What"} the ${found.start === "start" ? "model that training starts from" : "untrained model"} finds, and what it finds `
    + `after training: the most likely ${noun} of each example.`
    + ((scene.drawing.paths || []).length ? " Dots are where the particles end; lines fade back in time." : "");
  drawLegend(kind, truth);
  return (k) => {
    cards.forEach((card, example) => card.querySelector('[data-panel="learned"]').replaceWith(learned(example, k)));
    model.replaceChildren(...drawModel(found, k, noun));
    const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
    const right = truth && sum(truth.map((parts, example) => countRight(parts, chosen(k, example))));
    return `step ${found.steps[k].toLocaleString("en")}`
      + (truth ? `: ${right} of ${sum(truth.map((parts) => parts.length))} right` : "");
  };
}

function drawStructures() {
  const runs = data.runs.filter((run) => run.structures);
  if (!runs.length) return;
  $("structures").hidden = false;
  if (data.groups.length === 1 && $("trajectories")) $("trajectories").hidden = true; // the same, over time
  let redraw, timer = null;
  const model = html("div", { class: "model" });
  $("structures-cards").before(model);
  const slider = html("input", { type: "range", min: 0, "aria-label": "evaluation", oninput: () => show(Number(slider.value)) });
  const output = html("output");
  const play = html("button", { type: "button", onclick: () => (timer ? stop() : start()) }, "Play");
  const select = html("select", { "aria-label": "run", onchange: () => open(runs[select.value]) },
    ...runs.map((run, k) => html("option", { value: k },
      `${data.groups[run.group].label}: ${run.seed === null ? run.name : `seed ${run.seed}`}`)));
  $("structures-controls").append(...(runs.length > 1 ? [select] : []), play, slider, output);

  function show(k) {
    slider.value = k;
    output.textContent = redraw(k);
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
  function open(run) {
    stop();
    redraw = drawCards(run, model);
    slider.max = run.structures.steps.length - 1;
    show(run.structures.learned);
  }
  open(runs[0]);
}

// ---------------------------------------------------------------- curves

// y: "suits" leaves the choice to each chart.
const view = { x: data.view.x, logX: data.view.logX, y: "suits", singles: false, shown: new Set(data.view.shown) };
const isLog = (chart) => (view.y === "suits" ? chart.log : view.y === "log");
const known = (value) => value !== null;

// Short for ticks (15 k), in full for the read-out (14,982).
function short(value) {
  const size = Math.abs(value);
  if (size >= 1e12) return value.toExponential().replace("e+", "e");
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return `${Number((value / unit).toPrecision(4))} ${name}`;
  }
  return size > 0 && size < 1e-3 ? value.toExponential() : String(Number(value.toPrecision(4)));
}
const full = (value) => value.toLocaleString("en", { maximumSignificantDigits: Number.isInteger(value) ? 12 : 4 });

function ticks(low, high, log, sign = 1) {
  if (log && sign < 0) return ticks(-high, -low, true).map((tick) => -tick).reverse();
  if (log) {
    const [first, last] = [low, high].map((v) => Math.floor(Math.log10(v)));
    const inside = last - first > 3 ? [1] : [1, 2, 5], every = Math.ceil((last - first + 1) / 8);
    const whole = range(last - first + 1).map((k) => first + k).filter((k) => k % every === 0);
    const marks = whole.flatMap((k) => inside.map((m) => Number(`${m}e${k}`)));
    const seen = marks.filter((mark) => mark >= low && mark <= high);
    if (seen.length > 2) return seen;
  }
  const rough = (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((m) => m * power >= rough * 0.999) * power;
  const first = Math.ceil(low / step - 1e-9);
  return range(Math.floor(high / step + 1e-9) - first + 1).map((k) => Number(((first + k) * step).toPrecision(12)));
}

// From values to pixels (and back), with some room at both ends. A logarithmic scale of negative
// values (sign -1) is that of their sizes, turned round.
function scaleOf(values, log, from, to, margin, sign = 1) {
  const [warp, back] = log ? [(v) => sign * Math.log(sign * v), (w) => sign * Math.exp(sign * w)] : [(v) => v, (v) => v];
  let [a, b] = [Math.min, Math.max].map((pick) => warp(values.reduce((x, y) => pick(x, y))));
  const room = a === b ? Math.abs(a) * 0.1 || 1 : (b - a) * margin;
  [a, b] = [a - room, b + room];
  const scale = (value) => round(from + (warp(value) - a) / (b - a) * (to - from));
  return Object.assign(scale, { low: back(a), high: back(b), back: (pixel) => back(a + (pixel - from) / (to - from) * (b - a)) });
}

// A curve at x, straight between its points; null outside them and beside a value that was not finite.
function interpolate(curve, x) {
  const { xs, ys } = curve;
  if (x < xs[0] || x > xs[xs.length - 1]) return null;
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  if (x === xs[high]) return ys[high];
  if (x === xs[low]) return ys[low];
  if (ys[low] === null || ys[high] === null) return null;
  return ys[low] + (ys[high] - ys[low]) * (x - xs[low]) / (xs[high] - xs[low]);
}

function curveOf(run, chart, metric) {
  const curve = run.curves[chart.split];
  if (!curve || !curve.y[metric]) return null;
  // A logarithmic axis has no place for the untrained model.
  const xs = curve.x[view.x], begun = (k) => xs[k] > 0 && curve.x.evaluations[k] !== 0;
  const keep = range(xs.length).filter((k) => xs[k] !== null && (!view.logX || begun(k)));
  const value = (y) => (y === null || (isLog(chart) && y * chart.sign <= 0) ? null : y);
  return keep.length ? { steps: keep.map((k) => curve.x.step[k]), xs: keep.map((k) => xs[k]),
    ys: keep.map((k) => value(curve.y[metric][k])) } : null;
}

// Mean and band of a group. Several runs are compared step by step, whatever time a step took in
// each, and only at steps that all of them have: the mean never jumps because one of them ended.
function seriesOf(k, chart) {
  const runs = data.runs.filter((run) => run.group === k && curveOf(run, chart, chart.metric));
  const singles = runs.map((run) => curveOf(run, chart, chart.metric));
  if (!singles.length) return null;
  if (singles.length === 1) {
    const { xs, ys } = singles[0], spread = chart.spread && curveOf(runs[0], chart, chart.spread);
    const shift = (sign) => spread && ys.map((y, i) => {
      const end = y === null || spread.ys[i] === null ? null : y + sign * spread.ys[i];
      return isLog(chart) && end * chart.sign <= 0 ? null : end;
    });
    return { k, singles, xs, mean: ys, low: shift(-1), high: shift(1) };
  }
  const places = singles.map((curve) => new Map(curve.steps.map((step, i) => [step, i])));
  const steps = singles[0].steps.filter((step) => places.every((place) => place.has(step)));
  const average = (values) => values.reduce((a, b) => a + b) / values.length;
  const at = (step, key) => singles.map((curve, i) => curve[key][places[i].get(step)]);
  const columns = steps.map((step) => at(step, "ys")), xs = steps.map((step) => average(at(step, "xs")));
  const over = (reduce) => columns.map((values) => (values.every(known) ? reduce(values) : null));
  const mean = over(average);
  return { k, singles, xs, mean, low: over((values) => Math.min(...values)), high: over((values) => Math.max(...values)) };
}

// A line with a gap wherever a value is missing.
const linePath = (xs, ys, X, Y) => xs.map((x, i) =>
  (ys[i] === null ? "" : `${i && ys[i - 1] !== null ? "L" : "M"}${X(x)} ${Y(ys[i])}`)).join("");

function bandPath({ xs, low, high }, X, Y) {
  const stretches = [[]];
  xs.forEach((_, i) => (low[i] !== null && high[i] !== null ? stretches[stretches.length - 1].push(i) : stretches.push([])));
  const side = (stretch, ys) => stretch.map((i) => `${X(xs[i])} ${Y(ys[i])}`).join("L");
  return stretches.filter((stretch) => stretch.length > 1)
    .map((stretch) => `M${side(stretch, high)}L${side([...stretch].reverse(), low)}Z`).join("");
}

function axisUnit(xs) {
  if (view.x !== "seconds") return [1, data.view.names[view.x]];
  const longest = xs.reduce((a, b) => Math.max(a, b));
  return longest > 7200 ? [3600, "hours"] : longest > 180 ? [60, "minutes"] : [1, "seconds"];
}

function drawAxes(box, X, Y, unit, name, chart) {
  const marks = ticks(X.low / unit, X.high / unit, view.logX), every = Math.ceil(marks.length / (box.right < 400 ? 5 : 9));
  const text = (x, y, anchor, content) => svg("text", { class: "axis", x, y, "text-anchor": anchor }, content);
  return [
    ...ticks(Y.low, Y.high, isLog(chart), chart.sign).flatMap((t) => [
      svg("line", { class: "grid", x1: box.left, x2: box.right, y1: Y(t), y2: Y(t) }),
      text(box.left - 8, Y(t) + 4, "end", short(t))]),
    ...marks.filter((_, i) => i % every === 0).map((t) => text(X(t * unit), box.bottom + 17, "middle", short(t))),
    text((box.left + box.right) / 2, box.bottom + 36, "middle", name + (view.logX ? " (log)" : "")),
  ];
}

function drawSeries(s, X, Y) {
  const colour = `var(--c${lookOf(s.k) % 7})`;
  const dots = s.xs.length <= 25 ? range(s.xs.length).filter((i) => s.mean[i] !== null) : [];
  return [
    s.low && svg("path", { class: "band", fill: colour, d: bandPath(s, X, Y) }),
    ...(view.singles && s.singles.length > 1 ? s.singles : []).map(({ xs, ys }) =>
      svg("path", { class: "single", stroke: colour, d: linePath(xs, ys, X, Y) })),
    svg("path", { class: "mean", ...look(s.k), d: linePath(s.xs, s.mean, X, Y), "data-group": s.k }),
    ...dots.map((i) => svg("circle", { cx: X(s.xs[i]), cy: Y(s.mean[i]), r: 2.4, fill: colour })),
  ];
}

function caption(series, chart) {
  const several = series.some((s) => s.singles.length > 1), alone = series.some((s) => s.singles.length === 1 && s.low);
  return [
    several ? "Line: mean of the runs, up to the last step that all have. Band: smallest to largest of them." : "",
    chart.note,
    alone ? `${several ? "One run alone, band" : "Band"}: ± one standard deviation, as the run noted it (${chart.spread}).` : "",
  ].join(" ");
}

function drawChart(chart, figure) {
  const drawn = chart.groups.filter((k) => view.shown.has(k)), log = isLog(chart);
  const series = drawn.map((k) => seriesOf(k, chart)).filter(known);
  const shown = drawn.flatMap((k) => Object.entries(chart.references[k])).filter(([, value]) => !log || value * chart.sign > 0);
  const marks = [...new Map(shown.map(([label, value]) => [`${label} ${value}`, { label, value }])).values()]
    .sort((a, b) => b.value - a.value);
  const lines = series.flatMap((s) => [s.mean, s.low || [], s.high || [], ...(view.singles ? s.singles.map((c) => c.ys) : [])]);
  const xs = series.flatMap((s) => [...s.xs, ...(view.singles ? s.singles.flatMap((c) => c.xs) : [])]), ys = lines.flat().filter(known);
  figure.hidden = !ys.length;
  if (!ys.length) return;

  const width = Math.max(280, figure.clientWidth || 520), height = Math.round(Math.min(320, Math.max(230, width * 0.56)));
  const box = { left: 58, right: width - 20, top: 12, bottom: height - 42 };
  const X = scaleOf(view.logX ? xs : [0, ...xs], view.logX, box.left, box.right, 0);
  const Y = scaleOf([...ys, ...marks.map((m) => m.value)], log, box.bottom, box.top, 0.05, chart.sign);
  const [unit, name] = axisUnit(xs);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
    "data-figure": "curve", "data-chart": `${chart.split}-${chart.metric}`,
    "aria-label": `${chart.label} against ${name}; arrow keys move the read-out` },
    ...drawAxes(box, X, Y, unit, name, chart),
    ...marks.map((m) => svg("line", { class: "reference", x1: box.left, x2: box.right, y1: Y(m.value), y2: Y(m.value) })),
    ...series.flatMap((s) => drawSeries(s, X, Y)),
    // Above its line, or below it where the one above is too near.
    ...marks.map((m, i) => svg("text", { class: "axis halo", x: box.right, "text-anchor": "end",
      y: Y(m.value) + (i && Y(m.value) - Y(marks[i - 1].value) < 14 ? 12 : -5) }, m.label)));
  const readout = html("div", { class: "readout", hidden: true });
  figure.replaceChildren(html("h3", {}, chart.label), drawing, readout, html("figcaption", {}, caption(series, chart)));
  readOut(drawing, readout, series, { X, box, width, unit, name });
}

// The values under the pointer, or under a cursor that the arrow keys move.
function readOut(drawing, readout, series, { X, box, width, unit, name }) {
  const grid = [...new Set(series.flatMap((s) => s.xs))].sort((a, b) => a - b);
  const cursor = svg("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
  drawing.append(cursor);
  let at = grid.length - 1;
  const line = (s) => {
    const [mean, low, high] = [s.mean, s.low, s.high].map((ys) => (ys ? interpolate({ xs: s.xs, ys }, grid[at]) : null));
    const band = low === null || high === null ? "" : ` (${full(low)} to ${full(high)})`;
    const text = mean === null ? "no value" : full(mean) + band;
    return html("div", {}, swatch(s.k), series.length > 1 ? `${data.groups[s.k].label}: ${text}` : text);
  };
  const hide = () => {
    readout.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  };
  const show = (i) => {
    at = Math.max(0, Math.min(grid.length - 1, i));
    const x = X(grid[at]), factor = drawing.clientWidth / width, right = x > (box.left + box.right) / 2;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x);
    cursor.setAttribute("visibility", "visible");
    readout.replaceChildren(html("b", {}, `${name} ${full(grid[at] / unit)}`), ...series.map(line));
    readout.hidden = false;
    readout.style.left = right ? "" : `${x * factor + 12}px`;
    readout.style.right = right ? `${(width - x) * factor + 12}px` : "";
  };
  drawing.addEventListener("pointermove", (event) => {
    const bounds = drawing.getBoundingClientRect(), x = X.back((event.clientX - bounds.left) * width / bounds.width);
    show(grid.reduce((best, value, i) => (Math.abs(X(value) - X(x)) < Math.abs(X(grid[best]) - X(x)) ? i : best), 0));
  });
  drawing.addEventListener("pointerleave", hide);
  drawing.addEventListener("blur", hide);
  drawing.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") hide();
    if (move === undefined) return;
    event.preventDefault();
    show(readout.hidden ? at : at + move);
  });
}

function drawCurves() {
  if (!data.charts.length) {
    $("curves").hidden = true;
    return;
  }
  const charts = data.charts.map((chart, k) => [chart, $(`chart-${k}`)]);
  $("curves-more").hidden = data.charts.every((chart) => chart.main);
  const redraw = () => {
    charts.forEach(([chart, figure]) => drawChart(chart, figure));
    $("curves-none").hidden = charts.some(([, figure]) => !figure.hidden);
  };

  const has = (axis) => data.runs.some((run) => Object.values(run.curves).some((curve) => curve.x[axis].some(known)));
  const axes = { step: "step", evaluations: "evaluations", seconds: "time" };
  const radio = (key) => ([value, label]) => {
    const input = html("input", { type: "radio", name: key, value, onchange: () => { view[key] = value; redraw(); } });
    input.checked = value === view[key];
    return html("label", {}, input, label);
  };
  const radios = Object.entries(axes).filter(([axis]) => has(axis)).map(radio("x"));
  const scales = Object.entries({ suits: "as suits", linear: "linear", log: "log" }).map(radio("y"));
  const toggle = (label, key) => check(label, view[key], (on) => { view[key] = on; redraw(); });
  const field = (legend, ...items) => html("fieldset", {}, html("legend", {}, legend), ...items);
  $("curves-controls").append(field("against", ...radios), field("across", toggle("log", "logX")), field("up", ...scales),
    ...(data.runs.length > data.groups.length ? [toggle("single runs", "singles")] : []));
  const choose = (k) => (on) => {
    view.shown[on ? "add" : "delete"](k);
    redraw();
  };
  if (data.groups.length > 1) {
    const boxes = data.groups.map((group, k) =>
      check(`${group.label} (${group.repeats})`, view.shown.has(k), choose(k), swatch(k)));
    const every = (label, on) => html("button", { type: "button", onclick: () => {
      view.shown = new Set(on ? data.groups.keys() : []);
      boxes.forEach((box) => { box.querySelector("input").checked = on; });
      redraw();
    } }, label);
    $("curves-groups").replaceChildren(field("shown", every("all", true), every("none", false), ...boxes));
  }
  redraw();
  $("curves-more").addEventListener("toggle", redraw);
  window.addEventListener("resize", redraw);
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

function drawTables() {
  document.querySelectorAll("table.sortable").forEach(sortable);
  for (const place of document.querySelectorAll(".matrix")) {
    const table = place.querySelector("table");
    const only = check("only what differs (≠)", false, (on) => table.classList.toggle("only-differing", on));
    if (table.querySelector(".differs")) place.prepend(html("div", { class: "controls" }, only));
  }
}

// One section that fails must not take the others with it; the console still hears of it.
for (const draw of [drawStructures, drawCurves, drawTables]) {
  try {
    draw();
  } catch (error) {
    reportError(error);
  }
}
})();
