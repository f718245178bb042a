// The task stream: what each thread of each worker did over time, on a canvas.

import { COMPUTE, KINDS, prefixColour, prefixCss } from './colours.js';
import { make, setText } from './dom.js';
import { clock, count, duration, name } from './format.js';
import { Strip, pack } from './strip.js';

const AXIS = 22;
const MIN_LANE = 5;
const MAX_LANE = 26;
const SHORTEST = 1e-4;
const STEPS = [
  1e-5, 1e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900,
  1800, 3600, 7200, 14400, 43200, 86400,
];

/** A canvas that shows the records, and follows new ones until the user moves it. */
export class Timeline {
  /** What to show alone, or null for all. */
  highlighted = null;
  #records;
  #workers = new Map();
  // Seconds that the user has chosen to see.
  #chosen = null;
  #right = null;
  #frame = 0;
  #laneHeight = MIN_LANE;
  #pointers = new Map();
  #cursor = null;

  constructor(records) {
    this.#records = records;
    this.canvas = make('canvas', {
      tabindex: '0',
      role: 'img',
      'aria-label':
        'Task stream: what each thread of each worker did over time. The table below it has its totals. Keys: left and right move, plus and minus zoom, up and down scroll, End follows what is new.',
    });
    this.spacer = make('div', { class: 'stream-spacer' });
    this.scroller = make('div', { class: 'stream' }, this.canvas, this.spacer);
    this.tip = make('p', { class: 'stream-tip', 'aria-hidden': 'true' });
    this.state = make('span', { class: 'quiet' });
    const button = (label, title, action) =>
      make('button', { type: 'button', title, 'aria-label': title, onclick: action }, label);
    this.follow = make(
      'button',
      { type: 'button', 'aria-pressed': 'true', onclick: () => this.#followNew() },
      'Follow',
    );
    this.controls = make(
      'div',
      { class: 'buttons' },
      this.state,
      button('−', 'Show a longer time', () => this.#zoom(2)),
      button('+', 'Show a shorter time', () => this.#zoom(0.5)),
      button('All', 'Show all that was recorded', () => this.#showAll()),
      this.follow,
    );
    this.node = make('div', { class: 'stream-box' }, this.scroller, this.tip);
    this.#listen();
  }

  /** Draws at the next frame. */
  draw() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#paint();
    });
  }

  /** Takes the names of workers by their addresses. */
  setWorkers(names) {
    this.#workers = names;
    this.draw();
  }

  stop() {
    this.resizes.disconnect();
    cancelAnimationFrame(this.#frame);
  }

  #listen() {
    this.resizes = new ResizeObserver(() => this.draw());
    this.resizes.observe(this.scroller);
    this.scroller.addEventListener('scroll', () => this.draw());
    const { canvas } = this;
    canvas.addEventListener(
      'wheel',
      (event) => {
        // The wheel scrolls lanes and page, as everywhere; with Control, or sideways, it acts on time.
        if (event.ctrlKey || event.metaKey) {
          this.#zoom(Math.exp(event.deltaY / 300), event.offsetX);
        } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          this.#move(((event.deltaX || event.deltaY) / this.#width()) * this.#span);
        } else {
          return;
        }
        event.preventDefault();
      },
      { passive: false },
    );
    canvas.addEventListener('pointerdown', (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.#pointers.set(event.pointerId, event);
    });
    canvas.addEventListener('pointermove', (event) => this.#drag(event));
    for (const end of ['pointerup', 'pointercancel']) {
      canvas.addEventListener(end, (event) => this.#pointers.delete(event.pointerId));
    }
    canvas.addEventListener('pointerleave', () => {
      this.#cursor = null;
      this.#explain();
    });
    canvas.addEventListener('dblclick', (event) => this.#zoom(0.25, event.offsetX));
    canvas.addEventListener('keydown', (event) => this.#key(event));
  }

  #key(event) {
    const keys = {
      ArrowLeft: () => this.#move(-this.#span / 5),
      ArrowRight: () => this.#move(this.#span / 5),
      ArrowUp: () => this.scroller.scrollBy(0, -60),
      ArrowDown: () => this.scroller.scrollBy(0, 60),
      '+': () => this.#zoom(0.5),
      '=': () => this.#zoom(0.5),
      '-': () => this.#zoom(2),
      Home: () => this.#showAll(),
      End: () => this.#followNew(),
    };
    if (keys[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
      keys[event.key]();
      event.preventDefault();
    }
  }

  #drag(event) {
    const before = this.#pointers.get(event.pointerId);
    if (!before) {
      this.#cursor = { x: event.offsetX, y: event.offsetY };
      this.#explain();
      return;
    }
    if (this.#pointers.size === 2) {
      const [other] = [...this.#pointers.values()].filter((pointer) => pointer.pointerId !== event.pointerId);
      const distance = (pointer) => Math.max(10, Math.abs(pointer.clientX - other.clientX));
      this.#zoom(distance(before) / distance(event), (event.offsetX + other.offsetX) / 2);
    } else {
      this.#move(((before.clientX - event.clientX) / this.#width()) * this.#span);
      this.scroller.scrollBy(0, before.clientY - event.clientY);
    }
    this.#pointers.set(event.pointerId, event);
  }

  #width() {
    return Math.max(1, this.canvas.clientWidth - this.#gutter());
  }

  // Room for the names of workers, which stand in the lanes themselves on a phone.
  #gutter() {
    return this.canvas.clientWidth < 600 ? 0 : 120;
  }

  // Until the user chooses, all that there is, or the last half minute.
  get #span() {
    const { first, last } = this.#records;
    return this.#chosen ?? Math.min(30, Math.max(1, (last - first) * 1.04 || 0));
  }

  // The end of what is shown. Following, it is the last record with a little room.
  #end() {
    return this.#right ?? this.#records.last + this.#span * 0.02;
  }

  #move(seconds) {
    const end = this.#end() + seconds;
    this.#right = seconds > 0 && end >= this.#records.last + this.#span * 0.02 ? null : end;
    this.draw();
  }

