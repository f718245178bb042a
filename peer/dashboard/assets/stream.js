// Requests to the scheduler: data, the live stream, and actions.

import { store } from './store.js';

const TOKEN = 'daskwire-token';
const tokens = store('sessionStorage');

/** The token that the user has entered, kept until the tab is closed. */
export function token() {
  return tokens.get(TOKEN) ?? '';
}

export function setToken(value) {
  tokens.set(TOKEN, value);
}

function headers() {
  return token() ? { Authorization: `Bearer ${token()}` } : {};
}

/** A refusal of the server, with its text. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function checked(response) {
  if (response.ok) {
    return response;
  }
  let text = `${response.status} ${response.statusText}`;
  try {
    text = (await response.json()).error ?? text;
  } catch {
    // Not JSON: the status has to do.
  }
  throw new Refused(response.status, text);
}

/** A document below data/. URLs are relative, so that the page also works below a proxy's path. */
export async function get(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value));
  const response = await fetch(`data/${path}${query.size ? `?${query}` : ''}`, {
    headers: headers(),
    signal,
  });
  return (await checked(response)).json();
}

/** Asks the scheduler to change something. */
export async function post(action, body) {
  const response = await fetch(`actions/${action}`, {
    method: 'POST',
    headers: { ...headers(), 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  });
  const answer = await (await checked(response)).json();
  if (answer.error) {
    throw new Refused(response.status, answer.error);
  }
}

const FIRST_WAIT = 500;
const LONGEST_WAIT = 5000;
// A snapshot comes each half second.
const SLOW = 3000;
const SILENCE = 20000;

/**
 * The live stream: calls `onMessage(view, data)` for each snapshot, and `onState(state, text)` as it
 * connects. It connects again when the connection ends, and is silent while the page is hidden.
 * EventSource cannot send a token, so this reads the events itself.
 */
export class Live {
  #views = [];
  #cursor = 0;
  #abort = null;
  #onMessage;
  #onState;

  constructor(onMessage, onState) {
    this.#onMessage = onMessage;
    this.#onState = onState;
    document.addEventListener('visibilitychange', () => this.restart());
    addEventListener('pagehide', () => this.#abort?.abort());
  }

  /** Follows these views instead of those before. */
  watch(views) {
    if (views.join() !== this.#views.join()) {
      this.#views = views;
      this.restart();
    }
  }

  /** Forgets what has been read of the task stream. */
  rewind() {
    this.#cursor = 0;
  }

  restart() {
    this.#abort?.abort();
    this.#abort = null;
    if (document.hidden) {
      this.#onState('paused', 'Paused while hidden');
    } else if (this.#views.length > 0) {
      this.#abort = new AbortController();
      this.#run(this.#abort.signal);
    }
  }

  async #run(signal) {
    let wait = FIRST_WAIT;
    while (!signal.aborted) {
      let reason = 'the stream has ended';
      try {
        await this.#read(signal, () => {
          wait = FIRST_WAIT;
        });
      } catch (error) {
        if (signal.aborted) {
          return;
        }
        if (error instanceof Refused && error.status === 401) {
          this.#onState('refused', 'A token is needed');
          return;
        }
        reason = error instanceof Refused ? error.message : 'the scheduler does not answer';
      }
      if (!signal.aborted) {
        this.#onState('lost', `Not connected: ${reason}. Trying again.`);
        await new Promise((resolve) => {
          setTimeout(resolve, wait);
        });
        wait = Math.min(2 * wait, LONGEST_WAIT);
      }
    }
  }

  async #read(signal, onFirst) {
    const query = new URLSearchParams({ views: this.#views.join(',') });
    if (this.#cursor > 0) {
      query.set('cursor', this.#cursor);
    }
    const silent = new AbortController();
    let last = Date.now();
    const timer = setInterval(() => {
      const silence = Date.now() - last;
      if (silence > SILENCE) {
        silent.abort();
      } else if (silence > SLOW) {
        this.#onState('slow', `No news for ${Math.round(silence / 1000)} s`);
      }
    }, 1000);
    const either = AbortSignal.any([signal, silent.signal]);
    try {
      const response = await checked(
        await fetch(`data/live?${query}`, { headers: headers(), signal: either }),
      );
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '';
      for (;;) {
        const { done, value } = await reader.read();
        if (done) {
          return;
        }
        last = Date.now();
        const events = (rest + value).split('\n\n');
        rest = events.pop();
        for (const event of events) {
          this.#dispatch(event);
        }
        if (events.length > 0) {
          onFirst();
          this.#onState('live', 'Live');
        }
      }
    } finally {
      clearInterval(timer);
    }
  }

  #dispatch(event) {
    let view = '';
    const data = [];
    for (const line of event.split('\n')) {
      if (line.startsWith('event: ')) {
        view = line.slice(7);
      } else if (line.startsWith('data: ')) {
        data.push(line.slice(6));
      }
    }
    if (view && data.length > 0) {
      const message = JSON.parse(data.join('\n'));
      if (view === 'stream') {
        this.#cursor = message.next;
      }
      try {
        this.#onMessage(view, message);
      } catch (error) {
        // A view that fails must not look like a lost connection.
        reportError(error);
      }
    }
  }
}

const INTERVAL = 2000;

/**
 * Shows a document below data/ now and every two seconds while the page is visible, and hides the last error;
 * returns what stops it. `parameters` may be a function.
 */
export function follow(path, parameters, show, fail, onError = fail) {
  const abort = new AbortController();
  let timer = 0;
  async function turn() {
    let wait = INTERVAL;
    if (!document.hidden) {
      try {
        const query = typeof parameters === 'function' ? parameters() : parameters;
        show(await get(path, query, abort.signal));
        fail(null);
      } catch (error) {
        if (!abort.signal.aborted) {
          onError(error);
        }
        // What is gone seldom returns.
        wait = error.status === 404 ? 5 * INTERVAL : INTERVAL;
      }
    }
    if (!abort.signal.aborted) {
      timer = setTimeout(turn, wait);
    }
  }
  turn();
  return () => {
    abort.abort();
    clearTimeout(timer);
  };
}
