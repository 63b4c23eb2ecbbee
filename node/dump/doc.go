// Package dump carries a checkpointed attempt from the node that holds it to
// another one, over HTTP: its image, its folder with logs, and the harness that
// it was started with.
//
// The holder lists the files once with their sha256 (Manifest) and then serves
// each from any offset, so that a transfer that broke off goes on where it was.
// The receiver verifies every file before it counts as there. Nothing of the
// attempt changes meanwhile: its container is gone and its helpers have ended.
//
// The proof of a request is the job's token, as in package shuffle: a node that
// may fetch a job's map outputs may fetch its dumps.
package dump
