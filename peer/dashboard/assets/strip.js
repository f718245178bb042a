// A lane of the task stream as pixels.

import { COMPUTE, DESERIALIZE, DISK_READ, DISK_WRITE, FAILED, TRANSFER } from './colours.js';

const RED = [196, 36, 36];
const GREY = [128, 134, 142];

// Which part of a lane's height a kind takes, so that the kinds differ without their colours.
const BANDS = {
  [COMPUTE]: [0, 1],
  [FAILED]: [0, 1],
  [TRANSFER]: [0.6, 1],
  [DISK_WRITE]: [0, 0.4],
  [DISK_READ]: [0, 0.4],
  [DESERIALIZE]: [0.4, 0.6],
};

// Whether the pattern of a kind leaves a pixel dark.
function isDark(kind, x, y, scale) {
  const [column, row] = [Math.floor(x / scale), Math.floor(y / scale)];
  switch (kind) {
    case TRANSFER:
      return (column + row) % 4 === 0;
    case DISK_WRITE:
      return column % 3 === 0;
    case DISK_READ:
      return column % 3 === 0 && row % 2 === 0;
    case FAILED:
      return (column + row) % 5 < 2;
    default:
      return false;
  }
}

/** One lane's columns of pixels: how much of each is busy, by band, and with what. */
export class Strip {
  constructor(width, colours) {
    this.width = width;
    this.colours = colours;
    this.layers = [COMPUTE, TRANSFER, DISK_WRITE, DESERIALIZE].map((band) => ({
      band: BANDS[band],
      busy: new Float32Array(width),
      most: new Float32Array(width),
      kind: new Uint8Array(width),
      prefix: new Uint16Array(width),
    }));
  }

  clear() {
    for (const { busy, most } of this.layers) {
      busy.fill(0);
      most.fill(0);
    }
  }

  #layer(kind) {
    switch (kind) {
      case TRANSFER:
        return this.layers[1];
      case DISK_WRITE:
      case DISK_READ:
        return this.layers[2];
      case DESERIALIZE:
        return this.layers[3];
      default:
        return this.layers[0];
    }
  }

  add(from, to, density, kind, prefix) {
    const { busy, most, kind: kinds, prefix: prefixes } = this.#layer(kind);
    const end = Math.min(this.width, Math.ceil(to));
    for (let x = Math.max(0, Math.floor(from)); x < end; x += 1) {
      const part = Math.max(0.02, Math.min(x + 1, to) - Math.max(x, from)) * density;
      busy[x] += part;
      const weight = kind === FAILED ? part + 1 : part;
      if (weight > most[x]) {
        most[x] = weight;
        kinds[x] = kind;
        prefixes[x] = prefix;
      }
    }
  }

  // Copies the lane to rows `top` to `bottom`, but not below `limit`.
  copy(pixels, stride, left, top, bottom, limit, ground, scale) {
    const height = bottom - top;
    for (const layer of this.layers) {
      const first = Math.max(0, top + Math.floor(layer.band[0] * height));
      const last = Math.min(limit, top + Math.max(1, Math.ceil(layer.band[1] * height)));
      if (last <= first) {
        continue;
      }
      for (let x = 0; x < this.width; x += 1) {
        if (layer.busy[x] > 0) {
          this.#column(layer, x, pixels, stride, left, first, last, ground, scale);
        }
      }
    }
  }

  #column(layer, x, pixels, stride, left, first, last, ground, scale) {
    const kind = layer.kind[x];
    const own = kind === FAILED ? RED : kind > FAILED ? GREY : this.colours[layer.prefix[x]];
    const share = kind === FAILED ? 1 : Math.min(1, 0.1 + 0.9 * layer.busy[x]);
    const colour = pack(own.map((value, index) => value * share + ground[index] * (1 - share)));
    const dark = pack(own.map((value) => value * 0.3));
    for (let y = first, at = first * stride + left + x; y < last; y += 1, at += stride) {
      pixels[at] = isDark(kind, x, y, scale) ? dark : colour;
    }
  }
}

/** A colour as a pixel of a canvas. */
export function pack([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
