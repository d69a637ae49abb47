// A page that is read from a file may not start a worker, which the search needs. There this class takes its place: it runs
// the worker's script in a frame.
(() => {
  if (location.protocol !== "file:") return;
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      window.addEventListener("message", this.receive = (event) => {
        if (event.source !== this.frame.contentWindow) return;
        const message = new MessageEvent("message", {data: event.data});
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      const page = this.frame.contentDocument;
      page.open();
      page.write(
        '<!doctype html><script>postMessage = (data) => parent.postMessage(data, "*");' +
        "importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {" +
        'const script = document.createElement("script"); script.src = url; script.onload = done; script.onerror = failed;' +
        "document.body.appendChild(script); })), Promise.resolve());</script>" +
        `<body><script src="${new URL(url, location)}"></script></body>`);
      page.close();
      this.frame.contentWindow.addEventListener("load", () => {
        this.waiting.forEach((data) => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
        this.waiting = null;
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data}));
    }

    terminate() {
      window.removeEventListener("message", this.receive);
      this.frame.remove();
    }
  }
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
})();
