// The operator's page: asks GET /queue once a second and shows the answer.
//
// At most one request per second and one at a time, none while the page is hidden. Everything is shown
// as text: names come from the daemon's configuration, the rest is numbers and fixed words. Why a
// request waits is the daemon's own phrase; nothing here guesses at it.

const PAUSE_MS = 1000; // from an answer to the next question
const ANSWER_MS = 8000; // a daemon that takes longer counts as gone; the next question comes all the same
const SHOWN = 100;

// ---- the feed: one daemon's state and its last records ----------------------------------------------

class Feed {
  constructor(show) {
    this.show = show;
    this.view = null; // the last answer
    this.records = []; // at most SHOWN, oldest first
    this.connection = "asking"; // asking, live, lost, paused
    this.restartedAt = null;
    this.cursor = null; // null: ask for the newest records
    this.notBefore = 0;
    this.timer = null;
    this.busy = false;
    document.addEventListener("visibilitychange", () => this.visibilityChanged());
    this.visibilityChanged();
  }

  visibilityChanged() {
    clearTimeout(this.timer);
    if (document.hidden) {
      this.connection = "paused";
      this.show(this);
    } else if (!this.busy) {
      this.schedule();
    }
  }

  schedule() {
    this.timer = setTimeout(() => this.ask(), Math.max(0, this.notBefore - performance.now()));
  }

  async ask() {
    this.busy = true;
    const cursor = this.cursor === null ? "" : `after=${this.cursor}&`;
    try {
      const answer = await fetch(`/queue?${cursor}limit=${SHOWN}`, {
        signal: AbortSignal.timeout(ANSWER_MS),
        cache: "no-store",
      });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      this.take(await answer.json());
      this.connection = "live";
    } catch {
      this.connection = "lost"; // gone, restarting or behind a tunnel that broke: ask again
    }
    this.busy = false;
    this.notBefore = performance.now() + PAUSE_MS;
    if (document.hidden) this.connection = "paused";
    else this.schedule();
    this.show(this);
  }

  take(view) {
    const known = this.view?.instance_id;
    const page = view.records;
    if (known !== undefined && known !== view.instance_id) {
      // Another process numbers its records from 1 again: this page was cut with the wrong cursor.
      this.restartedAt = new Date();
      this.records = [];
      this.cursor = null;
    } else if (this.cursor !== null && page.records.length >= SHOWN) {
      // More ended within a second than are shown. Those between do not matter: ask for the newest.
      this.cursor = null;
    } else {
      const kept = this.cursor === null ? [] : this.records;
      this.records = [...kept, ...page.records].slice(-SHOWN);
      this.cursor = page.next_seq;
    }
    this.view = view;
  }
}

// ---- words and numbers -------------------------------------------------------------------------------

const NOTHING = "–";

const PHASES = {
  loading: "loading",
  header_wait: "asked, no answer yet",
  generating: "answering",
};

function seconds(ms) {
  if (ms === null || ms === undefined) return NOTHING;
  if (ms < 99_950) return `${(ms / 1000).toFixed(1)} s`;
  return span(ms);
}

function span(ms) {
  if (ms === null || ms === undefined) return NOTHING;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 99_950) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} min ${pad(Math.floor((ms % 60_000) / 1000))} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${pad(minutes % 60)} min` : `${Math.floor(hours / 24)} days`;
}

function pad(number) {
  return String(number).padStart(2, "0");
}

function clock(rfc3339) {
  const at = new Date(rfc3339);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

function words(name) {
  return name.replaceAll("_", " ");
}

function arrival(requestId) {
  return `#${requestId.slice(requestId.lastIndexOf("-") + 1)}`;
}

function modelOf(record) {
  return record.model_resolved ?? record.model_requested ?? "no model";
}

// ---- a record as a stack of times --------------------------------------------------------------------

const PARTS = ["queue", "load", "prefill", "decode", "rest"];

