// Draw the plots of a page with plotly.js, in the colours of the theme.
//
// Every element with data-plot="ID" shows the figure in the JSON script element with that id.

// A double click resets what was zoomed: buttons would only stand in the way of the keyboard.
const CONFIG = { responsive: true, displayModeBar: false };
const NARROW_PX = 560;
const drawn = new Map();

/** Show a figure ({data, layout}) in an element, or replace the one that it shows. */
export function showFigure(element, figure) {
  forgetRemoved();
  drawn.set(element, figure);
  return draw(element);
}

/** Forget elements that are no longer part of the page, with the listeners that plotly added. */
function forgetRemoved() {
  for (const element of drawn.keys()) {
    if (!element.isConnected) {
      window.Plotly.purge(element);
      drawn.delete(element);
    }
  }
}

function draw(element) {
  const figure = applyTheme(structuredClone(drawn.get(element)));
  fitWidth(figure, element.clientWidth);
  return window.Plotly.react(element, figure.data, figure.layout, CONFIG);
}

// Colours: figures name those of a light page; joulecast.css has a variable for each that differs.

function applyTheme(figure) {
  const find = makeColourFinder();
  replaceColours(figure, find);
  const { layout } = figure;
  const surface = find("#ffffff");
  layout.paper_bgcolor = surface;
  layout.plot_bgcolor = surface;
  layout.font = { ...layout.font, color: find("#2b2b2b"), family: getComputedStyle(document.body).fontFamily };
  const muted = find("#6b6b6b");
  layout.hoverlabel = {
    ...layout.hoverlabel,
    bgcolor: surface,
    bordercolor: muted,
    font: { color: find("#2b2b2b") },
  };
  for (const [name, axes] of Object.entries(layout)) {
    if (name.startsWith("scene")) {
      for (const side of ["xaxis", "yaxis", "zaxis"]) {
        axes[side] = { ...axes[side], color: find("#2b2b2b"), backgroundcolor: surface };
      }
    }
  }
  return figure;
}

function makeColourFinder() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const known = new Map();
  const find = (colour) => {
    const hex = colour.toLowerCase();
    if (!known.has(hex)) {
      probe.style.color = `var(--plot-${hex.slice(1)}, ${hex})`;
      known.set(hex, getComputedStyle(probe).color);
    }
    return known.get(hex);
  };
  queueMicrotask(() => probe.remove());
  return find;
}

function replaceColours(value, find) {
  for (const [key, item] of Object.entries(value)) {
    if (typeof item === "string") {
      value[key] = replaceColour(item, find);
    } else if (item !== null && typeof item === "object" && !ArrayBuffer.isView(item)) {
      replaceColours(item, find);
    }
  }
}

function replaceColour(text, find) {
  if (text === "white") {
    return find("#ffffff");
  }
  if (/^#[0-9a-f]{6}$/i.test(text)) {
    return find(text);
  }
  const parts = /^rgba\((\d+),(\d+),(\d+),([\d.]+)\)$/.exec(text);
  if (!parts) {
    return text;
  }
  const hex = parts.slice(1, 4).map((part) => Number(part).toString(16).padStart(2, "0"));
  return find(`#${hex.join("")}`).replace("rgb(", "rgba(").replace(")", `, ${parts[4]})`);
}

// Margins shrink on a phone; a 3-D scene has room of its own.

function fitWidth({ layout }, width) {
  layout.autosize = true;
  delete layout.width;
  if (layout.scene) {
    layout.margin = { ...layout.margin, t: 0, l: 0, r: 0, b: 40 };
  }
  if (width < NARROW_PX) {
    layout.margin = { ...layout.margin, l: 48, r: Math.min(layout.margin?.r ?? 20, 24) };
    layout.font.size = 11;
  }
}

/** Draw all plots of the page, those that were added to it later too. */
export function drawAll() {
  for (const element of document.querySelectorAll("[data-plot]")) {
    const source = document.getElementById(element.dataset.plot);
    if (source) {
      showFigure(element, JSON.parse(source.textContent));
    }
  }
}

document.addEventListener("themechange", () => {
  forgetRemoved();
  drawn.forEach((_, element) => draw(element));
});
drawAll();
