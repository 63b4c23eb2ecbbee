// Package run starts a bed, runs one command beside it, and takes care that nothing of it is left.
//
// Three processes, all of one binary, do this:
//
//  1. Run, the outer one, which the user started. It makes the run's folder, starts the next one in new network,
//     process and mount namespaces, passes signals on, and removes the folder at the end. Should it die without
//     warning, the kernel kills the next one (parent death signal).
//  2. initMain, process 1 of the new process namespace. It only reaps. When it ends, however it ends, the kernel
//     kills all that lives in the namespace and takes the network away with it: there is no list of things to
//     clean up.
//  3. innerMain, which starts HDFS and the machines, serves the control socket, writes the bed file, and runs the
//     command.
package run