function stack(record) {
  const queue = record.lease_at === null ? record.total_ms : record.queue_wait_ms;
  const load = record.model_load_ms ?? 0;
  let prefill = null;
  let decode = null;
  if (record.ttft_after_lease_ms !== null) {
    prefill = Math.max(0, record.ttft_after_lease_ms - load);
    decode = record.generation_ms;
  } else if (record.predicted_ms !== null) {
    prefill = record.prompt_ms; // not a stream: the engine's own account
    decode = record.predicted_ms;
  }
  const rest = Math.max(0, record.total_ms - queue - load - (prefill ?? 0) - (decode ?? 0));
  return { queue, load, prefill, decode, rest };
}

function rate(record) {
  if (record.predicted_per_second !== null) return record.predicted_per_second;
  if (record.completion_tokens === null || !record.generation_ms) return null;
  return (record.completion_tokens * 1000) / record.generation_ms;
}

function markOf(record) {
  if (record.success) return "success";
  return record.reason === "client_disconnect" ? "left" : "failed";
}

// ---- making elements ---------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";

function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function s(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children); // strings become text nodes
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text; // a selection survives what is the same
}

// A table whose rows are kept from one answer to the next, so that focus, selection and scrolling stay.
class Table {
  constructor(caption, columns, keyOf, groupOf = () => "") {
    this.columns = columns;
    this.keyOf = keyOf;
    this.groupOf = groupOf; // rows of one group stand together, the next one begins with a line
    this.body = h("tbody");
    const head = columns.map((column) =>
      h("th", { scope: "col", class: column.class ?? "" }, column.name),
    );
    this.root = h(
      "table",
      {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, ...head)),
      this.body,
    );
  }

  fill(items) {
    const rows = new Map([...this.body.rows].map((row) => [row.dataset.key, row]));
    items.forEach((item, index) => {
      const key = String(this.keyOf(item));
      const row = rows.get(key) ?? this.newRow(key);
      rows.delete(key);
      this.columns.forEach((column, n) => {
        setText(row.cells[n], column.text(item));
        if (column.title) row.cells[n].title = column.title(item);
        if (column.mark) row.cells[n].dataset.mark = column.mark(item);
      });
      const begins = index > 0 && this.groupOf(item) !== this.groupOf(items[index - 1]);
      row.classList.toggle("begins", begins);
      const there = this.body.rows[index] ?? null;
      if (there !== row) this.body.insertBefore(row, there);
    });
    for (const row of rows.values()) row.remove();
  }

  newRow(key) {
    const cells = this.columns.map((column) => h("td", { class: column.class ?? "" }));
    return h("tr", { "data-key": key }, ...cells);
  }
}

// ---- the chart: the last requests, three bands over one row of positions -----------------------------

const ROUND = [1, 1.5, 2, 3, 4, 5, 6, 8];
const MINUTES = [1, 1.5, 2, 3, 4, 6, 8, 10, 15, 20, 30, 40, 60, 90, 120, 180, 240, 360, 480, 720, 1440];
const NICE_MS = [
  ...[10, 100, 1000, 10_000].flatMap((unit) => ROUND.map((times) => times * unit)).filter((ms) => ms < 60_000),
  ...MINUTES.map((minutes) => minutes * 60_000),
];
const NICE_RATES = [1, 10, 100, 1000].flatMap((unit) => ROUND.map((times) => times * unit));

function nice(value, steps) {
  return steps.find((step) => step >= value) ?? value;
}

function tick(ms) {
  if (ms < 1000) return `${ms} ms`;
  if (ms < 60_000) return `${ms / 1000} s`;
  return ms < 3_600_000 ? `${ms / 60_000} min` : `${ms / 3_600_000} h`;
}

const LEFT = 46;
const TIMES = { top: 8, height: 168 };
const MARKS_Y = TIMES.top + TIMES.height + 9;
const RATES = { top: MARKS_Y + 28, height: 52 };
const LOADS = { top: RATES.top + RATES.height + 28, height: 34 };
const CLOCK_Y = LOADS.top + LOADS.height + 17;
const HEIGHT = CLOCK_Y + 6;
const FEWEST_SLOTS = 40; // a handful of requests must not become a handful of walls

