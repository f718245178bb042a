// Colours of prefixes: made from the name alone, so that they are the same after a reload and for
// all who look.

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

const known = new Map();

/** The red, green and blue of a prefix. */
export function prefixColour(prefix) {
  let colour = known.get(prefix);
  if (!colour) {
    const value = hash(prefix);
    // Hues between 0 and 50 degrees are red, which is the colour of errors.
    const hue = 55 + (value % 305);
    const lightness = [0.62, 0.7, 0.78, 0.84][(value >>> 12) % 4];
    const chroma = [0.12, 0.07][(value >>> 20) % 2];
    colour = rgb(lightness, chroma, hue);
    if (known.size > 10000) {
      known.clear();
    }
    known.set(prefix, colour);
  }
  return colour;
}

/** The same as text for CSS. */
export function prefixCss(prefix) {
  return `rgb(${prefixColour(prefix).join(' ')})`;
}
