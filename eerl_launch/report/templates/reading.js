// Values under the pointer and the keyboard, and the tables behind the plots, which follow the zoom.

const ROWS = 100;
const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
tip.hidden = true;
const spoken = document.body.appendChild(document.createElement("p"));
spoken.className = "spoken";
spoken.setAttribute("aria-live", "polite");
const cursor = { at: null, row: 0 };

const states = data.states.flatMap(([state, count]) => new Array(count).fill(state));
const title = (first, last) => first === last ? `update ${first}` : `updates ${first} to ${last}`;

const cells = data.cells && (() => {
  const bytes = Uint8Array.from(atob(data.cells.packed), (letter) => letter.charCodeAt(0));
  const steps = new DataView(bytes.buffer), columns = data.cells.firsts.length;
  const watts = (row, column) => {
    const step = steps.getUint16(2 * (row * columns + column), true);
    return step === 65535 ? null : data.cells.low_w + step * data.cells.step_w;
  };
  const middle = (pool, column) => {
    const known = data.cells.pools.map((one, row) => one === pool ? watts(row, column) : null)
      .filter((value) => value !== null).sort((a, b) => a - b);
    const half = known.length >> 1;
    return known.length % 2 ? known[half] : (known[half - 1] + known[half]) / 2;
  };
  return { watts, middle, names: data.cells.names };
})();

// Index of the entry whose first and last place are nearest.
function nearest(place, firsts, lasts) {
  let low = 0, high = lasts.length - 1;
  while (low < high) {
    const half = (low + high) >> 1;
    if (lasts[half] < place) low = half + 1; else high = half;
  }
  return low > 0 && place - lasts[low - 1] < firsts[low] - place ? low - 1 : low;
}

function lines(chart, at) {
  if (chart.map) {
    const column = nearest(data.firsts[at], data.cells.firsts, data.cells.lasts);
    const watts = cells.watts(cursor.row, column);
    const middle = cells.middle(data.cells.pools[cursor.row], column);
    const off = watts === null || !middle ? null : 100 * (watts / middle - 1);
    return [cells.names[cursor.row], title(data.cells.firsts[column], data.cells.lasts[column]),
      watts === null ? "not measured" : `${significant(watts)} W`,
      off === null ? "" : `${off >= 0 ? "+" : MINUS}${Math.abs(off).toFixed(1)} % from the median of its pool`];
  }
  const head = title(data.firsts[at], data.lasts[at]) + (states[at] ? `, ${states[at].replaceAll("_", " ")}` : "");
  return [head, ...chart.series.map((one) => one.values[at] === null
    ? `${one.name}: ${one.unknown}` : `${one.name}: ${significant(one.values[at])} ${one.unit}`)];
}

function placeTip(x, y, words) {
  tip.replaceChildren(...words.filter(Boolean).map((line) => {
    const row = document.createElement("div");
    row.textContent = line;
    return row;
  }));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  tip.style.left = `${x + 16 + box.width < room ? x + 16 : Math.max(4, x - 16 - box.width)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - box.height - 4))}px`;
}

function hide() {
  cursor.at = null;
  tip.hidden = true;
  charts.forEach(mark);
}

// A line through every plot at the update that is read.
function mark(chart) {
  chart.cursor ??= chart.svg.appendChild(make("path", { class: "cursor" }));
  const place = cursor.at === null ? null : (data.firsts[cursor.at] + data.lasts[cursor.at]) / 2;
  const shown = place !== null && place >= view.from && place <= view.to;
  chart.cursor.setAttribute("d", shown ? `M${pixel(chart, place)} ${chart.top}V${chart.bottom}` : "");
  if (!chart.map) return;
  chart.ring ??= chart.svg.appendChild(make("path", { class: "cursor" }));
  const height = (chart.bottom - chart.top) / cells.names.length, y = chart.top + (cursor.row + 0.5) * height;
  chart.ring.setAttribute("d", shown ? `M${chart.left} ${y}H${chart.right}` : "");
}

function read(chart, at, row) {
  cursor.at = at;
  if (row !== undefined) cursor.row = row;
  charts.forEach(mark);
  return lines(chart, at);
}

