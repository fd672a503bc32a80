// Follow campaigns while they run, by server-sent events, and stop one.

import { showFigure } from "./plots.js";

const chosen = document.getElementById("chosen");
let known = document.querySelectorAll("#campaigns tr").length;

function follow() {
  const key = chosen ? chosen.dataset.campaign : "";
  const events = new EventSource(`/api/campaigns/events?campaign=${encodeURIComponent(key)}`);
  events.addEventListener("campaigns", (event) => update(JSON.parse(event.data)));
  // A page that is left must not keep its connection.
  window.addEventListener("pagehide", () => events.close());
}

function update(state) {
  if (state.campaigns.length !== known) {
    known = state.campaigns.length;
    location.reload();
    return;
  }
  for (const one of state.campaigns) {
    const row = document.querySelector(`tr[data-campaign="${CSS.escape(one.key)}"]`);
    if (row) {
      setText(row.querySelector("[data-state]"), one.state);
      setTexts(row.querySelectorAll("[data-figure]"), one.figures);
    }
  }
  if (state.chosen) {
    updateChosen(state.chosen);
  }
}

function updateChosen(one) {
  setText(document.getElementById("lead"), one.lead);
  setText(document.getElementById("reason"), one.reason);
  setTexts(chosen.querySelectorAll(".figures .value"), one.figures);
  const stop = document.getElementById("stop");
  stop.hidden = !one.is_running;
  stop.disabled = one.is_stop_requested;
  const canvas = chosen.querySelector(".canvas");
  if (!one.figure) {
    return;
  }
  if (canvas) {
    showFigure(canvas, one.figure);
  } else {
    // The first plot comes with its heading, its sentence and its table.
    location.reload();
  }
}

function setTexts(elements, texts) {
  elements.forEach((element, place) => setText(element, texts[place]));
}

function setText(element, text) {
  // Unchanged text is left alone, or screen readers would read it again.
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

async function stopChosen(button) {
  const error = document.getElementById("stop-error");
  error.textContent = "";
  button.disabled = true;
  try {
    const key = encodeURIComponent(chosen.dataset.campaign);
    const response = await fetch(`/api/campaigns/${key}/stop`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: "{}",
    });
    if (!response.ok) {
      error.textContent = (await response.json()).detail;
    }
  } catch {
    error.textContent = "The server cannot be reached: check that it is running.";
    button.disabled = false;
  }
}

document.getElementById("stop")?.addEventListener("click", (event) => stopChosen(event.currentTarget));
follow();
