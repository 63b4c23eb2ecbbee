package main

import (
	"fmt"
	"runtime"
)

// measureBuiltin counts the words of the large text by the built-in programs.
func (b *bench) measureBuiltin() ([]figure, error) {
	all, err := b.alternate(func() (resourceUse, error) {
		return b.wordCount("large.txt", `stage "map" { kind = "map"  builtin = ["wordcount"]  resources { memory = "256MiB" } }
  stage "reduce" { kind = "reduce"  tasks = 2  builtin = ["sum"]  combiner = true  resources { memory = "256MiB" } }`)
	})
	if err != nil {
		return nil, err
	}
	size, err := sizeMB(b.path("large.txt"))
	if err != nil {
		return nil, err
	}
	ours := all[0]
	what := fmt.Sprintf("built-in word count of %.0f MB, ", size)
	return []figure{
		{what + "wall", medianBy(ours, wallOf), "s", fmt.Sprintf("%s, %d cores", spreadText(ours), runtime.NumCPU())},
		{what + "CPU", medianBy(ours, cpuOf), "s", ""},
		{what + "rate", size / medianBy(ours, cpuOf), "MB/s per core", "input bytes per second of CPU time"},
	}, nil
}
