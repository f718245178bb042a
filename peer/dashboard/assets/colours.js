// Colours of prefixes. Each has a colour that its name alone chooses, so that it is the same for all
// who look; if another prefix has that one, it takes a free one, which this browser remembers.

import { store } from './store.js';

/** What the kinds of rectangles in the task stream are called. */
export const KINDS = ['compute', 'transfer', 'disk write', 'disk read', 'deserialize', 'failed', 'other'];

export const [COMPUTE, TRANSFER, DISK_WRITE, DISK_READ, DESERIALIZE, FAILED] = KINDS.keys();

// FNV-1a with the final mix of MurmurHash3, since names often differ in their last character only.
function hash(text) {
  let value = 0x811c9dc5;
  for (let index = 0; index < text.length; index += 1) {
    value = Math.imul(value ^ text.charCodeAt(index), 0x01000193);
  }
  value = Math.imul(value ^ (value >>> 16), 0x85ebca6b);
  value = Math.imul(value ^ (value >>> 13), 0xc2b2ae35);
  return (value ^ (value >>> 16)) >>> 0;
}

function gamma(linear) {
  const bounded = Math.min(1, Math.max(0, linear));
  return Math.round(255 * (bounded <= 0.0031308 ? 12.92 * bounded : 1.055 * bounded ** (1 / 2.4) - 0.055));
}

// From OKLCH, whose steps of hue look alike, to sRGB.
function rgb(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    gamma(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    gamma(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    gamma(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

const HUES = 12;
const COLOURS = [
  [0.7, 0.13],
  [0.58, 0.1],
  [0.83, 0.08],
].flatMap(([lightness, chroma]) =>
  // Hues between 0 and 50 degrees are red, which is the colour of errors.
  Array.from({ length: HUES }, (_, hue) => rgb(lightness, chroma, 55 + hue * 25)),
);

const STORED = 'daskwire-colours';
const stored = store('localStorage');

const chosen = new Map();
const remembered = readRemembered();

function readRemembered() {
  try {
    return new Map(Object.entries(JSON.parse(stored.get(STORED)) ?? {}));
  } catch {
    return new Map();
  }
}

function choose(prefix) {
  const taken = new Set(chosen.values());
  let place = (remembered.get(prefix) ?? hash(prefix)) % COLOURS.length || 0;
  while (taken.has(place) && taken.size < COLOURS.length) {
    place = (place + 7) % COLOURS.length;
  }
  // With more prefixes than colours, there is no use in remembering.
  if (taken.size < COLOURS.length) {
    chosen.set(prefix, place);
    stored.set(STORED, JSON.stringify(Object.fromEntries(chosen)));
  }
  return place;
}

/** The red, green and blue of a prefix. */
export function prefixColour(prefix) {
  return COLOURS[chosen.get(prefix) ?? choose(prefix)];
}

/** The same as text for CSS. */
export function prefixCss(prefix) {
  return `rgb(${prefixColour(prefix).join(' ')})`;
}

/** A colour for any other name, as text for CSS. */
export function nameCss(name) {
  return `rgb(${COLOURS[hash(name) % COLOURS.length].join(' ')})`;
}
