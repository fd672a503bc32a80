// The Estimate page: controls ──▶ POST /api/estimate ──▶ figures, layers and devices side by side.

import {
  formatBytes,
  formatDuration,
  formatEnergy,
  formatInterval,
  formatMass,
  formatMoney,
  formatPower,
  formatShare,
  formatWh,
} from "./units.js";

const ANNOUNCE_MS = 900;
const MOST_BARS = 12;
const FIELDS = ["batch", "phase", "precision", "optimizer", "accumulate", "gpus", "link_gb_s", "steps", "device", "battery", "grid", "price"];

const byId = (id) => document.getElementById(id);
const setText = (id, text) => {
  byId(id).textContent = text;
};

const choicesElement = byId("choices");
const choices = choicesElement ? JSON.parse(choicesElement.textContent) : null;
const families = new Map(choices?.families.map((one) => [one.name, one]));
const devices = new Map(choices?.devices.map((one) => [one.key, one]));
let upload = null;
let isAsking = false;
let wantedMs = null;
let answered = "";
let announcing = 0;

// Families: a slider and a number for each parameter.

function showFamily(name, values) {
  const family = families.get(name);
  setText("family-description", `${family.description}. Input ${family.input_shape.join("×")}.`);
  byId("parameters").replaceChildren(
    ...family.parameters.map((one, at) => makeSlider(one, values?.[at] ?? one.value)),
  );
}

function makeSlider(parameter, value) {
  const row = document.createElement("div");
  row.className = "slider";
  const label = document.createElement("label");
  const slider = document.createElement("input");
  const number = document.createElement("input");
  label.htmlFor = slider.id = `parameter-${parameter.name}`;
  label.textContent = parameter.name;
  slider.type = "range";
  number.type = "number";
  number.name = "parameter";
  number.setAttribute("aria-label", `${parameter.name}, ${parameter.role}, exactly`);
  for (const input of [slider, number]) {
    input.min = parameter.least;
    input.step = parameter.step;
    input.max = input === slider ? Math.max(parameter.slider_most, value) : parameter.most;
    input.value = value;
  }
  slider.addEventListener("input", () => {
    number.value = slider.value;
  });
  number.addEventListener("input", () => {
    slider.value = number.value;
  });
  row.append(label, slider, number);
  return row;
}

function nameNet() {
  const values = [...document.getElementsByName("parameter")].map((one) => one.value);
  return `${byId("family").value}:${values.join(",")}`;
}

// State: the address holds everything but an uploaded network.

function readAddress() {
  const given = new URLSearchParams(location.search);
  for (const name of FIELDS) {
    if (given.has(name)) {
      byId(name).value = name === "device" ? findKey(given.get(name)) : given.get(name);
    }
  }
  const [family, values] = (given.get("net") ?? "").split(":");
  if (families.has(family)) {
    byId("family").value = family;
  }
  const numbers = values?.split(",").map(Number);
  showFamily(byId("family").value, numbers?.every(Number.isInteger) ? numbers : null);
  byId("batch").value ||= families.get(byId("family").value).batch;
  showBatch();
  if (!byId("device").value) {
    byId("device").selectedIndex = 0;
  }
  const others = (given.get("with") ?? "").split(",").map(findKey);
  for (const box of document.getElementsByName("with")) {
    box.checked = others.includes(box.value);
  }
}

/** Return the key of a profile that is given by its key or the name of its device. */
function findKey(text) {
  const named = [...devices.values()].find((one) => one.device === text || text.startsWith(one.key));
  return named?.key ?? text;
}

function writeAddress() {
  const state = new URLSearchParams();
  if (!upload) {
    state.set("net", nameNet());
  }
  for (const name of FIELDS) {
    if (byId(name).value) {
      state.set(name, byId(name).value);
    }
  }
  const others = listOthers();
  if (others.length) {
    state.set("with", others.join(","));
  }
  history.replaceState(null, "", `?${state}`);
}

function listOthers() {
  const boxes = [...document.getElementsByName("with")].filter((box) => box.checked);
  return boxes.map((box) => box.value).filter((key) => key !== byId("device").value);
}

// Asking.

function makeQuery(device) {
  const isTraining = byId("phase").value === "train";
  const setup = {
    batch: readNumber("batch", "Batch size"),
    phase: byId("phase").value,
    precision: byId("precision").value,
  };
  if (isTraining) {
    setup.optimizer = byId("optimizer").value;
    setup.accumulate = readNumber("accumulate", "Batches per update");
  }
  const query = { device, setup, steps: readNumber("steps", "Steps") };
  const gpus = readNumber("gpus", "GPUs");
  if (isTraining && gpus > 1) {
    const link = byId("link_gb_s").value;
    Object.assign(query, { gpus, parallel: "data" }, link && { link_gb_s: Number(link) });
  }
  for (const name of ["battery", "grid", "price"]) {
    if (byId(name).value.trim()) {
      query[name] = byId(name).value.trim();
    }
  }
  return upload ? { ...query, network: upload.network } : { ...query, net: nameNet() };
}

