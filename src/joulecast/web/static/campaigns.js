// Follow campaigns while they run, by server-sent events, and stop one.

import { showFigure } from "./plots.js";

const chosen = document.getElementById("chosen");
const listed = Array.from(document.querySelectorAll("#campaigns tr"), (row) => row.dataset.campaign);

function follow() {
  const key = chosen ? chosen.dataset.campaign : "";
  const events = new EventSource(`/api/campaigns/events?campaign=${encodeURIComponent(key)}`);
  events.addEventListener("campaigns", (event) => update(JSON.parse(event.data)));
  const error = document.getElementById("follow-error");
  events.addEventListener("open", () => setText(error, ""));
  // Browsers try again after a lost connection, but not after a refusal.
  events.addEventListener("error", () => {
    const isRefused = events.readyState === EventSource.CLOSED;
    setText(error, isRefused ? "Live progress is not available: reload the page." : "The connection is lost: trying again.");
  });
  // A page that is left must not keep its connection.
  window.addEventListener("pagehide", () => events.close());
}

function update(state) {
  if (state.campaigns.map((one) => one.key).join() !== listed.join()) {
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
      button.disabled = false;
    }
  } catch {
    error.textContent = "The server cannot be reached: check that it is running.";
    button.disabled = false;
  }
}

document.getElementById("stop")?.addEventListener("click", (event) => stopChosen(event.currentTarget));
follow();
