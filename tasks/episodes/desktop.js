// Windows drawn on a page, with a keyboard focus of their own: the active window takes the keys.
window.__pfGoal = false;
const $ = (id) => document.getElementById(id);
const wins = {}, files = {}, state = {active: null, clip: '', ended: null};
const judge = () => { window.__pfGoal = !!state.ended?.(); };
const raise = (id) => {
  state.active = id;
  for (const [name, w] of Object.entries(wins)) {
    $(name).classList.toggle('active', name === id);
    w.draw?.();
  }
  $(id).style.zIndex = ++raise.top;
};
raise.top = 1;
const combination = (e) =>
  (e.ctrlKey ? 'ctrl+' : '') + (e.altKey ? 'alt+' : '') + (e.ctrlKey || e.altKey ? e.key.toLowerCase() : e.key);
document.addEventListener('keydown', (e) => {
  if (/^(Control|Shift|Alt)$/.test(e.key)) return;
  e.preventDefault();
  const w = wins[state.active];
  if (w) { w.press(combination(e)); w.draw?.(); judge(); }
});
const add = (id, w) => {
  wins[id] = w;
  $(id).addEventListener('mousedown', () => { if (state.active !== id) raise(id); });
};

// Text with a caret at its end; `all` says whether all of it is selected.
const put = (t, text) => { t.value = t.all ? text : t.value + text; t.all = false; };
const edit = (t, k) => {
  if (k === 'Enter') put(t, '\n');
  else if (k === 'Backspace' || k === 'Delete') {
    t.value = t.all ? '' : k === 'Backspace' ? t.value.slice(0, -1) : t.value;
    t.all = false;
  } else if (k === 'ctrl+a') t.all = t.value !== '';
  else if (k === 'ctrl+c' || k === 'ctrl+x') {
    if (t.all) { state.clip = t.value; if (k === 'ctrl+x') put(t, ''); }
  } else if (k === 'ctrl+v') put(t, state.clip);
  else if (k.length === 1) put(t, k);
  else t.all = false;
};
const write = (el, t, focused) => {
  const text = document.createElement('span'), caret = document.createElement('i');
  text.textContent = t.value;
  if (t.all) text.className = 'chosen';
  if (focused) caret.className = 'caret';
  el.replaceChildren(text, caret);
};

const editor = (id, body, title, name) => {
  const t = {value: files[name], all: false};
  const save = () => { files[name] = t.value; };
  add(id, {t, save, press: (k) => { if (k === 'ctrl+s') save(); else edit(t, k); },
    draw: () => {
      write($(body), t, state.active === id);
      $(title).textContent = (t.value === files[name] ? '' : '*') + name;
    }});
  $(body).addEventListener('mousedown', () => { t.all = false; });
};

// A menu that opens below its head; each entry has a command.
const menu = (head, list, commands) => {
  $(head).addEventListener('click', () => $(list).classList.toggle('hide'));
  for (const [entry, command] of Object.entries(commands))
    $(entry).addEventListener('click', () => {
      $(list).classList.add('hide');
      command();
      raise(state.active);
      judge();
    });
};