function readNumber(id, title) {
  const value = Number(byId(id).value);
  if (!Number.isInteger(value) || value < 1) {
    throw new Error(`${title} is ${byId(id).value || "empty"}: give a whole number of at least 1.`);
  }
  return value;
}

async function send(address, body, type) {
  const response = await fetch(address, {
    method: "POST",
    headers: { "Content-Type": type },
    body,
  });
  if (response.redirected) {
    throw new Error("The session is over: reload this page and sign in again.");
  }
  const answer = await response.json();
  if (!response.ok) {
    throw new Error(answer.detail ?? `The server answered ${response.status}.`);
  }
  return answer;
}

// One question at a time: while the server answers, only the latest choice waits.
async function updateSoon() {
  wantedMs = performance.now();
  if (isAsking) {
    return;
  }
  isAsking = true;
  while (wantedMs !== null) {
    const startMs = wantedMs;
    wantedMs = null;
    await update(startMs);
  }
  isAsking = false;
}

async function update(startMs) {
  try {
    const keys = [byId("device").value, ...listOthers()];
    const queries = keys.map((key) => JSON.stringify(makeQuery(key)));
    // Browsers report many changes twice.
    if (queries.join() === answered) {
      return;
    }
    writeAddress();
    const answers = await Promise.allSettled(queries.map((query) => send("/api/estimate", query, "application/json")));
    if (answers[0].status === "rejected") {
      throw answers[0].reason;
    }
    answered = queries.join();
    showError("");
    showFigures(answers[0].value);
    showComparison(keys, answers);
    showLayers(answers[0].value);
    // Only the latest is kept: a page may stay open for days.
    performance.clearMeasures("estimate-move");
    performance.measure("estimate-move", { start: startMs, end: performance.now() });
    document.body.dataset.estimates = Number(document.body.dataset.estimates ?? 0) + 1;
    announceSoon(answers[0].value);
  } catch (error) {
    answered = "";
    showError(error.message);
  }
}

// Showing.

function showError(message) {
  setText("error", message);
  byId("result").toggleAttribute("data-old", message !== "");
}

function showFigures(found) {
  const device = devices.get(byId("device").value);
  const step = found.setup.phase === "inference" ? "inference" : "step";
  const level = `${formatLevel(found.level)} interval`;
  showBasis(found, device);
  setText("energy-title", `Energy of ${step === "step" ? "a step" : "an inference"}`);
  setText("energy", formatEnergy(found.energy_j));
  setText("energy-interval", `${level} ${formatInterval(found.interval_j, formatEnergy)}`);
  setText("total-energy", formatEnergy(found.total_energy_j));
  setText("total-interval", `${level} ${formatInterval(found.total_interval_j, formatEnergy)}; ${formatWh(1000 * found.kwh)}`);
  setText("total-duration", formatDuration(found.total_duration_s));
  setText("duration", `${formatDuration(found.duration_s)} each`);
  setText("memory", formatBytes(found.peak_memory_bytes));
  setText("memory-note", describeMemory(found));
  setText("battery-share", found.battery_share == null ? "–" : formatShare(found.battery_share));
  setText("battery-note", found.battery_share == null ? "no battery given" : `of ${byId("battery").value}`);
  setText("co2e", found.co2e_g == null ? "–" : formatMass(found.co2e_g));
  setText("co2e-note", found.co2e_g == null ? "no grid given" : `about, with the grid ${byId("grid").value}`);
  setText("cost", found.cost == null ? "–" : formatMoney(found.cost, found.currency));
  setText("cost-note", found.cost == null ? "no price given" : `${byId("price").value} per kWh`);
  setText(
    "brief",
    `${formatEnergy(found.energy_j)} per ${step} · run ${formatEnergy(found.total_energy_j)}, ${formatDuration(found.total_duration_s)}`,
  );
  setText("power", formatPower(found.energy_j / found.duration_s));
  setText("power-note", `of what the meter covers: ${found.covers}`);
  byId("notes").replaceChildren(...listNotes(found).map((text) => makeElement("li", text)));
}

function showBasis(found, device) {
  const tag = makeElement("span", found.provenance, "tag");
  tag.dataset.provenance = found.provenance;
  const where = found.gpus > 1 ? `${found.gpus} × ${found.device}` : found.device;
  const shipped = device?.shipped ? "; a shipped profile of another unit" : "";
  byId("basis").replaceChildren(
    tag,
    ` ${found.net || "Your network"} on ${where} (${found.runtime}), estimator ${found.estimator}; ${found.provenance === "datasheet" ? "joules of the" : "the meter covers"} ${found.covers}${shipped}.`,
  );
}

