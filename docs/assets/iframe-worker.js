// Browsers start no workers for pages opened from a folder (file:). There the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== this.inside) return;
        const copy = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(copy);
        if (this.onmessage) this.onmessage(copy);
      });
      this.ready = new Promise((resolve) => { frame.contentWindow.cdcReady = resolve; });
      const page = frame.contentDocument;
      page.open();
      page.write(`<script>
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve, reject) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, onload: resolve, onerror: reject });
          document.head.appendChild(script);
        })), Promise.resolve());
        addEventListener("message", (event) => { if (event.source !== parent) event.stopImmediatePropagation(); });
      <\/script><script src="${url}" onload="cdcReady()"><\/script>`);
      page.close();
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data, source: window })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