// A terminal: a few commands over `files`, where a folder's text is null.
const shell = (line) => {
  const to = line.match(/^(.*?)\s*(>>?)\s*(\S+)$/);
  const words = (to ? to[1] : line).trim().split(/\s+/), [name, ...rest] = words;
  const paths = rest.filter((w) => !w.startsWith('-'));
  let out = '';
  if (name === 'echo') {
    out = rest.join(' ').replace(/\$\(\(([\d\s+*-]+)\)\)/g, (_, sum) => String(Function(`return ${sum}`)()));
    out = out.replace(/["']/g, '') + '\n';
  } else if (name === 'ls') out = Object.keys(files).sort().join('  ') + '\n';
  else if (name === 'cat' && paths[0] in files) out = files[paths[0]];
  else if (name === 'mkdir') for (const p of paths) files[p] = null;
  else if (name === 'touch') for (const p of paths) files[p] ??= '';
  else if (name === 'rm' && paths.every((p) => p in files)) for (const p of paths) delete files[p];
  else if ((name === 'cp' || name === 'mv') && paths[0] in files) {
    const end = files[paths[1]] === null ? `${paths[1]}/${paths[0]}` : paths[1];
    files[end] = files[paths[0]];
    if (name === 'mv') delete files[paths[0]];
  } else if (name) out = `bash: ${name}: not found\n`;
  if (!to) return out;
  files[to[3]] = (to[2] === '>>' ? files[to[3]] ?? '' : '') + out;
  return '';
};
const terminal = (id, body, prompt, lines) => {
  const t = {value: '', all: false};
  let above = '';
  add(id, {t, press: (k) => {
    if (k === 'Enter') {
      above = (above + prompt + t.value + '\n' + shell(t.value)).split('\n').slice(-lines).join('\n');
      t.value = '';
    } else if (k === 'ctrl+u' || k === 'ctrl+c') t.value = '';
    else if (!k.startsWith('ctrl')) edit(t, k);
  }, draw: () => {
    const caret = document.createElement('i');
    caret.className = state.active === id ? 'block' : 'block away';
    caret.textContent = ' ';
    $(body).replaceChildren(above + prompt + t.value, caret);
  }});
};

// A calculator: keys or knobs write a sum, = works it out.
const calculator = (id, screen, knobs) => {
  const t = {value: '0', fresh: true};
  const take = (k) => {
    if (k === '=' || k === 'Enter') {
      try { t.value = String(+Function(`return ${t.value}`)().toFixed(6)); } catch { t.value = 'Error'; }
      t.fresh = true;
    } else if (/^[\d.]$/.test(k)) { t.value = t.fresh ? k : t.value + k; t.fresh = false; }
    else if (/^[-+*/]$/.test(k)) { t.value += k; t.fresh = false; }
    else if (k === 'C' || k === 'Escape') { t.value = '0'; t.fresh = true; }
    else if (k === 'Backspace') t.value = t.value.slice(0, -1) || '0';
    else if (k === 'ctrl+c') state.clip = t.value;
  };
  add(id, {t, press: take, draw: () => { $(screen).textContent = t.value; }});
  for (const [knob, k] of Object.entries(knobs)) $(knob).addEventListener('click', () => { take(k); raise(id); judge(); });
};

// A folder's window: a click chooses a file, F2 asks for a new name, Delete whether it is to go.
const manager = (id, grid, at, ask) => {
  const w = {chosen: null, t: {value: '', all: false}, asked: null, opened: []};
  const close = (done) => {
    if (done && w.asked === 'name' && w.t.value) {
      files[w.t.value] = files[w.chosen];
      if (w.t.value !== w.chosen) delete files[w.chosen];
      w.chosen = w.t.value;
    } else if (done && w.asked === 'delete') { delete files[w.chosen]; w.chosen = null; }
    w.asked = null;
    w.draw();
    judge();
  };
  w.press = (k) => {
    if (w.asked) {
      if (k === 'Enter' || k === 'Escape') close(k === 'Enter');
      else if (w.asked === 'name') edit(w.t, k);
    } else if (k === 'F2' && w.chosen) { w.asked = 'name'; w.t.value = w.chosen; w.t.all = false; }
    else if (k === 'Delete' && w.chosen) w.asked = 'delete';
    else if (k === 'Enter' && w.chosen) w.opened.push(w.chosen);
    else if (k === 'ctrl+a') w.chosen = Object.keys(files).length === 1 ? Object.keys(files)[0] : null;
  };
  w.draw = () => {
    $(grid).replaceChildren(...Object.keys(files).sort().map((name) => {
      const e = document.createElement('div'), icon = document.createElement('b'), text = document.createElement('span');
      e.className = files[name] === null ? 'file folder' : 'file';
      e.dataset.pf = 'icon';
      e.dataset.name = name;
      text.textContent = name;
      if (w.chosen === name) text.className = 'chosen';
      e.append(icon, text);
      return e;
    }));
    $(at).textContent = w.opened.length ? `Opening "${w.opened.at(-1)}"` : w.chosen ? `"${w.chosen}"` : `${Object.keys(files).length} items`;
    $(ask.frame).classList.toggle('hide', !w.asked);
    $(ask.text).textContent = w.asked === 'delete' ? `Delete "${w.chosen}"?` : 'Please enter a new name:';
    $(ask.field).classList.toggle('hide', w.asked !== 'name');
    write($(ask.field), w.t, true);
  };
  // Before the window is raised, which draws the grid anew.
  $(grid).addEventListener('mousedown', (e) => {
    if (w.asked) return;
    w.chosen = e.target.closest('.file')?.dataset.name ?? null;
    if (e.detail === 2 && w.chosen) w.opened.push(w.chosen);
    w.draw();
    judge();
  });
  add(id, w);
  $(ask.yes).addEventListener('click', () => close(true));
  $(ask.no).addEventListener('click', () => close(false));
};
