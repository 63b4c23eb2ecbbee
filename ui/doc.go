// Package ui serves the web page: what the API says, for people.
//
// It is a client of the API and nothing else. Every number on a page comes from
// a call that is made with the reader's identity, every button is such a call,
// so that a page never shows or does what the API would not. The coordinator
// serves it on its own port, `drover ui` and `drover dev` on loopback.
//
// Pages are rendered here, by html/template, and work without a script. The
// script of a page keeps it live: GET /live streams the page's main part again
// whenever it differs from what was sent last (server-sent events), and the
// script replaces what changed. Large pictures (map of nodes, schedule, tasks)
// are drawn by scripts from /data/, whose address in the page changes with the
// data.
//
// Answers of the API are shared between readers of one identity, and the large
// ones between readers of the same rights, for a moment that grows with what all
// answers cost, so that many open pages cost what one costs.
//
// The picture of the schedule is read in parts, those that are in view, and with
// bars that are a pixel wide or more: what is shorter is one bar with its
// neighbours until the reader zooms in.
//
// What arrives from jobs, users and nodes (names, statuses, counters, logs) is
// text: html/template escapes it, scripts set it as textContent, and the
// Content-Security-Policy allows no script or style but the files of this
// package.
//
// The caller of New authenticates the reader (see Guard for loopback), and says
// in Config.Reader who that is.
package ui
