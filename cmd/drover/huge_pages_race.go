//go:build race

package main

// adviseHugePages does nothing: the race detector keeps account of each byte that is made, so that
// a coordinator would start seconds later.
func adviseHugePages() {}
