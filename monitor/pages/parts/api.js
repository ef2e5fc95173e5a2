// The server's JSON. The token comes in the address' fragment, which browsers send to nobody, and stays in this tab.

const KEY = "rollcage-token";

/** Take the token out of the address, where there is one. */
export function takeToken() {
  const found = /[#&?]token=([^&]*)/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(KEY, decodeURIComponent(found[1]));
  const rest = location.hash.replace(/([#&?])token=[^&]*&?/, "$1").replace(/[#&?]$/, "");
  history.replaceState(null, "", location.pathname + rest);
}

/** Whether this tab has a token. */
export function hasToken() {
  return Boolean(sessionStorage.getItem(KEY));
}

/** Keep a token that somebody typed. */
export function keepToken(token) {
  sessionStorage.setItem(KEY, token.trim());
}

/** What the server answered instead of what was asked for. `status` is 0 where it could not be reached. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Ask; returns the Response. Throws ApiError. */
export async function request(path, { params = {}, signal, method = "GET", body } = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params))
    for (const item of [value].flat()) if (item !== null && item !== undefined && item !== "") query.append(key, item);
  const headers = {};
  const token = sessionStorage.getItem(KEY);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (method === "POST") headers["Content-Type"] = "application/json";
  let response;
  try {
    const text = query.toString();
    response = await fetch(`/api${path}${text ? `?${text}` : ""}`, {
      headers,
      method,
      signal,
      body: method === "POST" ? JSON.stringify(body ?? {}) : undefined,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The monitor does not answer. Is `rollcage monitor` still running?", 0);
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw new ApiError(answer.error?.message ?? `The monitor answered ${response.status}.`, response.status);
}

/** Ask for JSON. */
export async function get(path, params, signal) {
  return (await request(path, { params, signal })).json();
}

/** Ask for an action. */
export async function post(path, body) {
  return (await request(path, { method: "POST", body })).json();
}

/** Return the path of a run. */
export function runPath(id, rest = "") {
  return `/runs/${encodeURIComponent(id)}${rest}`;
}
