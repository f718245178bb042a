// The first page: what the cluster does now.

import { bar, bars, legend, matrix, stateBar, sum, tile } from './charts.js';
import { FAILED, KINDS, TRANSFER, prefixCss } from './colours.js';
import { keyed, make, panel, scrolled, setAttribute, setText } from './dom.js';
import {
  STATES,
  byName,
  bytes,
  count,
  duration,
  name,
  percent,
  plural,
  rate,
  total,
  workerName,
} from './format.js';
import { Timeline, legendButton } from './timeline.js';

const MEMORY = [
  ['managed', 'results'],
  ['unmanaged', 'other'],
  ['spilled', 'on disk'],
];
const MAX_PREFIXES = 30;

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}

/** `history` has the snapshots of the cluster, oldest first. */
export function open({ records, history, workerHref, taskSearchHref }) {
  const tiles = Object.fromEntries(
    [
      ['tasks', 'Tasks finished'],
      ['processing', 'Processing'],
      ['workers', 'Workers'],
      ['memory', 'Memory'],
      ['cpu', 'Processors'],
      ['network', 'Network'],
    ].map(([id, label]) => [id, tile(label)]),
  );
  const stream = streamPanel(records);
  const progress = make('tbody');
  const progressMore = make('p', { class: 'quiet' });
  const lists = Object.fromEntries(
    ['memory', 'processing', 'cpu'].map((id) => [
      id,
      { list: make('ul', { class: 'bars' }), more: make('p', { class: 'quiet' }) },
    ]),
  );
  // The names of workers by address, in their order.
  const labels = new Map();
  let named = null;
  const bandwidth = matrix(rate);
  const bandwidthEmpty = make('p', { class: 'quiet' }, 'No transfer between workers yet.');
  const barPanel = (id, title, ...extra) => panel(title, {}, ...extra, lists[id].list, lists[id].more);
  const node = make(
    'div',
    { class: 'status' },
    make('h1', { class: 'hidden' }, 'Status'),
    make('div', { class: 'tiles' }, ...Object.values(tiles).map((each) => each.node)),
    stream.node,
    make(
      'div',
      { class: 'columns' },
      panel(
        'Progress',
        { className: 'wide' },
        legend(STATES.map((state) => [state, state])),
        scrolled(
          'Progress by prefix',
          make(
            'table',
            { class: 'small progress' },
            make(
              'thead',
              {},
              make(
                'tr',
                {},
                ...['Prefix', 'States', 'Done', 'Mean time', 'Bytes'].map((text, index) =>
                  make('th', { scope: 'col', class: index > 1 ? 'number' : null }, text),
                ),
              ),
            ),
            progress,
          ),
        ),
        progressMore,
      ),
      barPanel('memory', 'Memory by worker', legend([...MEMORY, ['limit-mark', 'limit']])),
      barPanel(
        'processing',
        'Tasks on workers',
        legend([
          ['processing', 'processing'],
          ['long-running', 'long-running'],
        ]),
      ),
      barPanel('cpu', 'Processor use by worker'),
      panel('Transfers between workers', {}, bandwidthEmpty, bandwidth.node),
    ),
  );

  function showCluster(cluster) {
    const values = (read) => history.map(read);
    const rates = history
      .slice(1)
      .map(
        (each, index) =>
          Math.max(0, each.finished - history[index].finished) /
          Math.max(0.05, each.time - history[index].time),
      );
    const { tasks, memory } = cluster;
    const used = memory.managed + memory.unmanaged;
    tiles.tasks.update(count(cluster.finished), `${count(Math.round(rates.at(-1) ?? 0))} a second`, rates);
    tiles.processing.update(
      count(tasks.processing),
      [
        [tasks.queued, 'queued'],
        [tasks.waiting, 'waiting'],
        [tasks['no-worker'], 'no-worker'],
        [tasks.erred, 'erred'],
      ]
        .filter(([number]) => number > 0)
        .map(([number, state]) => `${count(number)} ${state}`)
        .join(', ') || 'none waits',
      values((each) => each.tasks.processing),
    );
    tiles.workers.update(
      count(cluster.workers),
      `${plural(cluster.threads, 'thread')}, ${plural(cluster.clients, 'client')}`,
      values((each) => each.workers),
    );
    tiles.memory.update(
      bytes(used),
      `of ${bytes(memory.limit)}, ${bytes(memory.spilled)} on disk`,
      values((each) => each.memory.managed + each.memory.unmanaged),
      memory.limit || undefined,
    );
    tiles.cpu.update(
      percent(cluster.threads ? cluster.cpu / cluster.threads : 0),
      'of all threads',
      values((each) => each.cpu),
      100 * cluster.threads || undefined,
    );
    tiles.network.update(
      rate(cluster.read),
      `in, ${rate(cluster.write)} out`,
      values((each) => each.read),
    );
  }

  function showPrefixes({ prefixes, others }) {
    const shown = prefixes.slice(0, MAX_PREFIXES);
    keyed(
      progress,
      shown,
      (prefix) => prefix.name,
      (prefix) => {
        const swatch = make('i', { class: 'swatch' });
        swatch.style.background = prefixCss(prefix.name);
        return make(
          'tr',
          {},
          make(
            'th',
            { scope: 'row' },
            swatch,
            make(
              'a',
              { href: taskSearchHref(prefix.name), title: name(prefix.name) },
              make('bdi', {}, name(prefix.name, 80)),
            ),
          ),
          make('td', { class: 'grow' }, bar()),
          ...[1, 2, 3].map(() => make('td', { class: 'number' })),
        );
      },
      (row, prefix) => {
        const { states } = prefix;
        stateBar(row.cells[1].firstChild, states);
        const done = (states.memory ?? 0) + (states.released ?? 0);
        setText(
          row.cells[2],
          `${count(done)} / ${count(total(states))}${states.erred ? `, ${count(states.erred)} erred` : ''}`,
        );
        setText(row.cells[3], duration(prefix.duration));
        setText(row.cells[4], bytes(prefix.nbytes));
      },
    );
    const left = others + prefixes.length - shown.length;
    setText(
      progressMore,
      shown.length === 0
        ? 'The scheduler has no tasks.'
        : left > 0
          ? `${plural(left, 'prefix').replace('prefixs', 'prefixes')} with fewer tasks are not shown.`
          : '',
    );
  }

  function showWorkers({ workers, total: all }) {
    const row = (worker, parts, text, limit) => ({
      key: worker.address,
      label: workerName(worker),
      href: workerHref(worker.address),
      parts,
      text,
      limit,
    });
    const say = (id, others, format) =>
      setText(
        lists[id].more,
        workers.length === 0
          ? 'No workers.'
          : others.length + all - workers.length === 0
            ? ''
            : `${plural(others.length + all - workers.length, 'other')}, with ${format(median(others.map((each) => sum(each.parts))))} each (median).`,
      );
    const parts = (worker, kinds) =>
      kinds.map(([kind, text]) => ({
        kind,
        value: worker[kind] ?? 0,
        label: `${bytes(worker[kind])} ${text}`,
      }));
    const most = (read) => Math.max(1, ...workers.map(read));
    // The scale has room for the smallest limit, and for twice what is used; a limit beyond it is not shown.
    const used = most((worker) => sum(parts(worker, MEMORY)));
    const limits = workers.map((worker) => worker.limit).filter((limit) => limit > 0);
    const memoryWhole = Math.max(
      used,
      Math.min(Math.max(...limits, 0), Math.max(2 * used, Math.min(...limits))),
    );
    say(
      'memory',
      bars(
        lists.memory.list,
        workers,
        (worker) => {
          const mine = parts(worker, MEMORY);
          return row(worker, mine, bytes(worker.managed + worker.unmanaged), worker.limit);
        },
        memoryWhole,
      ),
      bytes,
    );
    say(
      'processing',
      bars(
        lists.processing.list,
        workers,
        (worker) =>
          row(
            worker,
            [
              {
                kind: 'processing',
                value: worker.processing - worker.long_running,
                label: `${count(worker.processing)} processing`,
              },
              {
                kind: 'long-running',
                value: worker.long_running,
                label: `${count(worker.long_running)} long-running`,
              },
            ],
            count(worker.processing),
          ),
        most((worker) => worker.processing),
      ),
      count,
    );
    say(
      'cpu',
      bars(
        lists.cpu.list,
        workers,
        (worker) =>
          row(worker, [{ kind: 'cpu', value: worker.cpu, label: percent(worker.cpu) }], percent(worker.cpu)),
        most((worker) => Math.max(worker.cpu, 100 * worker.threads)),
      ),
      percent,
    );
    const known = workers.map((worker) => worker.address + worker.name).join();
    if (known !== named) {
      named = known;
      labels.clear();
      for (const worker of [...workers].sort((a, b) => byName(workerName(a), workerName(b)))) {
        labels.set(worker.address, workerName(worker));
      }
      records.sortBy([...labels.keys()]);
      stream.setWorkers(labels);
    }
  }

  function showBandwidth({ workers, rows }) {
    bandwidthEmpty.hidden = rows.length > 0;
    bandwidth.node.hidden = rows.length === 0;
    bandwidth.update(
      workers.map((address) => labels.get(address) ?? name(address, 60)),
      rows,
    );
  }

  return {
    title: 'Status',
    live: ['cluster', 'prefixes', 'workers', 'stream', 'bandwidth'],
    node,
    update: {
      cluster: showCluster,
      prefixes: showPrefixes,
      workers: showWorkers,
      bandwidth: showBandwidth,
      stream: stream.update,
    },
    redraw: stream.update,
    stop: stream.stop,
  };
}

