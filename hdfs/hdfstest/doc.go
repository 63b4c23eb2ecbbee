// Package hdfstest is the conformance suite of hdfs.FS. The fake, local files and
// the client of a real Apache HDFS all run it. It uses only the interface, below
// one given directory.
package hdfstest
