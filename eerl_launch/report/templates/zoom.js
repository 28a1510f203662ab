// The stretch of updates that all plots show together. What is drawn in the page is only moved and stretched; axes are
// made anew. Without this script the page is whole and shows all updates.

const SVG = "http://www.w3.org/2000/svg";
const MINUS = "\u2212";
// Widths of texts in the plots' font, as the page was drawn with, and how far the pointer moves before it drags.
const LETTER_PX = 6.2, DRAG_PX = 5;

const data = JSON.parse(document.getElementById("eerl-data").textContent);
const charts = [...document.querySelectorAll("svg[data-chart]")].map((svg) => {
  const [left, right, top, bottom, x0, x1, y0, y1] = svg.dataset.area.split(" ").map(Number);
  const axes = svg.querySelector(".axes");
  return {
    svg, left, right, top, bottom, x0, x1, y0, y1, axes, drawn: [...axes.childNodes],
    series: data.series[svg.dataset.chart] || [], map: data.cells !== null && svg.dataset.chart.startsWith("gpu_"),
  };
});
const whole = { from: charts[0].x0, to: charts[0].x1 };
const unit = data.lasts[0] - data.firsts[0] + 1;
let view = { ...whole };
const whenShown = [];

const isWhole = () => view.from <= whole.from && view.to >= whole.to;
const pixel = (chart, place) =>
  chart.left + (place - view.from) / (view.to - view.from) * (chart.right - chart.left);