class Chart {
  constructor() {
    this.records = [];
    this.selectedSeq = null; // null: the newest, whichever that is
    this.width = 0;
    this.svg = s("svg", { role: "img", height: HEIGHT });
    this.slider = h("input", { type: "range", min: 0, "aria-label": "Look at one request" });
    this.facts = h("dl", { class: "facts" });
    this.root = h("div", { class: "chart" }, this.facts, this.svg, this.slider);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.select(null));
    this.slider.addEventListener("input", () => this.select(Number(this.slider.value)));
    this.slider.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.select(null);
    });
    new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.draw();
    }).observe(this.root);
  }

  fill(records) {
    const same = records.length === this.records.length && records.at(-1) === this.records.at(-1);
    if (same) return;
    this.records = records;
    if (!records.some((record) => record.seq === this.selectedSeq)) this.selectedSeq = null;
    this.draw();
  }

  get index() {
    const found = this.records.findIndex((record) => record.seq === this.selectedSeq);
    return found < 0 ? this.records.length - 1 : found;
  }

  point(event) {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const slot = Math.floor((x - LEFT) / this.step);
    const index = slot - (this.slots - this.records.length);
    this.select(index >= 0 && index < this.records.length ? index : null);
  }

  select(index) {
    this.selectedSeq = index === null ? null : this.records[index].seq;
    this.showSelected();
  }

  x(index) {
    return LEFT + (this.slots - this.records.length + index) * this.step;
  }

  draw() {
    this.slots = Math.max(FEWEST_SLOTS, this.records.length);
    this.step = Math.max(1, (this.width - LEFT - 2) / this.slots);
    this.svg.setAttribute("width", this.width);
    this.cursor = s("rect", { class: "cursor", y: 0, height: CLOCK_Y - 12, width: this.step });
    this.svg.replaceChildren(
      this.cursor,
      ...this.times(),
      ...this.rates(),
      ...this.loads(),
      ...this.clocks(),
    );
    const failed = this.records.filter((record) => !record.success).length;
    this.svg.setAttribute(
      "aria-label",
      `The last ${count(this.records.length, "request")}, ${failed} without success: time in queue, ` +
        "load, prefill and decode, tokens per second and load times. The table below has the figures.",
    );
    this.slider.hidden = this.records.length === 0;
    this.slider.max = this.records.length - 1;
    this.showSelected();
  }

  band({ top, height }, name, most, label) {
    const line = (y) => s("line", { class: "grid", x1: LEFT, x2: this.width, y1: y, y2: y });
    const text = (y, value) => s("text", { class: "axis", x: LEFT - 6, y: y + 4 }, value);
    return [
      line(top),
      line(top + height / 2),
      s("line", { class: "base", x1: LEFT, x2: this.width, y1: top + height, y2: top + height }),
      text(top, label(most)),
      text(top + height / 2, label(most / 2)),
      ...(name ? [s("text", { class: "name", x: LEFT, y: top - 8 }, name)] : []),
    ];
  }

  times() {
    const totals = this.records.map((record) => record.total_ms).sort((a, b) => a - b);
    const most = totals.at(-1) ?? 1000;
    const usual = totals[Math.floor(totals.length * 0.9)] ?? most;
    // One request that waited for hours must not flatten the others: it is cut, and marked as cut.
    const top = nice(Math.max(20, most > 4 * usual ? 1.5 * usual : most), NICE_MS);
    const drawn = this.band(TIMES, "", top, tick);
    const width = Math.max(1, this.step - (this.step > 5 ? 2 : 0.75));
    this.records.forEach((record, index) => {
      const parts = stack(record);
      const x = this.x(index);
      let y = TIMES.top + TIMES.height;
      for (const part of PARTS) {
        const height = Math.min(((parts[part] ?? 0) / top) * TIMES.height, y - TIMES.top);
        if (height <= 0) continue;
        y -= height;
        drawn.push(s("rect", { class: part, x, y, width, height }));
      }
      if (record.total_ms > top) drawn.push(this.cut(x, width));
      drawn.push(...this.mark(record, x + width / 2));
    });
    return drawn;
  }

  cut(x, width) {
    const [y, middle] = [TIMES.top, x + width / 2];
    return s("path", { class: "cut", d: `M${x - 1} ${y}h${width + 2}L${middle} ${y - 6}z` });
  }

  mark(record, x) {
    const r = Math.min(3, Math.max(1.5, this.step / 2.6));
    switch (markOf(record)) {
      case "failed":
        return [
          s("path", {
            class: "failed",
            d: `M${x - r} ${MARKS_Y - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`,
          }),
        ];
      case "left":
        return [s("circle", { class: "left", cx: x, cy: MARKS_Y, r })];
      default:
        return [];
    }
  }

  rates() {
    const found = this.records.map(rate);
    const top = nice(Math.max(1, ...found.filter((value) => value !== null)), NICE_RATES);
    const drawn = this.band(RATES, "tokens per second", top, String);
    const r = Math.min(2.5, Math.max(1.2, this.step / 3));
    found.forEach((value, index) => {
      if (value === null) return;
      const cy = RATES.top + RATES.height * (1 - value / top);
      drawn.push(s("circle", { class: "rate", cx: this.x(index) + this.step / 2 - 1, cy, r }));
    });
    return drawn;
  }

  loads() {
    const found = this.records.map((record) => record.model_load_ms);
    const top = nice(Math.max(10, ...found.filter((value) => value !== null)), NICE_MS);
    const drawn = this.band(LOADS, "load time", top, tick);
    const base = LOADS.top + LOADS.height;
    found.forEach((value, index) => {
      if (value === null) return;
      const x = this.x(index) + this.step / 2 - 1;
      const y = base - LOADS.height * (value / top);
      drawn.push(
        s("line", { class: "stem", x1: x, x2: x, y1: base, y2: y }),
        s("circle", { class: "head", cx: x, cy: y, r: 2.5 }),
      );
    });
    return drawn;
  }

  clocks() {
    const every = Math.ceil(76 / this.step);
    const drawn = [];
    for (let index = this.records.length - 1; index >= 0; index -= every) {
      const x = this.x(index) + this.step;
      if (x < LEFT + 50) break;
      const at = clock(this.records[index].completed_at);
      drawn.push(s("text", { class: "axis", x, y: CLOCK_Y }, at));
    }
    return drawn;
  }

  showSelected() {
    const record = this.records[this.index];
    this.cursor?.classList.toggle("shown", this.selectedSeq !== null);
    if (record === undefined) return;
    this.cursor?.setAttribute("x", this.x(this.index) - 0.5);
    this.slider.value = this.index;
    const facts = factsOf(record);
    this.facts.replaceChildren(
      ...facts.map(([name, value, look]) =>
        h("div", { class: look ?? "" }, h("dt", {}, name), h("dd", {}, value)),
      ),
    );
    this.slider.setAttribute(
      "aria-valuetext",
      facts.map(([name, value]) => `${name} ${value}`).join(", "),
    );
  }
}

