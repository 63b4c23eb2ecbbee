// Package runtimetest is the conformance suite of runtime.Driver: runtime/fake,
// runtime/process and runtime/containerd all run it. A driver's test describes
// its driver as a Subject and calls Run.
//
// The containers run one small program with a verb as its first argument (see
// Program). The fake calls it as a function; real engines run it as a process:
// their TestMain calls Main, which takes over the test binary if it was started as
// that program.
package runtimetest
