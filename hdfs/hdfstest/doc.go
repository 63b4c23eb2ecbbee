// Package hdfstest is what every hdfs.FS must do, as a test suite: the fake,
// local files and the client of a real Apache HDFS all run it. It uses nothing
// but the interface, below one directory that it is given.
package hdfstest
