// Package report turns what the engine gives into what people and programs
// read: a flat summary with units in its names, a row a job, statistics over
// seeds, plots as SVG and PNG, and pages in Markdown and HTML. It simulates
// nothing and reads no clock.
package report
