package main

// innerPrograms are the programs that Drover starts itself inside and beside
// tasks, by their first argument; each gives its exit code.
var innerPrograms = map[string]func(args []string) int{}
