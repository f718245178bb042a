// Numbers and names as people read them.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** "1.5 GiB". */
export function bytes(value) {
  if (value === null || value === undefined) {
    return '–';
  }
  let unit = 0;
  let rest = Math.abs(value);
  while (rest >= 1000 && unit < UNITS.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || rest >= 100 ? 0 : 1;
  return `${value < 0 ? '-' : ''}${rest.toFixed(digits)} ${UNITS[unit]}`;
}

/** "3.2 MiB/s". */
export function rate(value) {
  return value === null || value === undefined ? '–' : `${bytes(value)}/s`;
}

/** "12.3 ms", "2 min 5 s", "3 h 20 min". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) {
    return '–';
  }
  const size = Math.abs(seconds);
  if (size < 1e-3) {
    return `${(seconds * 1e6).toFixed(0)} µs`;
  }
  if (size < 1) {
    return `${(seconds * 1e3).toFixed(size < 0.1 ? 1 : 0)} ms`;
  }
  if (size < 60) {
    return `${seconds.toFixed(size < 10 ? 2 : 1)} s`;
  }
  const whole = Math.round(size);
  if (whole < 3600) {
    return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  }
  if (whole < 86400) {
    return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  }
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

const GROUPED = new Intl.NumberFormat('en');

/** "1,234,567". */
export function count(value) {
  return value === null || value === undefined ? '–' : GROUPED.format(value);
}

/** "3 workers", "1 worker". */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
}

/** "87 %". */
export function percent(value) {
  return value === null || value === undefined ? '–' : `${value.toFixed(0)} %`;
}

/** The local time of day; `digits` of the fraction of a second. */
export function clock(time, digits = 0) {
  const date = new Date(time * 1000);
  const text = [date.getHours(), date.getMinutes(), date.getSeconds()]
    .map((part) => String(part).padStart(2, '0'))
    .join(':');
  return digits === 0 ? text : text + (time - Math.floor(time)).toFixed(digits).slice(1);
}

/** The local date and time. */
export function dateTime(time) {
  const date = new Date(time * 1000);
  const day = [date.getFullYear(), date.getMonth() + 1, date.getDate()]
    .map((part) => String(part).padStart(2, '0'))
    .join('-');
  return `${day} ${clock(time)}`;
}

// Control characters, and those that turn the direction of text or are invisible.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

function escape(character) {
  return `\\u{${character.codePointAt(0).toString(16)}}`;
}

/** A name of a peer in one line, with what would be invisible or change other text escaped. */
export function name(text, limit = 200) {
  const shown = String(text).replace(UNSEEN, escape);
  return shown.length <= limit ? shown : `${shown.slice(0, limit)}…`;
}

/** The same for text of several lines. */
export function lines(text) {
  return String(text).replace(UNSEEN, (character) =>
    character === '\n' || character === '\t' ? character : escape(character),
  );
}

/** Compares names by their numbers, too: worker-9 comes before worker-10. */
export const byName = new Intl.Collator('en', { numeric: true }).compare;

/** A worker's name, or its address without the scheme if it has none of its own. */
export function workerName(worker) {
  return worker.name && worker.name !== worker.address
    ? name(worker.name, 60)
    : name(worker.address.replace(/^[a-z]+:\/\//, ''), 60);
}

/** The states of tasks in the order of their life. */
export const STATES = ['memory', 'released', 'processing', 'queued', 'waiting', 'no-worker', 'erred'];

/** The sum of the numbers of tasks by state. */
export function total(states) {
  return Object.values(states).reduce((sum, value) => sum + value, 0);
}
