// Elements. A string only ever becomes a text node, so that nothing that a model wrote is read as HTML.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "open", "hidden", "indeterminate"]);

function apply(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) {
      if (typeof value !== "function") throw new TypeError(`${name} must be a function`);
      element.addEventListener(name.slice(2), value);
    } else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  return element;
}

/** Make an HTML element: attributes, listeners (`onclick`: a function), children (elements, text, lists, null). */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  element.append(...flat(children));
  return apply(element, attributes); // after the children: a select's value needs its options
}

/** Make an SVG element. */
export function s(tag, attributes = {}, ...children) {
  const element = apply(document.createElementNS(SVG, tag), attributes);
  element.append(...flat(children));
  return element;
}

/** Put children behind those that an element has: elements, text, lists, null. */
export function add(element, ...children) {
  element.append(...flat(children));
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/**
 * Replace an element's children, keeping what the reader has open and where the focus is: elements are known again by
 * their `id` or `data-key`.
 */
export function fill(element, ...children) {
  const active = element.contains(document.activeElement) ? keyOf(document.activeElement) : null;
  const open = new Set([...element.querySelectorAll("details[open]")].map(keyOf));
  const shut = new Set([...element.querySelectorAll("details:not([open])")].map(keyOf));
  const fresh = document.createDocumentFragment();
  fresh.append(...flat(children));
  for (const details of fresh.querySelectorAll("details")) {
    const key = keyOf(details);
    if (key && open.has(key)) details.open = true;
    if (key && shut.has(key)) details.open = false;
  }
  element.replaceChildren(fresh);
  if (active) find(element, active)?.focus({ preventScroll: true });
  return element;
}

/** What an element is known by. */
export function keyOf(element) {
  return element.id || element.dataset?.key || null;
}

/** Find an element by its `id` or `data-key`. */
export function find(root, key) {
  return root.querySelector(`#${CSS.escape(key)}, [data-key="${CSS.escape(key)}"]`);
}
