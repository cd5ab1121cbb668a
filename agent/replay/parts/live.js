// A run that is served while it goes on: its records as they come, its frames when they are looked at.
let following = Boolean(boot.live);

// Whether the newest step is shown as soon as it is there.
function follow(on) {
  if (!boot.live || following === on) return;
  following = on;
  byId("follow").setAttribute("aria-pressed", on);
  if (on && shown.length) go(shown[shown.length - 1]);
}

function startLive() {}
function fetchFrame() {}