function describeMemory(found) {
  if (!found.device_memory_bytes) {
    return "peak, estimated";
  }
  const peak = found.gpus > 1 ? "peak of each GPU, estimated" : "peak, estimated";
  const fits = found.fits_memory === false ? "does not fit" : peak;
  return `${fits}; device ${formatBytes(found.device_memory_bytes)}`;
}

function listNotes(found) {
  const unseen =
    found.unseen_share > 0
      ? [`${formatShare(found.unseen_share)} of the energy is extrapolated to kinds of layers that were never measured on this device.`]
      : [];
  return [...unseen, ...found.notes, "Data loading, evaluation and checkpoints are not included."];
}

function formatLevel(level) {
  return `${Number((100 * level).toPrecision(4))} %`;
}

function showLayers(found) {
  const ranked = [...found.layers].sort((one, other) => other.energy_j - one.energy_j);
  const total = ranked.reduce((sum, one) => sum + one.energy_j, 0) || 1;
  const shown = ranked.slice(0, MOST_BARS);
  const rest = ranked.slice(MOST_BARS);
  if (rest.length) {
    const energyJ = rest.reduce((sum, one) => sum + one.energy_j, 0);
    shown.push({ name: `${rest.length} others`, kind: "", energy_j: energyJ });
  }
  const largest = ranked[0];
  setText(
    "layers-summary",
    largest
      ? `${largest.name} (${largest.kind}) takes ${formatShare(largest.energy_j / total)} of ${formatEnergy(found.energy_j)} per step. ${capitalise(found.provenance)}.`
      : "",
  );
  byId("layers").replaceChildren(
    ...found.layers.map((one) =>
      makeRow([one.name, one.kind], [formatEnergy(one.energy_j), formatShare(one.energy_j / total)], [one.seen === false ? "no" : "yes"]),
    ),
  );
  const most = shown.reduce((found, one) => Math.max(found, one.energy_j), 0) || 1;
  byId("layers-plot").replaceChildren(...shown.flatMap((one) => makeBar(one, most, total)));
}

function makeBar(layer, most, total) {
  const bar = makeElement("span", "", "bar");
  bar.style.width = `${(100 * layer.energy_j) / most}%`;
  const text = `${formatEnergy(layer.energy_j)}, ${formatShare(layer.energy_j / total)}`;
  return [makeElement("span", shorten(layer.name)), bar, makeElement("span", text, "number")];
}

function shorten(name) {
  return name.length > 24 ? `…${name.slice(-23)}` : name;
}

function showComparison(keys, answers) {
  byId("comparison").hidden = keys.length < 2;
  if (keys.length < 2) {
    return;
  }
  const groups = new Map();
  keys.forEach((key, at) => {
    const device = devices.get(key);
    groups.set(device.covers, [...(groups.get(device.covers) ?? []), { device, answer: answers[at] }]);
  });
  byId("comparison-tables").replaceChildren(
    ...[...groups].map(([covers, rows]) => makeComparison(covers, rows)),
  );
}

function makeComparison(covers, rows) {
  const known = rows.filter((row) => row.answer.status === "fulfilled");
  const most = Math.max(...known.map((row) => row.answer.value.total_energy_j), 0);
  const region = makeElement("div", "", "table-scroll");
  region.tabIndex = 0;
  region.setAttribute("role", "region");
  region.setAttribute("aria-label", `Devices whose meter covers ${covers}`);
  const table = document.createElement("table");
  table.append(makeElement("caption", `The meter covers ${covers}`));
  const head = table.createTHead().insertRow();
  for (const [title, isNumber] of [["Device", 0], ["Provenance", 0], ["Energy of the run", 1], ["Interval", 1], ["Time", 1], ["Memory", 1], ["", 0]]) {
    const cell = makeElement(title ? "th" : "td", title, isNumber ? "number" : "");
    if (title) {
      cell.scope = "col";
    }
    head.append(cell);
  }
  const body = table.createTBody();
  known.sort((one, other) => one.answer.value.total_energy_j - other.answer.value.total_energy_j);
  for (const { device, answer } of known) {
    body.append(makeDeviceRow(device, answer.value, most, known.length > 1));
  }
  for (const { device, answer } of rows.filter((row) => row.answer.status === "rejected")) {
    const row = body.insertRow();
    row.append(makeElement("th", device.device));
    const reason = makeElement("td", answer.reason.message);
    reason.colSpan = 6;
    row.append(reason);
  }
  region.append(table);
  return region;
}

