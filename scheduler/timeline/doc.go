// Package timeline records future free capacity. A Profile holds the free capacity of each bin (a
// node, or a pool of totals) at every future time: the list of Two-tier Project and Job Scheduling
// for Cloud Computing Environments, Table 5 and Fig. 7, kept as a B+tree over time with the minimum
// and maximum of every resource in each page. Adding a reservation costs O(log n); finding the
// earliest hole costs O(log n) for each change between fitting and not fitting before it.
//
// A Profile knows nothing of jobs. Package scheduler keeps one for all nodes
// (scheduler.Timeline); package backfill searches it.
package timeline
