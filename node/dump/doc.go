// Package dump transfers a checkpointed attempt from the node that has it to
// another one over HTTP: its image, its folder with logs, and the harness that it
// was started with.
//
// The source lists the files once with their sums (Manifest) and serves each
// from any offset, so that an interrupted transfer resumes. The receiver verifies
// every file. Holes are not transferred, and a file with several names is
// transferred once. Nothing of the attempt changes meanwhile: its container is gone and
// its helpers have ended.
//
// A source that serves as many requests as it may, or still reads the files to list
// them, answers 503 with Retry-After, and the receiver asks again.
//
// A request is authenticated by the job's token, as in package shuffle: a node
// that may fetch a job's map outputs may fetch its dumps.
package dump
