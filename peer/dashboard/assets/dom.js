// Makes and updates elements. Data becomes text or attributes, never markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) {
      node.addEventListener(name.slice(2), value);
    } else if (value !== undefined && value !== null && value !== false) {
      node.setAttribute(name, value === true ? '' : value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element; attributes that begin with "on" are listeners, children are nodes or text. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Sets the text of an element if it differs, so that selections and layout survive updates. */
export function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Sets or removes an attribute if it differs. */
export function setAttribute(node, name, value) {
  if (value === undefined || value === null || value === false) {
    node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, value);
  }
}

const keyedNodes = new WeakMap();

/**
 * Makes the children of `parent` those of `items`, in their order. Children are reused by key, and
 * move only if the order has changed, so that what a user points at stays.
 */
export function keyed(parent, items, keyOf, create, update = () => {}) {
  const old = keyedNodes.get(parent) ?? new Map();
  const current = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const node = old.get(key) ?? create(item);
    old.delete(key);
    current.set(key, node);
    update(node, item);
  }
  for (const node of old.values()) {
    node.remove();
  }
  let place = parent.firstChild;
  for (const node of current.values()) {
    if (node === place) {
      place = place.nextSibling;
    } else {
      parent.insertBefore(node, place);
    }
  }
  keyedNodes.set(parent, current);
}

let ids = 0;

/** An id that no other element has. */
export function newId() {
  ids += 1;
  return `id${ids}`;
}

/** A section with a heading; `extra` stands beside the heading. */
export function panel(title, { className = '', extra = [] } = {}, ...children) {
  const id = newId();
  return make(
    'section',
    { class: `panel ${className}`, 'aria-labelledby': id },
    make('div', { class: 'panel-head' }, make('h2', { id }, title), ...extra),
    ...children,
  );
}

/** A table that scrolls sideways where it has no room. */
export function scrolled(label, table) {
  return make(
    'div',
    { class: 'scrolled', role: 'region', 'aria-label': `${label}, table`, tabindex: '0' },
    table,
  );
}

/** A link of the page. Its text comes from peers. */
export function link(href, text, attributes = {}) {
  return make('a', { href, ...attributes }, make('bdi', {}, text));
}

/**
 * Tabs: `items` are `{ title, open(panel) }`, and `open` fills the panel when its tab is chosen; the one
 * with the title `first`, or else the first, is chosen. Arrow keys move between tabs.
 */
export function tabs(label, items, first = '') {
  const content = make('div', { role: 'tabpanel', id: newId(), tabindex: '0' });
  const buttons = items.map((item, index) =>
    make(
      'button',
      {
        type: 'button',
        role: 'tab',
        id: newId(),
        'aria-controls': content.id,
        onclick: () => choose(index),
        onkeydown: (event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (step) {
            choose((index + step + items.length) % items.length).focus();
            event.preventDefault();
          }
        },
      },
      item.title,
    ),
  );
  function choose(chosen) {
    buttons.forEach((button, index) => {
      button.setAttribute('aria-selected', String(index === chosen));
      button.tabIndex = index === chosen ? 0 : -1;
    });
    content.setAttribute('aria-labelledby', buttons[chosen].id);
    content.replaceChildren();
    items[chosen].open(content);
    return buttons[chosen];
  }
  choose(
    Math.max(
      0,
      items.findIndex((item) => item.title === first),
    ),
  );
  return make(
    'div',
    { class: 'tabs' },
    make('div', { role: 'tablist', 'aria-label': label }, ...buttons),
    content,
  );
}

/** Asks a question in a modal dialog; resolves to the form's data, or null if it is dismissed. */
export function ask(title, { text = '', fields = [], accept = 'OK', isDangerous = false } = {}) {
  return new Promise((resolve) => {
    const id = newId();
    const form = make(
      'form',
      { method: 'dialog' },
      make('h2', { id }, title),
      make('p', {}, text),
      ...fields,
      make(
        'div',
        { class: 'buttons' },
        make('button', { value: 'cancel', formnovalidate: true }, 'Back'),
        make('button', { value: 'accept', class: isDangerous ? 'danger' : 'primary' }, accept),
      ),
    );
    const dialog = make('dialog', { 'aria-labelledby': id }, form);
    dialog.addEventListener('close', () => {
      resolve(dialog.returnValue === 'accept' ? new FormData(form) : null);
      dialog.remove();
    });
    // Enter in a field accepts, although the other button is the first of the form.
    form.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && event.target instanceof HTMLInputElement) {
        event.preventDefault();
        dialog.close('accept');
      }
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
