// Show a result file that is dropped on the page: the server checks it and answers with its report.

const drop = document.querySelector("[data-preview]");
const input = drop.querySelector("input");
const error = document.getElementById("drop-error");
const shown = document.getElementById("shown");

async function show(file) {
  error.textContent = "";
  const response = await fetch(drop.dataset.preview, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: file,
  });
  if (!response.ok) {
    const problem = await response.json().catch(() => ({ detail: "the server cannot be reached" }));
    error.textContent = `${file.name}: ${problem.detail}`;
    return;
  }
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  shown.replaceChildren(...page.body.childNodes);
}

async function tryToShow(file) {
  try {
    await show(file);
  } catch {
    error.textContent = `${file.name} cannot be sent: check that the server is running`;
  }
}

input.addEventListener("change", () => {
  if (input.files.length) {
    tryToShow(input.files[0]);
  }
});

drop.addEventListener("dragover", (event) => {
  event.preventDefault();
  drop.dataset.over = "";
});

drop.addEventListener("dragleave", () => delete drop.dataset.over);

drop.addEventListener("drop", (event) => {
  event.preventDefault();
  delete drop.dataset.over;
  if (event.dataTransfer.files.length) {
    tryToShow(event.dataTransfer.files[0]);
  }
});
