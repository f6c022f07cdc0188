/* Lets the search work where the site is opened from a folder: browsers start no worker there, so the
   worker's script runs in a hidden frame of the page. The theme looks for this name. */
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inner.document.createElement("script");
      script.src = address;
      script.onload = () => { const waiting = this.waiting; this.waiting = null; waiting.forEach((data) => this.postMessage(data)); };
      this.inner.document.body.append(script);
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inner.dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() { this.inner.frameElement.remove(); }
  };
}