function factsOf(record) {
  const parts = stack(record);
  const perSecond = rate(record);
  return [
    ["ended", clock(record.completed_at)],
    ["model", modelOf(record), "wide"],
    ["outcome", words(record.reason), markOf(record)],
    ["queue", span(parts.queue), "swatch queue"],
    ["load", record.model_load_ms === null ? NOTHING : span(parts.load), "swatch load"],
    ["prefill", span(parts.prefill), "swatch prefill"],
    ["decode", span(parts.decode), "swatch decode"],
    ["other", span(parts.rest), "swatch rest"],
    ["tokens", record.completion_tokens?.toLocaleString("en") ?? NOTHING],
    ["per second", perSecond === null ? NOTHING : perSecond.toFixed(1)],
  ];
}

// ---- the page ----------------------------------------------------------------------------------------

function section(name, heading, ...content) {
  const id = `about-${name}`;
  const head = h("h2", { id }, heading, " ", h("span", { class: "count" }));
  const root = h("section", { class: name, "aria-labelledby": id }, head, ...content);
  return { root, count: head.lastChild };
}

// Long tables scroll inside their section, by keyboard too.
function scrolled(name, content) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, content);
}

class Page {
  constructor() {
    this.title = h("h1", {}, "Asking the daemon");
    this.sub = h("p", { class: "sub" });
    this.progress = h("progress", { "aria-label": "Load, compared with the model's last one" });
    this.progress.hidden = true;
    this.notes = h("ul", { class: "notes", role: "status" });
    this.link = h("p", { class: "link", role: "status" });
    this.about = h("p", { class: "about" });

    this.tickets = new Table(
      "Waiting requests in the order of their service",
      [
        { name: "", text: (row) => String(row.position), class: "n" },
        { name: "model", text: (row) => row.model ?? NOTHING, class: "model" },
        { name: "waits because", text: (row) => row.words, class: "why" },
        {
          name: "tier",
          text: (row) => (row.overdue ? `${row.tier}, overdue` : row.tier),
          class: "tier",
          mark: (row) => row.tier,
        },
        { name: "waited", text: (row) => seconds(row.waited_ms), class: "n" },
        { name: "request", text: (row) => arrival(row.request_id), title: (row) => row.request_id, class: "n id" },
      ],
      (row) => row.request_id,
      (row) => `${row.tier} ${row.model}`,
    );
    this.answers = new Table(
      "Active answers",
      [
        { name: "", text: () => "", class: "n phase", mark: (row) => row.phase },
        { name: "model", text: (row) => row.model, class: "model" },
        { name: "phase", text: phaseWords, class: "why" },
        { name: "tier", text: (row) => row.tier, class: "tier", mark: (row) => row.tier },
        { name: "for", text: (row) => seconds(row.active_ms), class: "n" },
        { name: "request", text: (row) => arrival(row.request_id), title: (row) => row.request_id, class: "n id" },
      ],
      (row) => row.request_id,
    );
    this.history = new Table(
      "The last requests, the newest first",
      [
        { name: "ended", text: (row) => clock(row.completed_at), class: "n" },
        { name: "model", text: modelOf, class: "model" },
        { name: "outcome", text: (row) => words(row.reason), class: "why", mark: markOf },
        { name: "queue", text: (row) => span(stack(row).queue), class: "n" },
        { name: "load", text: (row) => span(row.model_load_ms), class: "n" },
        { name: "prefill", text: (row) => span(stack(row).prefill), class: "n" },
        { name: "decode", text: (row) => span(stack(row).decode), class: "n" },
        { name: "total", text: (row) => span(row.total_ms), class: "n" },
        { name: "tokens", text: (row) => row.completion_tokens?.toLocaleString("en") ?? NOTHING, class: "n" },
        { name: "tok/s", text: (row) => rate(row)?.toFixed(1) ?? NOTHING, class: "n" },
      ],
      (row) => row.seq,
    );
    this.chart = new Chart();
    this.totals = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Totals" });
    this.log = h("p", { class: "log" });

    this.waiting = section("waiting", "Waiting", scrolled("Waiting requests", this.tickets.root));
    this.active = section("active", "Active", scrolled("Active answers", this.answers.root));
    this.recent = section(
      "recent",
      "Last requests",
      this.chart.root,
      h("p", { class: "legend" }, "× without success   ○ the client left   ▴ longer than drawn"),
      h("details", {}, h("summary", {}, "as a table"), scrolled("Last requests", this.history.root)),
    );
    this.since = section("since", "Since the daemon's start", this.totals, this.log);
    this.since.root.dataset.empty = ""; // the log has something to say from the start

    const links = ["/queue", "/requests", "/metrics", "/v1/models"].map((path) => h("a", { href: path }, path));
    document.body.append(
      h("header", {}, h("p", { class: "brand" }, "strata-router"), this.link),
      h(
        "main",
        {},
        h("div", { class: "now" }, this.title, this.sub, this.progress, this.notes),
        this.active.root,
        this.waiting.root,
        this.recent.root,
        this.since.root,
      ),
      h("footer", {}, this.about, h("nav", { "aria-label": "The same as data" }, ...links)),
    );
  }

