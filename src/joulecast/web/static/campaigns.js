// Follow campaigns while they run, by server-sent events, and stop one.
//
// When a campaign changes, the server renders the page again, and what differs is replaced.

const PARTS = ["campaigns", "chosen-heading", "stopping", "report"];
const byId = (id) => document.getElementById(id);

function follow() {
  const events = new EventSource("/api/campaigns/events");
  let isFirst = true;
  events.addEventListener("campaigns", () => {
    // The page has just been loaded.
    if (!isFirst) {
      update();
    }
    isFirst = false;
  });
  const error = byId("follow-error");
  events.addEventListener("open", () => setText(error, ""));
  // Browsers try again after a lost connection, but not after a refusal.
  events.addEventListener("error", () => {
    const isRefused = events.readyState === EventSource.CLOSED;
    setText(error, isRefused ? "Live progress is not available: reload the page." : "The connection is lost: trying again.");
  });
  // A page that is left must not keep its connection.
  window.addEventListener("pagehide", () => events.close());
}

async function update() {
  const response = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!response.ok || !byId("campaigns")) {
    location.reload();
    return;
  }
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const open = Array.from(document.querySelectorAll("#report details"), (one) => one.open);
  for (const id of PARTS) {
    const next = page.getElementById(id);
    // Unchanged parts are left alone, or the keyboard would lose its place.
    if (next && byId(id).innerHTML !== next.innerHTML) {
      byId(id).replaceChildren(...next.childNodes);
    }
  }
  document.querySelectorAll("#report details").forEach((one, at) => {
    one.open = open[at] ?? false;
  });
}

function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

async function stopChosen(button) {
  const error = byId("stop-error");
  error.textContent = "";
  button.disabled = true;
  try {
    const key = encodeURIComponent(byId("chosen").dataset.campaign);
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

byId("stopping")?.addEventListener("click", (event) => {
  if (event.target.id === "stop") {
    stopChosen(event.target);
  }
});
follow();