function makeDeviceRow(device, found, most, hasBar) {
  const row = makeRow([], [], []);
  const name = makeElement("th", device.device);
  name.scope = "row";
  name.append(makeElement("span", `${device.runtime}${device.shipped ? ", shipped" : ""}`, "note"));
  const tag = makeElement("span", found.provenance, "tag");
  tag.dataset.provenance = found.provenance;
  const provenance = document.createElement("td");
  provenance.append(tag);
  row.append(name, provenance);
  const values = [
    formatEnergy(found.total_energy_j),
    formatInterval(found.total_interval_j, formatEnergy),
    formatDuration(found.total_duration_s),
    formatBytes(found.peak_memory_bytes),
  ];
  row.append(...values.map((text) => makeElement("td", text, "number")));
  const cell = makeElement("td", "", "bar-cell");
  if (hasBar) {
    const bar = makeElement("span", "", "bar");
    bar.style.width = `${(100 * found.total_energy_j) / most}%`;
    bar.setAttribute("aria-hidden", "true");
    cell.append(bar);
  }
  row.append(cell);
  return row;
}

function makeRow(texts, numbers, last) {
  const row = document.createElement("tr");
  row.append(...texts.map((text) => makeElement("td", text)));
  row.append(...numbers.map((text) => makeElement("td", text, "number")));
  row.append(...last.map((text) => makeElement("td", text)));
  return row;
}

function makeElement(name, text, className = "") {
  const element = document.createElement(name);
  element.textContent = text;
  if (className) {
    element.className = className;
  }
  return element;
}

function capitalise(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// A screen reader hears the result once the controls rest.
function announceSoon(found) {
  clearTimeout(announcing);
  announcing = setTimeout(() => {
    const interval = formatInterval(found.interval_j, formatEnergy);
    setText(
      "status",
      `${formatEnergy(found.energy_j)} per step, ${formatLevel(found.level)} interval ${interval}; the run takes ${formatEnergy(found.total_energy_j)} and ${formatDuration(found.total_duration_s)}; ${found.provenance}.`,
    );
  }, ANNOUNCE_MS);
}

// Uploads: the server reads the file as data and returns the network.

async function readFile(file) {
  const isOnnx = file.name.toLowerCase().endsWith(".onnx");
  if (!isOnnx && !file.name.toLowerCase().endsWith(".json")) {
    showError(`${file.name} is neither .json nor .onnx: give one of these.`);
    return;
  }
  try {
    const type = isOnnx ? "application/octet-stream" : "application/json";
    upload = await send("/api/networks", await file.arrayBuffer(), type);
  } catch (error) {
    showError(error.message);
    return;
  }
  if (upload.batch) {
    byId("batch").value = upload.batch;
    showBatch();
  }
  const layers = `${upload.layer_count} layer${upload.layer_count === 1 ? "" : "s"}`;
  setText("file-name", `${file.name}: ${layers}. The address does not hold it.`);
  setUploaded(true);
}

function setUploaded(isUploaded) {
  byId("forget-file").hidden = !isUploaded;
  byId("parameters").hidden = isUploaded;
  byId("family-description").hidden = isUploaded;
  byId("family").disabled = isUploaded;
  updateSoon();
}

function showBatch() {
  byId("batch-slider").value = Math.round(Math.log2(Number(byId("batch").value) || 1));
  byId("batch-slider").setAttribute("aria-valuetext", byId("batch").value);
}

function start() {
  readAddress();
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("family").addEventListener("change", () => {
    showFamily(byId("family").value);
    byId("batch").value = families.get(byId("family").value).batch;
    showBatch();
  });
  byId("batch-slider").addEventListener("input", () => {
    byId("batch").value = 2 ** Number(byId("batch-slider").value);
    byId("batch-slider").setAttribute("aria-valuetext", byId("batch").value);
  });
  byId("batch").addEventListener("input", showBatch);
  byId("file").addEventListener("change", (event) => {
    event.stopPropagation();
    if (byId("file").files[0]) {
      readFile(byId("file").files[0]);
    }
  });
  byId("forget-file").addEventListener("click", () => {
    upload = null;
    byId("file").value = "";
    setText("file-name", "");
    setUploaded(false);
  });
  const drop = byId("drop");
  for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
    drop.addEventListener(name, (event) => {
      event.preventDefault();
      drop.toggleAttribute("data-over", name === "dragenter" || name === "dragover");
    });
  }
  drop.addEventListener("drop", (event) => {
    if (event.dataTransfer.files[0]) {
      readFile(event.dataTransfer.files[0]);
    }
  });
  for (const name of ["input", "change"]) {
    byId("controls").addEventListener(name, (event) => {
      if (event.target.type !== "file") {
        updateSoon();
      }
    });
  }
  updateSoon();
}

if (choices) {
  start();
}
