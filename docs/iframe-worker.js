// Search from disk. Browsers refuse a Worker on pages opened as files; there, a hidden frame does its work: it loads
// the worker's script and hears and answers as a Worker does. (The theme asks for such a stand-in by this name.)
if (location.protocol === "file:") {
  window.Worker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = (this.inside = frame.contentWindow);
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data })); // the worker's answers
      inside.importScripts = (...urls) => urls.reduce((before, one) => before.then(() => load(inside, one)), Promise.resolve());
      this.ready = load(inside, url);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
  window.IFrameWorker = window.Worker;
}

function load(inside, url) {
  return new Promise((done, failed) => {
    const script = inside.document.createElement("script");
    script.src = new URL(url, location.href);
    script.onload = done;
    script.onerror = failed;
    inside.document.body.append(script);
  });
}