  show(feed) {
    this.showLink(feed);
    if (feed.view === null) return;
    const { view, records } = feed;
    document.body.classList.toggle("stale", feed.connection === "lost");
    this.showNow(view, records);
    this.showWaiting(view.waiting);
    this.showActive(view.active);
    this.showRecords(records);
    this.showTotals(view);
    const up = view.uptime_s < 100 ? `${view.uptime_s} s` : span(view.uptime_s * 1000);
    setText(this.about, `version ${view.version}, up ${up}`);
  }

  showLink(feed) {
    const said = {
      asking: "asking the daemon",
      live: feed.restartedAt === null ? "live" : `live, restarted at ${clock(feed.restartedAt)}`,
      lost: feed.view === null ? "no answer; trying again" : "no answer; this is how it was. Trying again",
      paused: "paused while hidden",
    };
    this.link.dataset.state = feed.connection;
    setText(this.link, said[feed.connection]);
  }

  showNow(view, records) {
    const { engine, active, waiting } = view;
    const model = engine.loading ?? engine.loaded;
    const [before, after] = engine.loading
      ? ["Loading ", ""]
      : engine.loaded
        ? ["", " is loaded"]
        : [engineWords(engine.state), ""];
    if (this.title.textContent !== before + (model ?? "") + after) {
      this.title.replaceChildren(before, ...(model === null ? [] : [h("b", {}, model)]), after);
    }
    document.title = `${before}${model ?? ""}${after}${waiting.total ? `, ${waiting.total} waiting` : ""}`;
    const lastLoad = engine.loading && lastLoadOf(engine.loading, records);
    setText(this.sub, nowWords(view, lastLoad));
    this.progress.hidden = !lastLoad; // nobody knows how long a first load takes
    if (lastLoad) {
      this.progress.max = lastLoad;
      this.progress.value = Math.min(engine.loading_ms, 0.97 * lastLoad);
    }
    const notes = notesOf(view).filter(Boolean);
    if (notes.join() !== [...this.notes.children].map((note) => note.textContent).join()) {
      this.notes.replaceChildren(...notes.map((note) => h("li", {}, note)));
    }
    document.body.dataset.engine = engine.loading ? "loading" : engine.loaded ? "loaded" : engine.state;
    document.body.dataset.busy = String(active.total > 0);
  }

