// Shows the window under the pointer, or under the arrow keys: its bounds, its numbers, and the stretch that it covers.
"use strict";
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
tip.setAttribute("role", "status");
document.body.append(tip);

const put = (parent, name, text) => {
  const made = document.createElement(name);
  made.textContent = text;
  parent.append(made);
  return made;
};

// Bounds are exact: whole multiples of a unit from a first one, either of which may be too large for a double.
const moment = (data, n) => {
  const at = BigInt(data.low) + BigInt(data.unit) * BigInt(n);
  if (!data.temporal) return at.toLocaleString("en");
  const micros = ((at % 1000000n) + 1000000n) % 1000000n;
  const date = new Date(Number((at - micros) / 1000n));
  if (isNaN(date)) return at.toLocaleString("en");
  const text = date.toISOString().replace("T", " ").replace(/(:00)?\.\d+Z$/, "");
  return micros ? text.slice(0, 19).padEnd(19, ":00") + "." + String(micros).padStart(6, "0").replace(/0+$/, "") : text;
};

const nearest = (data, trace, at) => {
  let best = -1, least = Infinity;
  for (let i = 0; i < trace.s.length; i++) {
    const inside = data.at === 0.5 && trace.s[i] <= at && at < trace.e[i];
    const away = inside ? 0 : Math.abs(trace.s[i] + (trace.e[i] - trace.s[i]) * data.at - at);
    if (away < least) { least = away; best = i; }
  }
  return [best, least];
};

const hide = (chart) => {
  tip.hidden = true;
  chart.querySelector(".under").setAttribute("width", 0);
};

const show = (chart, data, trace, i, x, y) => {
  const [s, e] = [trace.s[i], trace.e[i]];
  const under = chart.querySelector(".under");
  under.setAttribute("x", `${100 * s / data.high}%`);
  under.setAttribute("width", `${Math.max(100 * (e - s) / data.high, 0.15)}%`);
  if (data.lanes) {
    under.setAttribute("y", trace.y[0]);
    under.setAttribute("height", trace.y[1] - trace.y[0]);
  }
  tip.replaceChildren();
  put(tip, "b", `${moment(data, s)} – ${moment(data, e)}`);
  if (trace.n && trace.n[i] > 1) put(tip, "div", `${trace.n[i].toLocaleString("en")} windows`);
  for (const one of data.lanes ? [trace] : data.traces) {
    const k = one === trace ? i : one.s.findIndex((start, j) => start === s && one.e[j] === e);
    if (k < 0) continue;
    for (const name in one.v) {
      const row = put(tip, "div", "");
      const several = data.traces.length > 1;
      put(row, "span", several && data.lanes ? [one.name, name].filter(Boolean).join(": ") : several ? one.name : name);
      if (name) put(row, "span", one.v[name][k] === null ? "null" : one.v[name][k].toLocaleString("en", { maximumSignificantDigits: 6 }));
    }
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18}px`;
};

for (const chart of document.querySelectorAll("svg.chart")) {
  let data = null, at = null;
  const read = () => (data ??= JSON.parse(chart.dataset.hover));
  chart.addEventListener("pointermove", (event) => {
    read();
    const box = chart.getBoundingClientRect();
    const where = (event.clientX - box.left) / box.width * data.high;
    const y = event.clientY - box.top;
    const lane = data.lanes ? data.traces.filter((one) => one.y[0] <= y && y < one.y[1]) : data.traces;
    let best = null;
    for (const trace of lane) {
      const [i, away] = nearest(data, trace, where);
      if (i >= 0 && (!best || away < best.away)) best = { trace, i, away };
    }
    if (!best) return hide(chart);
    at = best;
    show(chart, data, best.trace, best.i, event.clientX, event.clientY);
  });
  chart.addEventListener("pointerleave", () => hide(chart));
  chart.addEventListener("blur", () => hide(chart));
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide(chart);
    if (!step) return;
    event.preventDefault();
    read();
    at ??= { trace: data.traces[0], i: step > 0 ? -1 : 0 };
    at.i = Math.max(0, Math.min(at.trace.s.length - 1, at.i + step));
    const box = chart.getBoundingClientRect();
    show(chart, data, at.trace, at.i, box.left + box.width * at.trace.e[at.i] / data.high, box.top + 20);
  });
}
