// Package run starts a test bed, runs one command beside it, and leaves nothing behind.
//
// Three processes of the same binary do this:
//
//  1. Run, the outer process, which the user started. It makes the run's folder,
//     starts the next process in new network, process and mount namespaces,
//     forwards signals, and removes the folder at the end. If it dies, the kernel
//     kills the next process (parent death signal).
//  2. initMain, process 1 of the new process namespace. It only reaps. When it
//     ends for whatever reason, the kernel kills everything in the namespace and
//     removes the network, so there is no list of things to clean up.
//  3. innerMain, which starts HDFS and the machines, serves the control socket,
//     writes the test bed file, and runs the command.
package run