  showWaiting(waiting) {
    setText(this.waiting.count, waiting.total ? String(waiting.total) : "");
    this.waiting.root.dataset.empty = waiting.total ? "" : "Nobody waits.";
    const left = waiting.total - waiting.tickets.length;
    this.waiting.root.dataset.more = left > 0 ? `and ${count(left, "more", "more")}` : "";
    this.tickets.fill(waiting.tickets);
  }

  showActive(active) {
    setText(this.active.count, active.total ? String(active.total) : "");
    this.active.root.dataset.empty = active.total ? "" : "No answer is active.";
    const left = active.total - active.answers.length;
    this.active.root.dataset.more = left > 0 ? `and ${count(left, "more", "more")}` : "";
    this.answers.fill(active.answers);
  }

  showRecords(records) {
    setText(this.recent.count, records.length ? String(records.length) : "");
    this.recent.root.dataset.empty = records.length ? "" : "No request has ended yet.";
    this.chart.fill(records);
    this.history.fill([...records].reverse());
  }

  showTotals({ totals, request_log: log }) {
    const key = JSON.stringify(totals);
    if (key !== this.totalsKey) {
      this.totalsKey = key;
      this.totals.replaceChildren(...(totals.length ? [totalsTable(totals)] : []));
      const all = totals.reduce((sum, row) => sum + row.requests, 0);
      setText(this.since.count, all ? count(all, "request") : "");
    }
    const lost = log.write_drops + log.write_errors;
    this.log.classList.toggle("bad", lost > 0);
    setText(this.log, logWords(log, lost));
  }
}