  #zoom(factor, x = this.#gutter() + this.#width()) {
    const { first, last } = this.#records;
    const span = Math.min(Math.max(this.#span * factor, SHORTEST), Math.max(60, 2 * (last - first)));
    const share = Math.min(1, Math.max(0, (x - this.#gutter()) / this.#width()));
    const at = this.#end() - (1 - share) * this.#span;
    if (this.#right !== null || share < 0.98) {
      this.#right = at + (1 - share) * span;
    }
    this.#chosen = span;
    this.draw();
  }

  #followNew() {
    this.#right = null;
    this.#chosen = null;
    this.draw();
  }

  #showAll() {
    const { first, last } = this.#records;
    if (last > first) {
      this.#chosen = Math.max(SHORTEST, (last - first) * 1.04);
      this.#right = last + this.#span * 0.02;
      this.draw();
    }
  }

  #paint() {
    const { canvas, scroller } = this;
    const began = performance.now();
    scroller.style.setProperty('--lanes', this.#records.lanes.length);
    const scale = devicePixelRatio || 1;
    const [width, height] = [scroller.clientWidth, scroller.clientHeight];
    if (width === 0 || height === 0) {
      return;
    }
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const { lanes } = this.#records;
    this.#laneHeight = Math.min(
      MAX_LANE,
      Math.max(MIN_LANE, Math.floor((height - AXIS) / Math.max(1, lanes.length))),
    );
    this.spacer.style.height = `${Math.max(0, lanes.length * this.#laneHeight + AXIS - height)}px`;
    const style = getComputedStyle(canvas);
    const ground = style.backgroundColor.match(/[\d.]+/g).map(Number);
    const context = canvas.getContext('2d');
    const image = this.#image(context, ground, scale);
    context.putImageData(image, 0, 0);
    context.save();
    context.scale(scale, scale);
    context.font = `11px ${style.fontFamily}`;
    context.textBaseline = 'middle';
    this.#paintNames(context, style.color, width);
    this.#paintAxis(context, style, width, height);
    context.restore();
    this.follow.setAttribute('aria-pressed', String(this.#right === null));
    setText(
      this.state,
      lanes.length === 0
        ? 'no task has ended yet'
        : `${duration(this.#span)} of ${count(this.#records.length)} records`,
    );
    canvas.dataset.milliseconds = (performance.now() - began).toFixed(1);
    canvas.dataset.records = this.#records.length;
    this.#explain();
  }

  #image(context, ground, scale) {
    const { canvas } = this;
    const { width } = canvas;
    const image = context.createImageData(width, canvas.height);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(pack(ground));
    const { lanes } = this.#records;
    const top = this.scroller.scrollTop;
    const height = this.#laneHeight;
    const first = Math.floor(top / height);
    const last = Math.min(lanes.length, Math.ceil((top + canvas.height / scale - AXIS) / height));
    const left = Math.round(this.#gutter() * scale);
    const strip = new Strip(width - left, this.#records.prefixes.map(prefixColour));
    for (let index = first; index < last; index += 1) {
      strip.clear();
      this.#fill(strip, lanes[index]);
      const y = Math.round((index * height - top) * scale);
      const bottom = Math.round(((index + 1) * height - top) * scale) - (height > 3 ? Math.round(scale) : 0);
      strip.copy(pixels, width, left, y, bottom, canvas.height - Math.round(AXIS * scale), ground, scale);
    }
    return image;
  }

  #fill(strip, lane) {
    const to = this.#end();
    const from = to - this.#span;
    const perPixel = this.#span / strip.width;
    const only = this.highlighted === null ? -1 : this.#records.prefixes.indexOf(this.highlighted);
    lane.visit(from, to, strip.width, (level, index) => {
      const kind = level.kind[index];
      const prefix = level.prefix[index];
      const [start, stop] = [level.start[index], level.stop[index]];
      const density = stop > start ? Math.min(1, level.busy[index] / (stop - start)) : 1;
      const isFaint = this.highlighted !== null && prefix !== only;
      strip.add(
        (start - from) / perPixel,
        (stop - from) / perPixel,
        isFaint ? density * 0.12 : density,
        kind,
        prefix,
      );
    });
  }

  #paintNames(context, colour, width) {
    const { lanes, prefixes, workers } = this.#records;
    const top = this.scroller.scrollTop;
    const height = this.#laneHeight;
    const gutter = this.#gutter();
    context.fillStyle = colour;
    let lastY = -20;
    for (let index = Math.floor(top / height); index < lanes.length; index += 1) {
      const y = (index + 0.5) * height - top;
      if (y > this.scroller.clientHeight - AXIS - 5) {
        break;
      }
      const isFirst = index === 0 || lanes[index - 1].worker !== lanes[index].worker;
      if (gutter > 0 && isFirst && y - lastY >= 13 && y >= 0) {
        const address = workers[lanes[index].worker];
        context.fillText(
          shortened(context, this.#workers.get(address) ?? name(address, 40), gutter - 8),
          4,
          Math.max(y, 7),
        );
        lastY = y;
      }
    }
    if (height < 14) {
      return;
    }
    const to = this.#end();
    const from = to - this.#span;
    const pixel = this.#width() / this.#span;
    // On bars, whose colours are light in both themes.
    context.fillStyle = '#111';
    for (let index = Math.floor(top / height); index < lanes.length; index += 1) {
      const y = (index + 0.5) * height - top;
      lanes[index].visit(from, to, 200, (level, at) => {
        const x = Math.max(gutter, gutter + (level.start[at] - from) * pixel);
        const room = Math.min(width, gutter + (level.stop[at] - from) * pixel) - x;
        const isSingle = level === lanes[index].levels[0];
        if (isSingle && room > 50 && level.kind[at] === COMPUTE && this.highlighted === null) {
          context.fillText(shortened(context, name(prefixes[level.prefix[at]], 60), room - 8), x + 4, y);
        }
      });
    }
  }

  #paintAxis(context, style, width, height) {
    const gutter = this.#gutter();
    const to = this.#end();
    const from = to - this.#span;
    context.fillStyle = style.backgroundColor;
    context.fillRect(0, height - AXIS, width, AXIS);
    context.fillStyle = style.color;
    context.strokeStyle = style.color;
    context.globalAlpha = 0.35;
    context.beginPath();
    context.moveTo(gutter, height - AXIS + 0.5);
    context.lineTo(width, height - AXIS + 0.5);
    context.stroke();
    if (this.#records.lanes.length === 0) {
      context.globalAlpha = 1;
      return;
    }
    const step = STEPS.find((each) => (each / this.#span) * (width - gutter) > 90) ?? 86400;
    const digits = Math.max(0, Math.ceil(-Math.log10(step)));
    for (let time = Math.ceil(from / step) * step; time < to; time += step) {
      const x = gutter + ((time - from) / this.#span) * (width - gutter);
      context.globalAlpha = 0.12;
      context.fillRect(x, 0, 1, height - AXIS);
      context.globalAlpha = 1;
      const text = clock(time, digits);
      if (x + context.measureText(text).width + 4 < width) {
        context.fillText(text, x + 3, height - AXIS / 2);
      }
    }
    context.globalAlpha = 1;
  }

  // Says what is under the pointer.
  #explain() {
    const { lanes, prefixes, workers } = this.#records;
    const lane =
      this.#cursor && lanes[Math.floor((this.#cursor.y + this.scroller.scrollTop) / this.#laneHeight)];
    if (!lane || this.#cursor.x < this.#gutter() || this.#cursor.y > this.scroller.clientHeight - AXIS) {
      setText(this.tip, 'Drag to move, Ctrl and wheel or double click to zoom.');
      return;
    }
    const pixel = this.#span / this.#width();
    const time = this.#end() - this.#span + (this.#cursor.x - this.#gutter()) * pixel;
    const found = [];
    lane.visit(time - pixel, time + pixel, 50, (level, index) => {
      const what = `${name(prefixes[level.prefix[index]], 80)}: ${KINDS[level.kind[index]]}`;
      const length = duration(level.stop[index] - level.start[index]);
      found.push(
        level === lane.levels[0]
          ? `${what}, ${length}, from ${clock(level.start[index], 3)}`
          : `${what} and others within ${length}`,
      );
    });
    const address = workers[lane.worker];
    setText(
      this.tip,
      [
        `${this.#workers.get(address) ?? name(address, 60)}, thread ${lane.thread}`,
        ...(found.length > 0 ? found.slice(0, 2) : [`idle at ${clock(time, 3)}`]),
      ].join(' · '),
    );
  }
}

function shortened(context, text, room) {
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > room) {
    shown = `${shown.slice(0, Math.max(0, Math.floor(shown.length * 0.8) - 1))}…`;
  }
  return shown.length > 1 ? shown : '';
}

/** Buttons that show one prefix alone: the legend of the task stream. */
export function legendButton(prefix, onchoose) {
  const swatch = make('i', { class: 'swatch' });
  swatch.style.background = prefixCss(prefix);
  return make(
    'button',
    { type: 'button', class: 'chip', 'aria-pressed': 'false', onclick: () => onchoose(prefix) },
    swatch,
    make('bdi', {}, name(prefix, 60)),
  );
}
