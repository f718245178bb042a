// The rectangles of the task stream, with levels of detail, in typed arrays.
//
// A lane is one thread of one worker. Each level of a lane has an entry for eight entries of the
// level below: the span that they cover, how much of it was busy, and what took most of it. A view
// reads the highest level that is finer than its pixels, so its cost depends on its width, not on
// how much has been recorded.

import { FAILED } from './colours.js';

const FANOUT = 8;
const MAX_RECORDS = 1_500_000;

class Level {
  length = 0;
  start = new Float64Array(64);
  stop = new Float64Array(64);
  busy = new Float32Array(64);
  kind = new Uint8Array(64);
  prefix = new Uint16Array(64);

  push(start, stop, busy, kind, prefix) {
    if (this.length === this.start.length) {
      for (const field of ['start', 'stop', 'busy', 'kind', 'prefix']) {
        const grown = new this[field].constructor(2 * this.length);
        grown.set(this[field]);
        this[field] = grown;
      }
    }
    const index = this.length;
    this.start[index] = start;
    this.stop[index] = stop;
    this.busy[index] = busy;
    this.kind[index] = kind;
    this.prefix[index] = prefix;
    this.length += 1;
  }

  // The first entry that begins at or after `time`, if they are in order.
  search(time) {
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.start[middle] < time) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
}

/** The rectangles of one thread of a worker. */
class Lane {
  levels = [new Level()];
  longest = 0;

  constructor(worker, thread) {
    this.worker = worker;
    this.thread = thread;
  }

  push(start, stop, kind, prefix) {
    this.longest = Math.max(this.longest, stop - start);
    this.levels[0].push(start, stop, stop - start, kind, prefix);
    for (let height = 0; this.levels[height].length % FANOUT === 0; height += 1) {
      if (height + 1 === this.levels.length) {
        this.levels.push(new Level());
      }
      this.#summarise(this.levels[height], this.levels[height + 1]);
    }
  }

  #summarise(level, above) {
    let start = Infinity;
    let stop = -Infinity;
    let busy = 0;
    let longest = -1;
    let prefix = 0;
    let kind = 0;
    for (let index = level.length - FANOUT; index < level.length; index += 1) {
      start = Math.min(start, level.start[index]);
      stop = Math.max(stop, level.stop[index]);
      busy += level.busy[index];
      // A failure among them must not vanish.
      const weight = level.kind[index] === FAILED ? Infinity : level.busy[index];
      if (weight > longest) {
        longest = weight;
        prefix = level.prefix[index];
        kind = level.kind[index];
      }
    }
    above.push(start, stop, busy, kind, prefix);
  }

  /**
   * Calls `visit(level, index)` for what overlaps a span of time: at most about `budget` entries of
   * the finest level that has no more, and of the levels below it those that it does not cover yet.
   */
  visit(from, to, budget, visit) {
    const bounds = this.levels.map((level) => [level.search(from - this.longest), level.search(to)]);
    let height = 0;
    while (height + 1 < this.levels.length && bounds[height][1] - bounds[height][0] > budget) {
      height += 1;
    }
    // An entry of a higher level may begin before the span and end in it.
    let covered = 0;
    for (let at = height; at >= 0; at -= 1) {
      const level = this.levels[at];
      const [first, last] = bounds[at];
      const begin = Math.max(covered, at > 0 ? Math.max(0, first - 1) : first);
      for (let index = begin; index < last; index += 1) {
        if (level.stop[index] >= from) {
          visit(level, index);
        }
      }
      covered = level.length * FANOUT;
    }
  }

  // Forgets all that began before `time`.
  forget(time) {
    const level = this.levels[0];
    const first = level.search(time);
    this.levels = [new Level()];
    for (let index = first; index < level.length; index += 1) {
      this.push(level.start[index], level.stop[index], level.kind[index], level.prefix[index]);
    }
  }
}

/** All lanes, the names that they use, and totals by prefix. */
export class Records {
  lanes = [];
  workers = [];
  prefixes = [];
  /** Totals by number of the prefix: how many tasks, how many failed, seconds by kind. */
  totals = [];
  length = 0;
  /** Records that were dropped before this page could read them. */
  lost = 0;
  first = Infinity;
  last = -Infinity;
  #next = null;
  #ranks = new Map();
  #lanesByKey = new Map();
  #workersByName = new Map();
  #prefixesByName = new Map();

  #number(names, map, name) {
    let number = map.get(name);
    if (number === undefined) {
      number = names.length;
      names.push(name);
      map.set(name, number);
    }
    return number;
  }

  /** Puts the lanes into the order of these addresses of workers; those of others come last. */
  sortBy(addresses) {
    this.#ranks = new Map(addresses.map((address, rank) => [address, rank]));
    this.#sortLanes();
  }

  #sortLanes() {
    const rank = (lane) => this.#ranks.get(this.workers[lane.worker]) ?? this.#ranks.size;
    this.lanes.sort((a, b) => rank(a) - rank(b) || a.worker - b.worker || (a.thread < b.thread ? -1 : 1));
  }

  /** Adds a message of the view `stream`. */
  add(message) {
    // A slow page misses messages, too.
    this.lost += message.lost + (this.#next === null ? 0 : Math.max(0, message.from - this.#next));
    this.#next = message.next;
    const workers = message.workers.map((name) => this.#number(this.workers, this.#workersByName, name));
    const prefixes = message.prefixes.map((name) => this.#number(this.prefixes, this.#prefixesByName, name));
    // Times are in microseconds: since the base, which is in seconds, and from start to end.
    for (const [worker, thread, since, took, kind, prefix] of message.rows) {
      const start = message.base + since / 1e6;
      const stop = start + took / 1e6;
      this.#push(workers[worker], message.threads[thread], start, stop, kind, prefixes[prefix] ?? 0);
    }
    if (this.length > MAX_RECORDS) {
      this.#forgetHalf();
    }
  }

  #push(worker, thread, start, stop, kind, prefix) {
    const key = `${worker} ${thread}`;
    let lane = this.#lanesByKey.get(key);
    if (!lane) {
      lane = new Lane(worker, thread);
      this.#lanesByKey.set(key, lane);
      this.lanes.push(lane);
      this.#sortLanes();
    }
    lane.push(start, stop, kind, prefix);
    this.length += 1;
    this.first = Math.min(this.first, start);
    this.last = Math.max(this.last, stop);
    const totals = (this.totals[prefix] ??= { tasks: 0, failed: 0, seconds: [0, 0, 0, 0, 0, 0, 0] });
    totals.seconds[kind] += stop - start;
    if (kind === 0 || kind === FAILED) {
      totals.tasks += 1;
      totals.failed += Number(kind === FAILED);
    }
  }

  #forgetHalf() {
    const middle = this.last - (this.last - this.first) / 2;
    this.length = 0;
    for (const lane of this.lanes) {
      lane.forget(middle);
      this.length += lane.levels[0].length;
    }
    this.lanes = this.lanes.filter((lane) => lane.levels[0].length > 0);
    this.#lanesByKey = new Map(this.lanes.map((lane) => [`${lane.worker} ${lane.thread}`, lane]));
    this.first = middle;
  }
}
