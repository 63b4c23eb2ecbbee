// Package e2e contains the end-to-end tests: jobs on a real cluster of three machines with
// containerd and a real HDFS, and failures of its parts. They run inside a test bed (see
// integration/README.md) and skip with the reason elsewhere.
package e2e
