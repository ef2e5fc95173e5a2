// Light or dark: the system's choice, until the reader makes another.

const KEY = "rollcage-theme";

/** Show what was chosen before. */
export function restoreTheme() {
  const chosen = localStorage.getItem(KEY);
  if (chosen) document.documentElement.dataset.theme = chosen;
}

/** Choose the other one. */
export function switchTheme() {
  const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, document.documentElement.dataset.theme);
  dispatchEvent(new Event("theme"));
}
