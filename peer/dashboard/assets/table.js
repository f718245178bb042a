// A table that sorts, filters and turns pages, and whose rows stay the same elements as their
// values change, so that they can be clicked.

import { keyed, make, scrolled, setAttribute, setText } from './dom.js';
import { byName, count } from './format.js';

const PAGE = 100;

/**
 * `columns` are `{ id, title, text(row), value(row), href(row), isNumber, share(row), className(row)
 * }`: `value` is what sorts and is the text by default, and `share`, from 0 to 1, draws a bar behind
 * the number. The first column heads the row. `actions(row)` makes what stands in a last cell once.
 */
export function table(
  label,
  columns,
  { keyOf, sort = columns[0].id, isDescending = false, filter = '', actions, onFilter = () => {} },
) {
  let rows = [];
  let page = 0;
  let order = [];
  const by = { column: columns.find((column) => column.id === sort), isDescending };
  const body = make('tbody');
  const heads = columns.map((column) =>
    make(
      'th',
      { scope: 'col', class: column.isNumber ? 'number' : null },
      make('button', { type: 'button', class: 'sort', onclick: () => sortBy(column) }, column.title),
    ),
  );
  const search = make('input', {
    type: 'search',
    'aria-label': `Filter: ${label}`,
    placeholder: 'Filter',
    value: filter,
  });
  const position = make('span', { class: 'quiet', role: 'status' });
  const back = make('button', { type: 'button', onclick: () => turn(-1) }, 'Back');
  const next = make('button', { type: 'button', onclick: () => turn(1) }, 'Next');
  const grid = make(
    'table',
    { class: 'rows' },
    make(
      'thead',
      {},
      make(
        'tr',
        {},
        ...heads,
        ...(actions ? [make('th', { scope: 'col', class: 'action' }, 'Actions')] : []),
      ),
    ),
    body,
  );
  search.addEventListener('input', () => {
    page = 0;
    onFilter(search.value);
    arrange();
  });

  function sortBy(column) {
    by.isDescending = by.column === column ? !by.isDescending : column.isNumber === true;
    by.column = column;
    arrange();
  }

  function turn(step) {
    page += step;
    arrange();
  }

  const valueOf = (column, row) => (column.value ?? column.text)(row);

  function matching() {
    const text = search.value.trim().toLowerCase();
    return text === ''
      ? rows
      : rows.filter((row) => columns.some((column) => column.text(row).toLowerCase().includes(text)));
  }

  // Sorts and shows again.
  function arrange() {
    const sign = by.isDescending ? -1 : 1;
    order = matching().sort((a, b) => {
      const [first, second] = [valueOf(by.column, a), valueOf(by.column, b)];
      return sign * (typeof first === 'string' ? byName(first, second) : first - second);
    });
    columns.forEach((column, index) =>
      setAttribute(
        heads[index],
        'aria-sort',
        column === by.column ? (by.isDescending ? 'descending' : 'ascending') : null,
      ),
    );
    show();
  }

  // Keeps the order of the rows, with those that have gone removed and new ones at the end.
  function keepOrder() {
    const current = new Map(matching().map((row) => [keyOf(row), row]));
    const kept = order.map(keyOf).filter((key) => current.has(key));
    const seen = new Set(kept);
    order = [...kept, ...[...current.keys()].filter((key) => !seen.has(key))].map((key) => current.get(key));
    show();
  }

  function show() {
    const pages = Math.max(1, Math.ceil(order.length / PAGE));
    page = Math.min(Math.max(0, page), pages - 1);
    const part = order.slice(page * PAGE, (page + 1) * PAGE);
    keyed(body, part, keyOf, newRow, (element, row) =>
      columns.forEach((column, index) => showCell(element.cells[index], column, row)),
    );
    setText(
      position,
      order.length === 0
        ? rows.length === 0
          ? 'None'
          : 'None of these match'
        : `${count(page * PAGE + 1)}–${count(page * PAGE + part.length)} of ${count(order.length)}`,
    );
    back.disabled = page === 0;
    next.disabled = page === pages - 1;
    back.hidden = pages === 1;
    next.hidden = pages === 1;
  }

  function newRow(row) {
    return make(
      'tr',
      {},
      ...columns.map((column, index) => {
        const inner = column.href ? make('a', {}, make('bdi')) : make('bdi');
        return index === 0
          ? make('th', { scope: 'row' }, inner)
          : make('td', { class: column.isNumber ? 'number' : 'name' }, inner);
      }),
      ...(actions ? [make('td', { class: 'action' }, ...actions(row))] : []),
    );
  }

  function showCell(cell, column, row) {
    const inner = cell.firstChild;
    if (column.href) {
      setAttribute(inner, 'href', column.href(row));
    }
    const text = column.text(row);
    const place = column.href ? inner.firstChild : inner;
    if (place.textContent !== text) {
      place.textContent = text;
      cell.title = column.isNumber ? '' : text;
    }
    if (column.share) {
      const share = `${(100 * Math.min(1, Math.max(0, column.share(row)))).toFixed(0)}%`;
      cell.classList.add('share');
      cell.style.setProperty('--share', share);
    }
    if (column.mark) {
      setAttribute(inner, 'class', column.mark(row));
    }
  }

  arrange();
  return {
    node: make(
      'div',
      {},
      make('div', { class: 'table-head' }, search, position, back, next),
      scrolled(label, grid),
    ),
    /** Shows these rows. The order stays while a user points at the table or has the focus in it. */
    update(current) {
      rows = current;
      if (order.length > 0 && (body.matches(':hover') || body.contains(document.activeElement))) {
        keepOrder();
      } else {
        arrange();
      }
    },
  };
}