function logWords(log, lost) {
  if (!log.configured) return "No request log is configured.";
  if (lost === 0) return "No record was lost on its way to the request log.";
  return `Request log: ${count(log.write_drops, "record")} lost, ${count(log.write_errors, "write")} failed.`;
}

function phaseWords({ phase, sse_events: events }) {
  return PHASES[phase] + (events === null ? "" : `, ${count(events, "event")} so far`);
}

function engineWords(state) {
  switch (state) {
    case "stopped":
      return "No model is loaded";
    case "stuck":
      return "The engine cannot be stopped";
    default:
      return "The engine is stopping";
  }
}

function nowWords({ engine, active, waiting, routing }, lastLoad) {
  const said = [];
  if (engine.loading) {
    said.push(`${seconds(engine.loading_ms)} so far` + (lastLoad ? ` (${seconds(lastLoad)} last time)` : ""));
  } else if (engine.loaded) {
    said.push(`for ${span(engine.loaded_ms)}`);
  } else if (routing && engine.state === "stopped") {
    said.push("the next request loads one");
  }
  said.push(active.total ? `${count(active.total, "active answer")}` : "no active answer");
  said.push(waiting.total ? `${waiting.total.toLocaleString("en")} waiting${tiers(waiting.by_tier)}` : "nobody waits");
  return said.join(" · ");
}

function tiers(byTier) {
  const found = Object.entries(byTier).filter(([, number]) => number > 0);
  if (found.length < 2) return "";
  return ` (${found.map(([tier, number]) => `${number.toLocaleString("en")} ${tier}`).join(", ")})`;
}

function notesOf({ engine, routing, draining }) {
  return [
    !routing && "Routing is off: chat requests get 503 until “strata-router on”.",
    draining && "Draining: the daemon ends once what it accepted is served.",
    ...engine.cooling.map(
      ({ model, left_ms: left }) => `${model} failed to load and cools down, ${seconds(left)} left.`,
    ),
  ];
}

function lastLoadOf(model, records) {
  const loads = records.filter(
    (record) => record.model_resolved === model && record.success && record.model_load_ms !== null,
  );
  return loads.at(-1)?.model_load_ms ?? null;
}

function totalsTable(totals) {
  const sums = (name) => {
    const found = new Map();
    for (const row of totals) found.set(row[name], (found.get(row[name]) ?? 0) + row.requests);
    return [...found.entries()].sort((a, b) => b[1] - a[1]).map(([key]) => key);
  };
  const outcomes = sums("outcome").sort((a, b) => (b === "completed") - (a === "completed"));
  const cells = new Map(totals.map((row) => [`${row.model} ${row.outcome}`, row.requests]));
  const body = sums("model").map((model) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", class: "model" }, model === "none" ? "no model" : model),
      ...outcomes.map((outcome) => {
        const requests = cells.get(`${model} ${outcome}`);
        return h("td", { class: requests ? "n" : "n nil" }, requests?.toLocaleString("en") ?? "·");
      }),
    ),
  );
  const head = outcomes.map((outcome) => h("th", { scope: "col", class: "n" }, words(outcome)));
  return h(
    "table",
    {},
    h("caption", { class: "unseen" }, "Finished requests by model and outcome"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "model" }, "model"), ...head)),
    h("tbody", {}, ...body),
  );
}

const page = new Page();
new Feed((feed) => page.show(feed));
