// Apply the chosen theme before the page is painted, and offer the choice.

const KEY = "joulecast-theme";
const THEMES = ["auto", "light", "dark"];

// Storage may be forbidden: the theme then lasts until the next page.
function readTheme() {
  try {
    const stored = localStorage.getItem(KEY);
    return THEMES.includes(stored) ? stored : "auto";
  } catch {
    return "auto";
  }
}

function storeTheme(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    return;
  }
}

function applyTheme(theme) {
  if (theme === "auto") {
    delete document.documentElement.dataset.theme;
  } else {
    document.documentElement.dataset.theme = theme;
  }
}

applyTheme(readTheme());

document.addEventListener("DOMContentLoaded", () => {
  const choice = document.getElementById("theme");
  choice.value = readTheme();
  choice.addEventListener("change", () => {
    storeTheme(choice.value);
    applyTheme(choice.value);
  });
  const current = document.querySelector(".site-nav [aria-current]");
  const list = current?.closest("ul");
  if (list) {
    list.scrollLeft = current.offsetLeft - (list.clientWidth - current.offsetWidth) / 2;
  }
});
