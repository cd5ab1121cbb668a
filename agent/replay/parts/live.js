// A run that is served while it goes on: its records as they come, its frames when they are looked at.
const HELD_FRAMES = 120;
const fetched = new Map();  // name of a frame -> promise of {url} or {why}, the last used at the end
let following = Boolean(boot.live);

const asked = (path) => fetch(path, {
  headers: { authorization: `Bearer ${location.hash.slice(1)}` }, cache: "no-store", credentials: "omit",
});

// Whether the newest step is shown as soon as it is there.
function follow(on) {
  if (!boot.live || following === on) return;
  following = on;
  byId("follow").setAttribute("aria-pressed", on);
  if (on) goToNewest();
}

function goToNewest() {
  if (!shown.length) return;
  const newest = shown[shown.length - 1], entry = firstOf(rows[newest]);
  const last = entry.tags.includes("waiting") ? 0 : Math.max(0, entry.frames.length - 1);
  go(newest, last, true);
}

function fetchFrame(name) {
  const held = fetched.get(name) || bring(name);
  fetched.delete(name);
  fetched.set(name, held);
  for (const [old, promise] of fetched) {
    if (fetched.size <= HELD_FRAMES) break;
    fetched.delete(old);
    promise.then(({ url }) => url && URL.revokeObjectURL(url));
  }
  return held;
}

async function bring(name) {
  try {
    const answer = await asked(`/frames/${encodeURIComponent(name)}`);
    if (answer.ok) return { url: URL.createObjectURL(await answer.blob()) };
    fetched.delete(name);
    return { why: (await answer.json()).error };
  } catch {
    fetched.delete(name);
    return { why: "The server of this page is gone." };
  }
}

const trouble = (sentence) => byId("warnings").replaceChildren(make("p", sentence));

async function startLive() {
  byId("follow").hidden = false;
  byId("follow").onclick = () => follow(!following);
  const waiting = "The run has not begun yet.";
  trouble(waiting);
  let version = 0, epoch = null;
  for (;;) {
    try {
      const answer = await asked(`/changes?since=${version}`);
      if (answer.status === 401) return trouble((await answer.json()).error);
      if (!answer.ok) throw new Error(answer.statusText);
      const news = await answer.json();
      if (epoch !== null && news.epoch !== epoch) return location.reload();
      epoch = news.epoch;
      if (!news.run) trouble(waiting);
      else if (news.version > version) take(news);
      else fillHead();
      if (news.more) trouble("The log of this run is still being read: there is more than is shown yet.");
      version = news.version;
    } catch {
      trouble("The server of this page is gone; what it has told is still here. Trying again …");
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}

// Put news into what is there, and show it.
function take({ run, episodes, changed }) {
  const begins = !runs.length, key = rows[at]?.key, before = rows[at] && firstOf(rows[at]);
  if (begins) runs.push({ episodes: [] });
  Object.assign(runs[0], run);
  episodes.forEach((episode, n) => { runs[0].episodes[n] = { entries: [], ...runs[0].episodes[n], ...episode }; });
  for (const [episode, n, entry] of changed) runs[0].episodes[episode].entries[n] = entry;
  fillAll();
  if (begins) stages = [new Stage(0)];
  const again = rows.findIndex((row) => row.key === key);
  if (following) goToNewest();
  else if (again >= 0 && firstOf(rows[again]) !== before) go(again, frame, true);
  else if (again >= 0) { at = again; showLine(); placeScrubber(); }
}