function streamPanel(records) {
  const timeline = new Timeline(records);
  const chips = make('div', { class: 'chips', role: 'group', 'aria-label': 'Show one prefix alone' });
  const body = make('tbody');
  const lost = make('p', { class: 'quiet' });
  const details = make(
    'details',
    {},
    make('summary', {}, 'Totals of the task stream as a table'),
    scrolled(
      'Totals of the task stream',
      make(
        'table',
        { class: 'small' },
        make(
          'thead',
          {},
          make(
            'tr',
            {},
            ...['Prefix', 'Tasks', 'Failed', ...KINDS].map((text, index) =>
              make('th', { scope: 'col', class: index > 0 ? 'number' : null }, text),
            ),
          ),
        ),
        body,
      ),
    ),
  );
  details.addEventListener('toggle', () => showTotals());

  function choose(prefix) {
    timeline.highlighted = timeline.highlighted === prefix ? null : prefix;
    showChips();
    timeline.draw();
  }

  // The prefixes with the most time, largest first.
  function ranked() {
    return records.totals
      .map((totals, index) => ({
        totals,
        prefix: records.prefixes[index],
        time: totals.seconds.reduce((all, each) => all + each, 0),
      }))
      .sort((a, b) => b.time - a.time);
  }

  function showChips() {
    // In the order of their names, so that they do not move under the pointer.
    const shown = ranked()
      .slice(0, 12)
      .sort((a, b) => (a.prefix < b.prefix ? -1 : 1));
    keyed(
      chips,
      shown,
      (each) => each.prefix,
      (each) => legendButton(each.prefix, choose),
      (button, each) => {
        setAttribute(button, 'aria-pressed', String(timeline.highlighted === each.prefix));
      },
    );
  }

  function showTotals() {
    if (!details.open) {
      return;
    }
    keyed(
      body,
      ranked().slice(0, 50),
      (each) => each.prefix,
      (each) =>
        make(
          'tr',
          {},
          make('th', { scope: 'row' }, make('bdi', {}, name(each.prefix, 80))),
          ...Array.from({ length: KINDS.length + 2 }, () => make('td', { class: 'number' })),
        ),
      (row, { totals }) => {
        setText(row.cells[1], count(totals.tasks));
        setText(row.cells[2], count(totals.failed));
        totals.seconds.forEach((seconds, kind) =>
          setText(row.cells[kind + 3], seconds > 0 ? duration(seconds) : ''),
        );
      },
    );
  }

  function update() {
    timeline.draw();
    showChips();
    showTotals();
    setText(
      lost,
      records.lost > 0 ? `${count(records.lost)} records were dropped before this page could read them.` : '',
    );
  }

  const marks = legend([
    ['mark-transfer', KINDS[TRANSFER]],
    ['mark-write', 'disk write'],
    ['mark-read', 'disk read'],
    ['mark-failed', KINDS[FAILED]],
  ]);
  update();
  return {
    node: panel(
      'Task stream',
      { className: 'stream-panel', extra: [timeline.controls] },
      timeline.node,
      make('div', { class: 'stream-legend' }, chips, marks),
      lost,
      details,
    ),
    update,
    setWorkers: (workers) => timeline.setWorkers(workers),
    stop: () => timeline.stop(),
  };
}
