// What changes while one looks: the server's stream of events, and drawing that keeps up with any number of them.

import { request } from "./api.js";

const LONGEST_PAUSE_S = 10;

/**
 * Follow the server's stream until `signal` is aborted; it is opened again where it breaks.
 *
 * onMessage(name, data) gets every message, onState(state) "live" or "lost".
 */
export async function follow(params, { signal, onMessage, onState }) {
  let pause_s = 0.5;
  while (!signal.aborted) {
    try {
      const response = await request("/stream", { params, signal });
      onState("live");
      pause_s = 0.5;
      await read(response.body.getReader(), onMessage);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401 || error.status === 404) return onState("");
    }
    if (signal.aborted) return;
    onState("lost");
    await new Promise((resolve) => setTimeout(resolve, 1000 * pause_s));
    pause_s = Math.min(LONGEST_PAUSE_S, 2 * pause_s);
  }
}

async function read(reader, onMessage) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const parts = text.split(/\r?\n\r?\n/);
    text = parts.pop();
    for (const part of parts) {
      let name = "message";
      const data = [];
      for (const line of part.split(/\r?\n/)) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5));
      }
      if (data.length) onMessage(name, JSON.parse(data.join("\n")));
    }
  }
}

/**
 * Return a function that runs `work` soon, however often it is called: never twice at once, never more often than every
 * `interval_ms`, and never while nobody sees the page. The last call is never lost.
 */
export function throttled(work, interval_ms, signal) {
  let wanted = false;
  let busy = false;
  const next = async () => {
    if (busy || !wanted || signal.aborted || document.hidden) return;
    busy = true;
    wanted = false;
    const start = performance.now();
    try {
      await work();
    } finally {
      const spent_ms = performance.now() - start; // a slow page leaves the browser half of the time
      setTimeout(() => { busy = false; next(); }, Math.max(interval_ms - spent_ms, spent_ms));
    }
  };
  document.addEventListener("visibilitychange", next, { signal });
  return () => { wanted = true; next(); };
}
