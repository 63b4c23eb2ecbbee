// Package reuse runs tasks of one job one after another in one container, around an engine that
// knows nothing of it: a container costs thirty times what a further task in it does.
//
// A container whose Spec has a Reuse key is a task here: a record in a file, and processes in the
// cgroup that the caller has made for it with its limits. Process 1 of the engine's container is
// package taskinit. For each task Start
//
//  1. takes a container that no task runs in, of the same key, image, user and mount points,
//     or has the engine make one;
//  2. mounts in it what the task may write: the folders of its Spec, and a new /dev/shm;
//  3. gives the task's cgroup the device rules of the container's;
//  4. moves process 1 into it, has it start the command, and moves it back: so the command is
//     born with its limits, and only its fork is charged there besides.
//
// When the command ends, everything in its cgroup is killed. The container is used again only if
// the command ended by itself with code 0, and if nothing has changed in the container: no process
// but the first, which has the limits, priorities and processors that it had, no System V or POSIX
// object, no TCP connection, and no other mounts. Otherwise, and after maxTasks or maxAge, it is
// deleted.
//
// What differs from a container of its own: the task is not process 1, so that signals have their
// default action; /proc/self/cgroup shows a path above the container's; and a Checkpoint is
// Unsupported.
//
// A daemon that ends closes its connections: process 1 then waits for its task and exits with its
// code, which the next daemon gets from the engine. Such a container is never used again.
package reuse
