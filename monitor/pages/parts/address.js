// The page's state is its address: #/PAGE?key=value&key=value. Every view can be bookmarked and sent to somebody.

/** Return {page, params} of the address. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { page: path || "runs", params: new URLSearchParams(query) };
}

/** Return the address of a page; null, "" and empty lists are left out, lists give repeated keys. */
export function address(page, values = {}) {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(values))
    for (const item of [value].flat()) if (item !== null && item !== undefined && item !== "") params.append(key, item);
  const query = params.toString();
  return `#/${page}${query ? `?${query}` : ""}`;
}

/** Return this address with some values changed. */
export function changed(values) {
  const { page, params } = here();
  const all = {};
  for (const key of new Set(params.keys())) all[key] = params.getAll(key);
  return address(page, { ...all, ...values });
}

/** Go to this address with some values changed, without another entry in the history. */
export function change(values) {
  location.replace(changed(values));
}
