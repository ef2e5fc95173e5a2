// Numbers, times and sizes as people read them. What is not known is a dash.

const DASH = "–";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** Three to four significant digits. */
export function number(value) {
  if (!isNumber(value)) return DASH;
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e15 || size < 1e-4) return value.toExponential(2);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en-US");
  if (size >= 1e6) return `${trimmed(value / 1e6)} M`;
  if (size >= 1e4) return Math.round(value).toLocaleString("en-US");
  return trimmed(value);
}

const trimmed = (value) => String(Number(value.toPrecision(4)));

/** A share of one as percent. */
export function percent(value, digits = 1) {
  return isNumber(value) ? `${(100 * value).toFixed(digits)} %` : DASH;
}

/** Seconds as "1 h 2 min". */
export function duration(seconds) {
  if (!isNumber(seconds)) return DASH;
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 60) return `${Number(seconds.toFixed(seconds < 10 ? 1 : 0))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

/** Seconds as 1:02:03, for axes. */
export function clock(seconds) {
  if (!isNumber(seconds)) return DASH;
  const whole = Math.round(seconds * 10) / 10;
  const rest = Number((whole % 60).toFixed(1));
  const minutes = Math.floor(whole / 60);
  const tail = `${rest < 10 ? "0" : ""}${rest}`;
  if (minutes < 60) return `${minutes}:${tail}`;
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${tail}`;
}

/** Seconds since 1970 as local date and time; of today only the time. */
export function moment(epoch) {
  if (!isNumber(epoch) || epoch <= 0) return DASH;
  const [date, time] = new Date(1000 * epoch).toLocaleString("sv-SE").split(" ");
  return date === new Date().toLocaleDateString("sv-SE") ? time : `${date} ${time}`;
}

/** How long ago. */
export function ago(epoch) {
  if (!isNumber(epoch) || epoch <= 0) return DASH;
  const seconds = Math.max(0, Date.now() / 1000 - epoch);
  if (seconds < 2) return "now";
  const [size, unit] = [[86400, "days"], [3600, "h"], [60, "min"]].find(([it]) => seconds >= 2 * it) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

/** Bytes in KiB, MiB or GiB. */
export function bytes(value) {
  if (!isNumber(value)) return DASH;
  if (value < 2 ** 10) return `${value} bytes`;
  if (value < 2 ** 20) return `${trimmed(value / 2 ** 10)} KiB`;
  return value >= 2 ** 30 ? `${trimmed(value / 2 ** 30)} GiB` : `${trimmed(value / 2 ** 20)} MiB`;
}
