// Package cache stores the results of slow steps of the test bed in one folder, under names that
// contain a hash of everything they are made from.
//
// An entry is a folder NAME-HASH. It is built in NAME-HASH.part and renamed when complete, so an
// existing entry is complete even after interruptions. A file lock per name makes a second builder
// wait and then find the first one's result. Making a new generation of a name removes the unused
// older ones.
//
// The package knows nothing of machines or HDFS; package build does.
package cache
