// Package report turns the engine's results into output for people and programs: a flat summary
// with units in its names, one row per job, statistics over seeds, plots as SVG and PNG, and pages
// in Markdown and HTML. It simulates nothing and reads no clock.
package report