function make(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function significant(value, digits = 4) {
  const size = Math.abs(value);
  const text = size >= 10 ** (digits - 1) || value === 0
    ? Math.round(value).toLocaleString("en-US")
    : Number(value.toPrecision(digits)).toLocaleString("en-US", {
      minimumSignificantDigits: digits, maximumSignificantDigits: digits });
  return text.replace("-", MINUS);
}

// Round numbers between low and high: 1, 2, 2.5 or 5 times a power of ten.
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * (1 - 1e-9));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * (high - low); at += 1) found.push(at * step);
  let decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  if (Math.abs(step * 10 ** decimals - Math.round(step * 10 ** decimals)) > 1e-6) decimals += 1;
  return found.map((value) => [value, value.toLocaleString("en-US", {
    minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace("-", MINUS)]);
}

// First and last index of the updates in view.
function visible() {
  let first = 0, last = data.lasts.length - 1;
  while (first < last && data.lasts[first] < view.from) first += 1;
  while (last > first && data.firsts[last] > view.to) last -= 1;
  return [first, last];
}

// Lowest and highest value in view, never more than was drawn: values beyond it sit on the edge.
function heights(chart) {
  const [first, last] = visible();
  const known = chart.series.flatMap((one) => one.values.slice(first, last + 1)).filter((value) => value !== null);
  if (isWhole() || !known.length) return [chart.y0, chart.y1];
  const low = known.reduce((a, b) => Math.min(a, b)), high = known.reduce((a, b) => Math.max(a, b));
  const room = 0.08 * (high - low) || 0.02 * (chart.y1 - chart.y0);
  const bottom = Math.min(Math.max(low - room, chart.y0), chart.y1 - 2 * room);
  return [bottom, Math.max(Math.min(high + room, chart.y1), bottom + 2 * room)];
}

function draw(chart) {
  const { left, right, top, bottom, x0, x1, y0, y1 } = chart;
  const wide = (x1 - x0) / (view.to - view.from);
  const moveX = left - wide * (left + (view.from - x0) / (x1 - x0) * (right - left));
  chart.svg.querySelector(".bands").setAttribute("transform", `matrix(${wide} 0 0 1 ${moveX} 0)`);
  if (isWhole()) {
    chart.axes.replaceChildren(...chart.drawn);
  } else {
    chart.axes.replaceChildren(...ticks(view.from, view.to, 10).flatMap(([value, text]) => [
      make("path", { class: "axis", d: `M${pixel(chart, value)} ${bottom}v4` }),
      make("text", { x: pixel(chart, value), y: bottom + 16, "text-anchor": "middle" }, text)]));
  }
  if (chart.map) return;
  const [low, high] = heights(chart);
  const tall = (y1 - y0) / (high - low);
  const moveY = bottom - tall * (bottom - (low - y0) / (y1 - y0) * (bottom - top));
  chart.svg.querySelector(".marks").setAttribute("transform", `matrix(${wide} 0 0 ${tall} ${moveX} ${moveY})`);
  chart.height = (value) => bottom - Math.min(Math.max((value - low) / (high - low), 0), 1) * (bottom - top);
  if (!isWhole()) {
    chart.axes.prepend(...ticks(low, high, 5).flatMap(([value, text]) => [
      make("path", { class: "grid", d: `M${left} ${chart.height(value)}H${right}` }),
      make("text", { x: left - 7, y: chart.height(value) + 4, "text-anchor": "end" }, text)]));
  }
  for (const text of chart.svg.querySelectorAll(".strip-name")) {
    const [begin, end] = text.dataset.span.split(" ").map(Number);
    const from = Math.max(left, pixel(chart, begin)), to = Math.min(right, pixel(chart, end));
    const name = text.dataset.name;
    text.setAttribute("x", (from + to) / 2);
    text.textContent = [name, `${name.slice(0, 4)}.`].find((words) => to - from > LETTER_PX * words.length) || "";
  }
}

function show(from, to) {
  const most = whole.to - whole.from, span = Math.min(Math.max(to - from, Math.min(2 * unit, most)), most);
  const middle = (from + to) / 2;
  const begin = Math.min(Math.max(middle - span / 2, whole.from), whole.to - span);
  view = { from: begin, to: begin + span };
  charts.forEach(draw);
  const [first, last] = visible();
  range.from.value = data.firsts[first];
  range.to.value = data.lasts[last];
  range.bar.classList.toggle("zoomed", !isWhole());
  range.words.textContent = isWhole() ? "" : `Shown: updates ${data.firsts[first]} to ${data.lasts[last]} of ` +
    `${data.firsts[0]} to ${data.lasts.at(-1)}.`;
  const address = isWhole() ? "" : `#updates=${data.firsts[first]}-${data.lasts[last]}`;
  try {
    if (address !== location.hash) history.replaceState(null, "", address || "#");
  } catch { /* a page inside another one may not */ }
  whenShown.forEach((tell) => tell());
}

const zoomAt = (place, factor) => show(place - (place - view.from) * factor, place + (view.to - place) * factor);
const showWhole = () => show(whole.from, whole.to);

const range = {
  bar: document.getElementById("zoom"), from: document.getElementById("zoom-from"),
  to: document.getElementById("zoom-to"), words: document.getElementById("zoom-words"),
};

function readRange() {
  const from = Number(range.from.value), to = Number(range.to.value);
  if (Number.isFinite(from) && Number.isFinite(to)) show(Math.min(from, to) - 0.5, Math.max(from, to) + 0.5);
}

function readAddress() {
  const found = /^#updates=(\d+)-(\d+)$/.exec(location.hash);
  if (found) show(Number(found[1]) - 0.5, Number(found[2]) + 0.5);
  return found !== null;
}

// The place on the x axis under the pointer, and how far down it is among the rows, 0 to 1.
function under(chart, event) {
  const box = chart.svg.getBoundingClientRect(), scale = chart.svg.viewBox.baseVal.width / box.width;
  const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
  const share = Math.min(Math.max((x - chart.left) / (chart.right - chart.left), 0), 1);
  return { x, place: view.from + share * (view.to - view.from), down: (y - chart.top) / (chart.bottom - chart.top),
    inside: x >= chart.left - 4 && x <= chart.right + 4 && y >= chart.top - 16 && y <= chart.bottom + 4 };
}

function followDrag(chart) {
  let begin = null, marked = null;
  const end = (event) => {
    if (begin && marked && event.type === "pointerup") {
      const at = under(chart, event).place; // whole updates, those that are touched
      show(Math.round(Math.min(begin.place, at)) - unit / 2, Math.round(Math.max(begin.place, at)) + unit / 2);
    }
    marked?.remove();
    begin = marked = null;
  };
  chart.svg.addEventListener("pointerdown", (event) => {
    const at = under(chart, event);
    if (event.button === 0 && at.inside) begin = at;
  });
  chart.svg.addEventListener("pointermove", (event) => {
    if (!begin) return;
    const at = under(chart, event);
    if (!marked && Math.abs(at.x - begin.x) < DRAG_PX) return;
    if (!marked) {
      marked = chart.svg.appendChild(make("rect", { class: "marked", y: chart.top, height: chart.bottom - chart.top }));
      chart.svg.setPointerCapture(event.pointerId);
    }
    const edges = [pixel(chart, begin.place), pixel(chart, at.place)];
    marked.setAttribute("x", Math.min(...edges));
    marked.setAttribute("width", Math.abs(edges[1] - edges[0]));
  });
  chart.svg.addEventListener("pointerup", end);
  chart.svg.addEventListener("pointercancel", end);
  chart.svg.addEventListener("dblclick", showWhole);
  chart.svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the wheel alone scrolls the page
    if (event.cancelable) event.preventDefault(); // in the middle of a scroll it is too late to stop it
    zoomAt(under(chart, event).place, Math.exp(0.0025 * event.deltaY));
  }, { passive: false });
}

charts.forEach(followDrag);
for (const input of [range.from, range.to]) {
  input.min = data.firsts[0];
  input.max = data.lasts.at(-1);
  input.addEventListener("change", readRange);
}
document.getElementById("zoom-whole").addEventListener("click", showWhole);
addEventListener("hashchange", readAddress);
range.bar.hidden = document.getElementById("zoom-help").hidden = false;
