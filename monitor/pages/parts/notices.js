// What the page says over everything else: alerts that fire, questions before an action, and what went wrong.

import { address } from "./address.js";
import { get, hasToken, post, runPath } from "./api.js";
import { fill, h } from "./dom.js";

/** Show the alerts that fire: of one run, or a line for each run that has some. */
export async function showAlerts(box, run, signal) {
  let lines = [];
  if (run) {
    const { rules } = await get(runPath(run, "/alerts"), {}, signal);
    lines = rules.filter((rule) => rule.state === "firing").map((rule) =>
      line(rule.severity, address("run", { run }), rule.title, rule.message, rule.advice));
  } else {
    const { runs } = await get("/runs", {}, signal);
    lines = runs.filter((it) => it.num_alerts).map((it) =>
      line(it.worst, address("run", { run: it.id }), it.name, `${it.num_alerts} alert${it.num_alerts > 1 ? "s" : ""}: open the run to see what to do`, ""));
  }
  const order = { critical: 0, warning: 1 };
  lines.sort((a, b) => order[a.dataset.severity] - order[b.dataset.severity]);
  fill(box, lines.slice(0, 5), lines.length > 5 ? h("p", { class: "quiet" }, `and ${lines.length - 5} more`) : null);
}

function line(severity, href, title, message, advice) {
  return h("div", { class: `alert ${severity}`, "data-severity": severity, role: "alert" },
    h("a", { href, "data-key": `alert-${title}` }, h("b", {}, title)), " ", message, advice ? h("span", { class: "advice" }, ` ${advice}`) : null);
}

/** Make a button for an action; it asks first where `question` is given, and says what came of it. */
export function action(label, path, body, { question, done, kind = "", title } = {}) {
  const button = h("button", {
    type: "button", class: kind, "data-key": `action-${path}`, disabled: !hasToken(), "aria-label": title ?? null,
    title: hasToken() ? title ?? null : "Open the address that `rollcage monitor` printed: actions need its token.",
    onclick: async () => {
      if (question && !(await confirmed(question, label))) return;
      button.disabled = true;
      try {
        const answer = await post(path, body);
        say(answer.message ?? `${label}: done.`);
        await done?.();
      } catch (error) {
        say(`${label}: ${error.message}`, "error");
      } finally {
        button.disabled = false;
      }
    },
  }, label);
  return button;
}

/** Ask; true where the reader agrees. */
export function confirmed(question, label) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": question },
      h("p", {}, question),
      h("form", { method: "dialog", class: "row" }, h("button", { value: "no" }, "Cancel"), h("button", { value: "yes", class: "danger" }, label)));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Say something for a few seconds. */
export function say(text, kind = "") {
  document.querySelector(".toast")?.remove();
  const toast = h("div", { class: `toast ${kind}`, role: "status" }, text);
  document.body.append(toast);
  setTimeout(() => toast.remove(), 6000);
}

/** Make the box for an error: what it was, and what to do. */
export function failure(error, again) {
  return h("div", { class: "failure", role: "alert" }, h("h1", {}, "This page could not be shown"), h("p", {}, error.message),
    h("button", { type: "button", onclick: again }, "Try again"), " ", h("a", { href: "#/runs" }, "All runs"));
}

/** Make the form that asks for the token; onToken(text). */
export function tokenForm(onToken) {
  const field = h("input", { id: "token", type: "password", autocomplete: "off", required: true });
  return h("form", { class: "failure", onsubmit: (event) => { event.preventDefault(); onToken(field.value); } },
    h("h1", {}, "This monitor needs its token"),
    h("p", {}, "It stands in the address that ", h("code", {}, "rollcage monitor"), " printed, after ", h("code", {}, "#token="), ", and in its token file."),
    h("label", { for: "token" }, "Token"), " ", field, " ", h("button", {}, "Open"));
}
