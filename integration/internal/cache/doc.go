// Package cache keeps what the test bed makes slowly in one folder, under names that contain a hash of all that it
// was made from.
//
// An entry is a folder NAME-HASH. It is built aside in NAME-HASH.part and renamed when complete, so an entry that
// exists is whole, whatever was interrupted. A file lock per name makes a second builder wait and then find the
// first one's result. Making a new generation of a name removes the older ones that nobody uses.
//
// The package knows nothing of machines or HDFS; package build does.
package cache