function walk(chart, event) {
  const last = data.lasts.length - 1, [first, final] = visible();
  const at = cursor.at ?? (event.key === "ArrowLeft" || event.key === "End" ? final : first);
  const stride = event.shiftKey ? 10 : 1, rows = cells ? cells.names.length - 1 : 0;
  const moves = {
    ArrowLeft: () => cursor.at === null ? at : at - stride, ArrowRight: () => cursor.at === null ? at : at + stride,
    Home: () => 0, End: () => last,
    ArrowUp: () => { if (chart.map) cursor.row = Math.max(0, cursor.row - stride); return at; },
    ArrowDown: () => { if (chart.map) cursor.row = Math.min(rows, cursor.row + stride); return at; },
  };
  const middle = (data.firsts[at] + data.lasts[at]) / 2;
  if (event.key === "+" || event.key === "=") zoomAt(middle, 0.5);
  else if (event.key === "-") zoomAt(middle, 2);
  else if (event.key === "Escape") { hide(); showWhole(); event.preventDefault(); return; }
  else if (!(event.key in moves) || (!chart.map && /Up|Down/.test(event.key))) return;
  event.preventDefault();
  const to = Math.min(Math.max((moves[event.key] ?? (() => at))(), 0), last);
  const place = (data.firsts[to] + data.lasts[to]) / 2, span = view.to - view.from;
  if (place < view.from || place > view.to) show(place - span / 2, place + span / 2);
  const words = read(chart, to), box = chart.svg.getBoundingClientRect();
  const scale = box.width / chart.svg.viewBox.baseVal.width;
  placeTip(box.left + pixel(chart, place) * scale, box.top + chart.top * scale, words);
  spoken.textContent = words.join("; ");
}

for (const chart of charts) {
  chart.svg.querySelectorAll(".hint").forEach((hint) => hint.remove());
  chart.svg.setAttribute("tabindex", "0");
  chart.svg.setAttribute("role", "application");
  chart.svg.setAttribute("aria-describedby", "zoom-help");
  const point = (event) => {
    const at = under(chart, event);
    if (!at.inside) { hide(); return; }
    const row = chart.map
      ? Math.min(Math.max(Math.floor(at.down * cells.names.length), 0), cells.names.length - 1) : undefined;
    placeTip(event.clientX, event.clientY, read(chart, nearest(at.place, data.firsts, data.lasts), row));
  };
  chart.svg.addEventListener("pointermove", point);
  chart.svg.addEventListener("pointerdown", point); // a finger does not hover
  chart.svg.addEventListener("pointerleave", hide);
  chart.svg.addEventListener("blur", hide);
  chart.svg.addEventListener("keydown", (event) => walk(chart, event));
}

// Bars tell their values too; the tooltip of the browser would come second.
for (const bar of document.querySelectorAll(".chart .bar")) {
  const words = bar.querySelector("title").textContent;
  bar.querySelector("title").remove();
  bar.setAttribute("tabindex", "0");
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", words);
  bar.addEventListener("pointermove", (event) => placeTip(event.clientX, event.clientY, [words]));
  bar.addEventListener("pointerleave", hide);
  bar.addEventListener("blur", hide);
  bar.addEventListener("focus", () => {
    const box = bar.getBoundingClientRect();
    placeTip(box.left, box.top, [words]);
  });
}

// The updates in view as at most a hundred rows, each the mean of equally many updates.
function fill(details) {
  const body = details.querySelector("tbody"), note = details.querySelector("p");
  details.drawn ??= { rows: [...body.rows], note: note.textContent };
  if (isWhole()) {
    body.replaceChildren(...details.drawn.rows);
    note.textContent = details.drawn.note;
    return;
  }
  const series = data.series[details.dataset.behind], [first, last] = visible();
  const size = Math.ceil((last - first + 1) / ROWS), rows = [];
  for (let begin = first; begin <= last; begin += size) {
    const end = Math.min(begin + size - 1, last), from = data.firsts[begin], to = data.lasts[end];
    const several = states.slice(begin, end + 1).some((state) => state !== states[begin]);
    const cellsOf = series.map((one) => {
      const known = one.values.slice(begin, end + 1).filter((value) => value !== null);
      return known.length ? significant(known.reduce((a, b) => a + b) / known.length) : one.unknown;
    });
    const row = document.createElement("tr");
    [from === to ? `${from}` : `${from}–${to}`, several ? "several" : (states[begin] || "–").replaceAll("_", " "),
      ...cellsOf].forEach((text, place) => {
      const cell = row.insertCell();
      cell.textContent = text;
      if (place === 1) cell.className = "left";
    });
    rows.push(row);
  }
  body.replaceChildren(...rows);
  note.textContent = `The updates in view${size > 1 ? `, each row the mean of up to ${size}` : ""}.`;
}

const behind = [...document.querySelectorAll("details[data-behind]")];
behind.forEach((details) => details.addEventListener("toggle", () => fill(details)));
whenShown.push(() => behind.filter((details) => details.open).forEach(fill), () => charts.forEach(mark));
if (!readAddress()) showWhole();
