package main

import "testing"

func TestEnginesAreComparedWithCriuAlone(t *testing.T) {
	b := &criuBaseline{DumpUS: []int64{1_000_000}, RestoreUS: []int64{500_000}}
	if got := b.text(b); got != "" {
		t.Errorf("without engines: %q", got)
	}
	b.engineBaseline = engineBaseline{RuncDumpUS: []int64{3_000_000}, RuncRestoreUS: []int64{2_000_000}, CtrDumpUS: []int64{4_500_000}}
	const want = "the same process in a container, and how many times as long as criu alone: runc checkpoint 3s, 3.00 times; ctr task checkpoint 4.5s, 4.50 times; runc restore 2s, 4.00 times"
	if got := b.text(b); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
